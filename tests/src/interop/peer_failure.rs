//! Peer failures and link failures: the survivor reports them in time and accepts the next
//! connection.

use std::io;
use std::time::{Duration, Instant};

use crate::interop::case::{CASE_TIMEOUT, Case, Route, failure};
use crate::interop::guest::GuestCommand;
use crate::interop::ping::{expect_exit_ok, rping_client, rping_server, run_iwping_client};
use crate::interop::testbed::{self, Testbed, last_line, program_error};
use crate::process::Running;

/// `--timeout` and `--user-timeout` of our programs here.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time allowed beyond the timeout: the interval between retransmissions, and a busy machine.
const TIMEOUT_SLACK: Duration = Duration::from_secs(25);
/// `--timeout` and `--user-timeout` of a server that survives an outage of two seconds: either end
/// waits for its retransmission timer, backed off meanwhile, and a slow guest for more.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// More rounds than fit in the time of a case.
const UNBOUNDED_ROUNDS: u32 = 10_000_000;
/// Rounds of a connection that must succeed.
const ROUNDS: u32 = 10;
/// Bytes per round.
const SIZE: u32 = 4096;
/// Duration of a transfer before the failure.
const TRANSFER_TIME: Duration = Duration::from_secs(2);

/// Analysis flags of segments sent to a failed peer. Segments sent while the link is down are not
/// captured, so the analysis misses them; neither are those sent just as it comes up, before the
/// capture sees the interface up.
const UNANSWERED: [&str; 7] = [
    "retransmission",
    "fast_retransmission",
    "spurious_retransmission",
    "duplicate_ack",
    "keep_alive",
    "lost_segment",
    "ack_lost_segment",
];

/// Returns cases in which either end or the link fails during a transfer, in both roles.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn(&mut Testbed) -> io::Result<String>| {
        Case::new(format!("peer-failure/{name}"), Route::PLAIN, body).expects_analysis(&UNANSWERED)
    };
    vec![
        case("guest-under-our-server", guest_client_fails).quick(true),
        case("guest-under-our-client", guest_server_fails),
        case("link-for-30s-under-our-server", |testbed| link_down_under_server(testbed, 30)),
        case("link-for-8s-under-our-server", |testbed| link_down_under_server(testbed, 8)),
        case("link-for-30s-under-our-client", |testbed| link_down_under_client(testbed, 30)),
        case("link-for-2s", short_link_outage).quick(true),
        case("our-server", our_server_is_killed).quick(true),
        case("our-client", our_client_is_killed).quick(true),
    ]
}

fn our_server(testbed: &mut Testbed, timeout: Duration) -> io::Result<Running> {
    // A live client may be idle between rounds. The ten intervals until a silent one is given up
    // are just shorter than the timeout.
    let (timeout, keepalive) = (timeout.as_secs(), (timeout / 12).as_secs_f32());
    let line = format!(
        "server -P -v --timeout {timeout} --user-timeout {timeout} --keepalive {keepalive}"
    );
    testbed.serve("iwping", &line, "waiting for clients")
}

/// Starts a client in the guest, and returns during its transfer.
fn start_guest_transfer(testbed: &Testbed, server: &mut Running) -> io::Result<GuestCommand> {
    let client = testbed.guest.start(&rping_client(testbed, SIZE, UNBOUNDED_ROUNDS))?;
    server.wait_for("server ping data", CASE_TIMEOUT)?;
    std::thread::sleep(TRANSFER_TIME);
    Ok(client)
}

/// Checks that a client in the guest succeeds.
fn expect_served(testbed: &Testbed) -> io::Result<()> {
    expect_exit_ok("rping", &testbed.guest.run(&rping_client(testbed, SIZE, ROUNDS), CASE_TIMEOUT)?)
}

/// Checks that our server reports a failed client in time.
fn expect_server_report(server: &mut Running, since: Instant) -> io::Result<String> {
    server.wait_for("a client failed", TIMEOUT + TIMEOUT_SLACK)?;
    let output = server.output()?;
    let report = output.lines().find(|line| line.contains("a client failed")).unwrap_or_default();
    Ok(format!("after {:.1} s {report}", since.elapsed().as_secs_f32()))
}

fn guest_client_fails(testbed: &mut Testbed) -> io::Result<String> {
    let mut server = our_server(testbed, TIMEOUT)?;
    let client = start_guest_transfer(testbed, &mut server)?;
    testbed.guest.power_off()?;
    let report = expect_server_report(&mut server, Instant::now())?;
    drop(client);
    testbed.guest.reboot()?;
    expect_served(testbed)?;
    Ok(format!("{report}; the next guest is served"))
}

fn guest_server_fails(testbed: &mut Testbed) -> io::Result<String> {
    let server = testbed.guest.start(&rping_server(testbed, "-P", SIZE))?;
    testbed.guest.run_ok("listening 7174")?;
    let client = start_our_transfer(testbed)?;
    testbed.guest.power_off()?;
    let report = expect_client_error(client, Instant::now())?;
    drop(server);
    testbed.guest.reboot()?;
    let _server = testbed.guest.start(&rping_server(testbed, "-P", SIZE))?;
    testbed.guest.run_ok("listening 7174")?;
    run_iwping_client(testbed, SIZE, ROUNDS)?;
    Ok(report)
}

/// Starts our client, and returns during its transfer.
fn start_our_transfer(testbed: &mut Testbed) -> io::Result<Running> {
    let line =
        format!("client {} -v -V -S {SIZE} --timeout {}", testbed.guest_addr(), TIMEOUT.as_secs());
    let mut client = testbed.start("iwping", &line)?;
    client.wait_for("ping data", CASE_TIMEOUT)?;
    std::thread::sleep(TRANSFER_TIME);
    Ok(client)
}

/// Checks that our client ends with an error in time, after some rounds.
fn expect_client_error(client: Running, since: Instant) -> io::Result<String> {
    let result = client.finish(TIMEOUT + TIMEOUT_SLACK)?;
    let code = result.status.and_then(|status| status.code());
    if code != Some(1) || !result.output.contains(" rounds of ") {
        return Err(program_error("iwping", &result));
    }
    let report = last_line(&result.output);
    Ok(format!("after {:.1} s {report}", since.elapsed().as_secs_f32()))
}

/// Returns the outcome of a client in the guest whose server has ended.
fn orphan_outcome(client: GuestCommand) -> io::Result<String> {
    let result = client.finish(TIMEOUT);
    match result.code {
        None => Ok("rping hangs".into()),
        // rping treats a disconnect as success.
        Some(0) if !result.output.contains("DISCONNECT") => {
            Err(failure(format!("rping continues: {result:?}")))
        }
        Some(code) => Ok(format!("rping ends with {code}")),
    }
}

fn link_down_under_server(testbed: &mut Testbed, seconds: u64) -> io::Result<String> {
    let mut server = our_server(testbed, TIMEOUT)?;
    let client = start_guest_transfer(testbed, &mut server)?;
    testbed.set_link(false)?;
    let began = Instant::now();
    let report = expect_server_report(&mut server, began)?;
    std::thread::sleep(Duration::from_secs(seconds).saturating_sub(began.elapsed()));
    testbed.set_link(true)?;
    // If the guest has something to retransmit, it now receives a RST.
    let orphan = orphan_outcome(client)?;
    expect_served(testbed)?;
    Ok(format!("{report}; {orphan} when the link is back after {seconds} s; the next is served"))
}

fn link_down_under_client(testbed: &mut Testbed, seconds: u64) -> io::Result<String> {
    let _server = testbed.guest.start(&rping_server(testbed, "-P", SIZE))?;
    testbed.guest.run_ok("listening 7174")?;
    let client = start_our_transfer(testbed)?;
    testbed.set_link(false)?;
    let began = Instant::now();
    let report = expect_client_error(client, began)?;
    std::thread::sleep(Duration::from_secs(seconds).saturating_sub(began.elapsed()));
    testbed.set_link(true)?;
    run_iwping_client(testbed, SIZE, ROUNDS)?;
    Ok(format!("{report}; after {seconds} s the next client is served"))
}

/// A link outage shorter than the timeouts of both ends only delays the transfer.
fn short_link_outage(testbed: &mut Testbed) -> io::Result<String> {
    let rounds = 1000;
    let mut server = our_server(testbed, OUTAGE_TIMEOUT)?;
    let client = testbed.guest.start(&rping_client(testbed, SIZE, rounds))?;
    server.wait_for("server ping data", CASE_TIMEOUT)?;
    testbed.set_link(false)?;
    std::thread::sleep(Duration::from_secs(2));
    testbed.set_link(true)?;
    expect_exit_ok("rping", &client.finish(CASE_TIMEOUT * 2))?;
    let report = server.output()?;
    if report.contains("failed") {
        return Err(failure(last_line(&report)));
    }
    Ok(format!("{rounds} rounds in spite of it"))
}

fn our_server_is_killed(testbed: &mut Testbed) -> io::Result<String> {
    let mut server = our_server(testbed, TIMEOUT)?;
    let client = start_guest_transfer(testbed, &mut server)?;
    testbed::kill(server)?;
    // The next server with this address sends a RST if the guest retransmits. Otherwise siw, which
    // has no keepalive, waits for ever.
    let _next = our_server(testbed, TIMEOUT)?;
    let report = orphan_outcome(client)?;
    expect_served(testbed)?;
    Ok(format!("{report}; our next server serves"))
}

fn our_client_is_killed(testbed: &mut Testbed) -> io::Result<String> {
    let _server = testbed.guest.start(&rping_server(testbed, "-P", SIZE))?;
    testbed.guest.run_ok("listening 7174")?;
    testbed::kill(start_our_transfer(testbed)?)?;
    run_iwping_client(testbed, SIZE, ROUNDS)?;
    Ok("rping -s -P serves our next client".into())
}
