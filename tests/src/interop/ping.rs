//! rping in the guest against iwping, in both roles.

use std::io;
use std::time::Duration;

use crate::interop::case::{CASE_TIMEOUT, Case, Route, Version, failure};
use crate::interop::guest::GuestResult;
use crate::interop::testbed::{Testbed, last_line, program_error};

/// Message sizes up to the maximum of rping and iwping, 64 KiB less one byte.
const SIZES: [u32; 4] = [64, 1461, 4096, 65535];
/// Rounds per case.
const ROUNDS: u32 = 1000;
/// Timeout of a case: a round of 64 KiB takes 20 ms in the emulated guest, and far more over a path
/// with faults.
const ROUNDS_TIMEOUT: Duration = Duration::from_secs(240);
/// Port of rping.
const PORT: u16 = 7174;

/// The program that acts as the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// `iwping server`.
    Iwping,
    /// `rping -s`.
    Rping,
    /// `rping -s -P`.
    RpingPersistent,
}

/// Returns a case for each server, size, IP version and MTU, and some further cases with pings.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (server, name) in [
        (Server::Iwping, "rping-to-iwping"),
        (Server::Rping, "iwping-to-rping"),
        (Server::RpingPersistent, "iwping-to-rping-P"),
    ] {
        for route in routes() {
            for size in SIZES {
                let path = route.to_string().replace(' ', "-").to_lowercase();
                let full = format!("ping/{name}/{path}/{size}");
                let is_quick = is_quick(server, route, size);
                let rounds = match size {
                    _ if !is_quick => ROUNDS,
                    // The capture is full after some 80 rounds.
                    65535 => ROUNDS / 10,
                    _ => ROUNDS / 4,
                };
                let case = Case::new(full, route, move |testbed| {
                    run_rounds(testbed, server, size, rounds)
                });
                cases.push(case.quick(is_quick));
            }
        }
    }
    cases.push(Case::new("ping/reconnect/50", Route::PLAIN, |testbed| reconnect(testbed, 50)));
    cases.push(
        Case::new("ping/reconnect/8", Route::PLAIN, |testbed| reconnect(testbed, 8)).quick(true),
    );
    cases.push(Case::new("ping/two-clients", Route::PLAIN, two_clients).quick(true));
    cases.push(
        Case::new("ping/markers-wanted", Route::PLAIN, markers_are_refused)
            .quick(true)
            .without_fpdus(),
    );
    cases
}

fn routes() -> [Route; 6] {
    let (v4, v6) = (Route::PLAIN, Route::PLAIN.v6());
    [v4.mtu(576), v4, v4.mtu(9000), v6.mtu(1280), v6, v6.mtu(9000)]
}

/// True for a selection that covers each server, size, IP version and MTU.
fn is_quick(server: Server, route: Route, size: u32) -> bool {
    let chosen = [
        (Server::Iwping, Version::V4, 576, 4096),
        (Server::Iwping, Version::V6, 1500, 65535),
        (Server::Rping, Version::V4, 1500, 65535),
        (Server::Rping, Version::V6, 1280, 1461),
        (Server::RpingPersistent, Version::V4, 9000, 64),
    ];
    chosen.contains(&(server, route.version, route.mtu, size))
}

/// Runs `rounds` verified pings of `size` bytes.
///
/// # Errors
/// If a round fails at either end, or some are missing.
pub fn run_rounds(
    testbed: &mut Testbed,
    server: Server,
    size: u32,
    rounds: u32,
) -> io::Result<String> {
    match server {
        Server::Iwping => iwping_serves(testbed, size, rounds),
        Server::Rping => rping_serves(testbed, "", size, rounds),
        Server::RpingPersistent => rping_serves(testbed, "-P", size, rounds),
    }
}

fn iwping_serves(testbed: &mut Testbed, size: u32, rounds: u32) -> io::Result<String> {
    let server = testbed.serve("iwping", "server -v", "waiting for clients")?;
    let client = testbed.guest.run(&rping_client(testbed, size, rounds), ROUNDS_TIMEOUT)?;
    let client = expect_exit_ok("rping", &client);
    let server = server.finish(CASE_TIMEOUT)?;
    let result = if server.success() { Ok(()) } else { Err(program_error("iwping", &server)) };
    match (result, client) {
        // Either error may be the cause of the other.
        (Err(server), Err(client)) => return Err(failure(format!("{server}; {client}"))),
        (server, client) => server.and(client)?,
    }
    let served = server.output.lines().filter(|line| line.starts_with("server ping")).count();
    if served != usize::try_from(rounds).expect("a small number") {
        return Err(failure(format!("{served} of {rounds} rounds")));
    }
    Ok(format!("{rounds} rounds of {size}"))
}

fn rping_serves(testbed: &mut Testbed, how: &str, size: u32, rounds: u32) -> io::Result<String> {
    let server = testbed.guest.start(&rping_server(testbed, how, size))?;
    testbed.guest.run_ok(&format!("listening {PORT}"))?;
    let report = run_iwping_client(testbed, size, rounds)?;
    if how.is_empty() {
        expect_exit_ok("rping", &server.finish(CASE_TIMEOUT))?;
    }
    if !report.contains(&format!("{rounds} rounds of {size} bytes, every byte verified")) {
        return Err(failure(format!("iwping: {}", last_line(&report))));
    }
    let median = report.split("median ").nth(1).and_then(|rest| rest.split(' ').next());
    Ok(format!("{rounds} rounds of {size}, median {} usec", median.unwrap_or("?")))
}

/// Returns the command line of a client in the guest.
#[must_use]
pub fn rping_client(testbed: &Testbed, size: u32, rounds: u32) -> String {
    format!("rping -c -V -a {} -S {size} -C {rounds}", testbed.stack_addr())
}

/// Returns the command line of a server in the guest.
#[must_use]
pub fn rping_server(testbed: &Testbed, how: &str, size: u32) -> String {
    format!("rping -s {how} -a {} -S {size}", testbed.guest_addr())
}

/// Runs iwping as a client, and returns its output.
///
/// # Errors
/// Unless all rounds succeeded.
pub fn run_iwping_client(testbed: &mut Testbed, size: u32, rounds: u32) -> io::Result<String> {
    let line = format!("client {} -V -S {size} -C {rounds}", testbed.guest_addr());
    testbed.run_ok("iwping", &line, ROUNDS_TIMEOUT)
}

/// Checks that a command in the guest exited with code 0.
///
/// # Errors
/// With the last line of its output, unless it did, or failed only while it ended.
pub fn expect_exit_ok(name: &str, result: &GuestResult) -> io::Result<()> {
    // At its end rping closes the event channel that its other thread reads: that thread may exit
    // with this error before the program does with 0.
    let mut lines = result.output.lines();
    let is_teardown = lines.any(|line| line.ends_with("rdma_get_cm_event: Bad file descriptor"));
    // perftest ends with a Send, which the server awaits before it closes. If that close overtakes
    // siw's sending thread, siw reports the Send as failed (LOC_QP_OP_ERR).
    let is_late_send = ["Bad wc status 2", "Failed to close connection between server and client"]
        .iter()
        .all(|line| result.output.contains(line));
    let is_accepted = match result.code {
        Some(0) => true,
        Some(1) => is_late_send,
        Some(255) => is_teardown,
        _ => false,
    };
    if is_accepted {
        return Ok(());
    }
    let code = result.code.map_or("did not end".to_owned(), |code| format!("exit code {code}"));
    Err(failure(format!("{name} in the guest: {code}: {}", last_line(&result.output))))
}

/// Sequential connections, each of a new client process, with one round each.
fn reconnect(testbed: &mut Testbed, count: u32) -> io::Result<String> {
    let _server = testbed.guest.start(&rping_server(testbed, "-P", 64))?;
    testbed.guest.run_ok(&format!("listening {PORT}"))?;
    let mut errors = Vec::new();
    for number in 0..count {
        if let Err(error) = run_iwping_client(testbed, 64, 1) {
            errors.push(format!("connection {number}: {error}"));
        }
    }
    if let Some(first) = errors.first() {
        return Err(failure(format!("{} of {count} failed; {first}", errors.len())));
    }
    Ok(format!("{count} connections, one round each"))
}

/// Two clients in the guest at the same time.
fn two_clients(testbed: &mut Testbed) -> io::Result<String> {
    let server = testbed.serve("iwping", "server -P -v", "waiting for clients")?;
    let line = rping_client(testbed, 1000, ROUNDS / 4);
    let clients = [testbed.guest.start(&line)?, testbed.guest.start(&line)?];
    for client in clients {
        expect_exit_ok("rping", &client.finish(ROUNDS_TIMEOUT))?;
    }
    let report = server.output()?;
    let served = report.lines().filter(|line| line.starts_with("server ping")).count();
    server.interrupt()?;
    server.finish(CASE_TIMEOUT)?;
    if served != 500 {
        return Err(failure(format!("{served} of 500 rounds: {}", last_line(&report))));
    }
    Ok("2 clients with 250 rounds each".into())
}

/// siw refuses markers, and iwping reports it.
fn markers_are_refused(testbed: &mut Testbed) -> io::Result<String> {
    let _server = testbed.guest.start(&rping_server(testbed, "-P", 64))?;
    testbed.guest.run_ok(&format!("listening {PORT}"))?;
    let line = format!("client {} -C 1 --markers", testbed.guest_addr());
    let result = testbed.run("iwping", &line, CASE_TIMEOUT)?;
    if result.status.is_none_or(|status| status.success()) || !result.output.contains("siw refuses")
    {
        return Err(program_error("iwping", &result));
    }
    // The next connection, without markers, is not affected.
    run_iwping_client(testbed, 64, 10)?;
    Ok(format!("siw refuses; iwping: {}", last_line(&result.output)))
}
