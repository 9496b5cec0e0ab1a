//! Helpers of the tests that span crates.
//!
//! - [`peer`]: an independent iWARP peer on a kernel TCP socket.
//! - [`netns`]: network namespaces, and re-running a test inside one.
//! - `stack`: the stack on a kernel interface (feature `device`).
//! - `connection`: a connection between the stack and the independent peer (feature `device`).
//! - [`capture`]: packet captures and their dissection by tshark.
//! - [`pcap`]: writer of capture files.
//! - [`frame`]: a received frame in memory.
//! - [`compliance`]: the rules of the specifications, and the tests tagged with them.
//! - [`fuzz`]: bodies of the fuzz targets.
//! - [`host_program_build`]: a program in C that owns the EAL and lends queues to the stack.
//! - [`manual_tcp_peer`]: a TCP endpoint whose segments a test makes by hand.
//! - [`raw`]: one engine and a peer that sends hand-made segments.
//! - [`sim`]: two engines in virtual time, deterministic from a seed.
//! - [`interop`]: the stack against Linux's siw in a guest.
//! - `verbs`: unmodified verbs programs on the stack (feature `device`).
//! - [`longest_poll`]: meter of the longest poll of a test.
//! - [`rows`]: outcomes of the cases of a matrix.
//! - [`process`]: temporary folders and child processes with timeouts.
//! - [`ip`]: ARP replies and ICMP errors.
//! - [`workspace`]: the files of the workspace.
//! - [`trace`]: packet traces, scripts of segments in and out.

use std::io::Write as _;
use std::ops::Range;

use ferrowarp_proto::verbs::cm::ConnParam;

pub mod capture;
pub mod compliance;
#[cfg(feature = "device")]
pub mod connection;
pub mod frame;
pub mod fuzz;
pub mod host_program_build;
pub mod interop;
pub mod ip;
pub mod longest_poll;
pub mod manual_tcp_peer;
pub mod netns;
pub mod pcap;
pub mod peer;
pub mod process;
pub mod raw;
pub mod rows;
pub mod sim;
#[cfg(feature = "device")]
pub mod stack;
pub mod trace;
#[cfg(feature = "device")]
pub mod verbs;
pub mod workspace;

/// Environment variable that requires the device tests if 1: a missing prerequisite is then a
/// failure, not a skip.
pub const REQUIRE_DEVICE: &str = "FERROWARP_REQUIRE_DEVICE";

/// `len` bytes that depend on their offset and on `salt`, with no short period.
#[must_use]
pub fn pattern(salt: u64, len: usize) -> Vec<u8> {
    pattern_of(salt, 0..len)
}

/// This range of the bytes of [`pattern`].
#[must_use]
pub fn pattern_of(salt: u64, range: Range<usize>) -> Vec<u8> {
    let byte = |at: u64| (salt << 20 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0];
    (range.start as u64..range.end as u64).map(byte).collect()
}

/// The default parameters of a connection, with these changes.
#[must_use]
pub fn conn_param(change: impl FnOnce(&mut ConnParam)) -> ConnParam {
    let mut param = ConnParam::default();
    change(&mut param);
    param
}

/// Reports a test as skipped, with the reason.
///
/// # Panics
/// If [`REQUIRE_DEVICE`] is set: a missing prerequisite is a failure.
pub fn skip(reason: &str) {
    assert!(
        std::env::var_os(REQUIRE_DEVICE).is_none_or(|value| value != "1"),
        "required, but missing: {reason}"
    );
    report_skip(reason);
}

/// Prints past the capture of the test harness, so that scripts see it although the test passes.
fn report_skip(reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

/// Reports a test as skipped because the running kernel lacks a feature.
pub fn skip_without(feature: &str) {
    report_skip(&format!("this kernel has no {feature}"));
}
