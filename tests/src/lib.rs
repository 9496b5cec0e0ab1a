//! Helpers of the tests that go across crates.
//!
//! - [`peer`]: an independent iWARP peer on a kernel TCP socket.
//! - [`netns`]: network namespaces, and re-running a test inside one.
//! - [`capture`]: packet captures and their verdict by tshark.
//! - [`frame`]: a frame on the heap.
//! - [`compliance`]: the rules of the specifications, and the tests that guard them.
//! - [`fuzz`]: bodies of the fuzz targets.
//! - [`raw`]: one engine and a peer made of hand-written segments.
//! - [`sim`]: two engines in virtual time, from one seed.
//! - [`interop`]: the stack against Linux's siw in a guest.
//! - [`process`]: temporary folders and programs that end in time.
//! - [`trace`]: packet traces, scripts of segments in and out.

use std::io::Write as _;

pub mod capture;
pub mod compliance;
#[cfg(feature = "device")]
pub mod connection;
pub mod frame;
pub mod fuzz;
pub mod interop;
pub mod netns;
pub mod peer;
pub mod process;
pub mod raw;
pub mod sim;
#[cfg(feature = "device")]
pub mod stack;
pub mod trace;

/// Set to 1 by whoever asks for the device tests: what is missing is then a failure, not a skip.
pub const REQUIRE_DEVICE: &str = "FERROWARP_REQUIRE_DEVICE";

/// Reports a test as skipped, with the reason.
///
/// # Panics
/// If [`REQUIRE_DEVICE`] is set: asked for and missing is a failure.
pub fn skip(reason: &str) {
    assert!(
        std::env::var_os(REQUIRE_DEVICE).is_none_or(|value| value != "1"),
        "asked for, but missing: {reason}"
    );
    report_skip(reason);
}

/// Prints past the capture of the test harness, so that scripts see it although the test passes.
fn report_skip(reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

/// Reports a test as skipped because the running kernel lacks something that nobody can install.
pub fn skip_without(feature: &str) {
    report_skip(&format!("this kernel has no {feature}"));
}
