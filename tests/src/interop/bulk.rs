//! Bulk transfers in both directions and both roles: iwperf against siw_peer, which implements its
//! control exchange; every byte is verified at the sink.

use std::io;
use std::time::Duration;

use crate::interop::case::{CASE_TIMEOUT, Case, Route, Version, failure};
use crate::interop::faults::RECOVERING;
use crate::interop::ping::expect_exit_ok;
use crate::interop::testbed::{Testbed, program_error};

/// Port of iwperf.
const PORT: u16 = 18515;
/// Approximate bytes per case in the full matrix and in the quick one; less with small messages.
const BYTES: u64 = 64 << 20;
const BYTES_QUICK: u64 = 4 << 20;
/// Messages per queue pair of a case.
const MESSAGES: std::ops::RangeInclusive<u64> = 8..=1000;
/// Limit of the slots of a case in bytes of a region: the guest has 512 MiB, and two regions.
const SLOTS: u64 = 128 << 20;
/// Timeout of a case: the emulated guest reaches 50 to 500 Mb/s.
const BULK_TIMEOUT: Duration = Duration::from_secs(300);

/// The end that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// iwperf to `siw_peer perf-server`.
    Iwperf,
    /// `siw_peer perf-client` to `iwperf server`.
    SiwPeer,
}

const CLIENTS: [(Client, &str); 2] = [(Client::Iwperf, "by-us"), (Client::SiwPeer, "by-siw")];

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Bulk {
    client: Client,
    test: &'static str,
    size: u64,
    messages: u64,
    qps: u64,
    bidirectional: bool,
}

impl Bulk {
    /// Creates a run with as many messages as make up `bytes` over all queue pairs.
    fn new(client: Client, test: &'static str, size: u64, qps: u64, bytes: u64) -> Self {
        let messages = (bytes / size / qps).clamp(*MESSAGES.start(), *MESSAGES.end());
        Self { client, test, size, messages, qps, bidirectional: false }
    }

    /// Returns the bytes sent in one direction.
    const fn bytes(&self) -> u64 {
        self.messages * self.qps * self.size
    }
}

/// Returns a case for each test, size and role, and cases with several queue pairs, both directions
/// and other paths.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, route: Route, quick: bool, run: Bulk| {
        let case = Case::new(name, route, move |testbed| bulk(testbed, run)).quick(quick);
        // The guest is slower than we are: the queue of its interface overflows, and we fill its
        // receive window.
        cases.push(case.expects_analysis(&RECOVERING).expects_analysis(&["window_full"]));
    };
    for (client, role) in CLIENTS {
        for test in ["write-bw", "read-bw", "send-bw"] {
            for size in [1, 3, 1461, 65536, 1_048_577, 4_194_304] {
                let quick = size == 1_048_577;
                let bytes = if quick { BYTES_QUICK } else { BYTES };
                let run = Bulk::new(client, test, size, 1, bytes);
                add(format!("bulk/{test}/{role}/{size}"), Route::PLAIN, quick, run);
            }
            for (qps, size, quick) in [(16, 100_001, true), (4, 4_194_304, false), (16, 777, false)]
            {
                let bytes = if quick { BYTES_QUICK } else { 2 * BYTES };
                let run = Bulk { bidirectional: true, ..Bulk::new(client, test, size, qps, bytes) };
                let name = format!("bulk/{test}/{role}/{qps}-queue-pairs-both-ways/{size}");
                add(name, Route::PLAIN, quick && test == "write-bw", run);
            }
            for route in [Route::PLAIN.mtu(576), Route::PLAIN.v6(), Route::PLAIN.v6().mtu(9000)] {
                let path = route.to_string().replace(' ', "-").to_lowercase();
                let run =
                    Bulk { bidirectional: true, ..Bulk::new(client, test, 250_001, 2, BYTES) };
                add(format!("bulk/{test}/{role}/{path}"), route, false, run);
            }
        }
        for test in ["write-lat", "read-lat", "send-lat"] {
            let run = Bulk::new(client, test, 4097, 1, BYTES_QUICK);
            let quick = test == "write-lat";
            add(format!("bulk/{test}/{role}"), Route::PLAIN, quick, run);
        }
    }
    cases
}

fn bulk(testbed: &mut Testbed, run: Bulk) -> io::Result<String> {
    let report = match run.client {
        Client::Iwperf => by_us(testbed, &run)?,
        Client::SiwPeer => by_siw(testbed, &run)?,
    };
    let (ways, qps) = (if run.bidirectional { 2 } else { 1 }, run.qps);
    Ok(format!("{} bytes over {qps} queue pairs verified{report}", run.bytes() * ways))
}

fn by_us(testbed: &mut Testbed, run: &Bulk) -> io::Result<String> {
    let family = if testbed.route().version == Version::V6 { "--ipv6" } else { "" };
    let server = testbed.guest.start(&format!("siw_peer perf-server --sessions 1 {family}"))?;
    testbed.guest.run_ok(&format!("listening {PORT}"))?;
    let Bulk { test, size, messages, .. } = run;
    let depth = (SLOTS / size / run.qps).clamp(1, 16);
    let mut line =
        format!("{test} {} --verify -s {size} -n {messages} -t {depth}", testbed.guest_addr());
    if run.qps > 1 {
        line += &format!(" -q {}", run.qps);
    }
    if run.bidirectional {
        line += " -b";
    }
    testbed.run_ok("iwperf", &line, BULK_TIMEOUT)?;
    let server = server.finish(CASE_TIMEOUT);
    expect_exit_ok("siw_peer", &server)?;
    // iwperf has verified the data it received: its exit status is 0.
    let is_fetch = test.starts_with("read");
    let expected = if is_fetch && !run.bidirectional { 0 } else { run.bytes() };
    let verified = value(&server.output, "verified")?;
    if verified != expected {
        return Err(failure(format!("siw_peer verified {verified} bytes, not {expected}")));
    }
    Ok(String::new())
}

fn by_siw(testbed: &mut Testbed, run: &Bulk) -> io::Result<String> {
    let server = testbed.serve("iwperf", "server --once", "waiting for clients")?;
    let Bulk { test, size, messages, qps, .. } = run;
    let mut line = format!("siw_peer perf-client {} {test} --verify", testbed.stack_addr());
    line += &format!(" --size {size} --iters {messages} --qps {qps} --tx-depth 16");
    if run.bidirectional {
        line += " --bidirectional";
    }
    let client = testbed.guest.run(&line, BULK_TIMEOUT)?;
    let client_ended = expect_exit_ok("siw_peer", &client);
    // If iwperf failed, its output explains more.
    let server = server.finish(CASE_TIMEOUT)?;
    if !server.success() {
        return Err(program_error("iwperf", &server));
    }
    client_ended?;
    // Pings and pongs are verified at their Data Sinks.
    let both = run.bidirectional || matches!(*test, "write-lat" | "send-lat");
    let expected = run.bytes() * if both { 2 } else { 1 };
    let verified = value(&client.output, "verified")?;
    if verified != expected {
        return Err(failure(format!("{verified} bytes were verified, not {expected}")));
    }
    let rate =
        client.output.split("mbit_s=").nth(1).and_then(|rest| rest.split([' ', '\n']).next());
    Ok(format!(", {} Mb/s", rate.unwrap_or("?")))
}

/// Returns the value of `key=` in the line `result: ...`.
pub(super) fn value(output: &str, key: &str) -> io::Result<u64> {
    let line = output.lines().find(|line| line.starts_with("result: "));
    let mut pairs = line.unwrap_or_default().split(' ').filter_map(|word| word.split_once('='));
    let found = pairs.find(|(name, _)| *name == key).and_then(|(_, value)| value.parse().ok());
    found.ok_or_else(|| failure(format!("siw_peer did not print {key}")))
}
