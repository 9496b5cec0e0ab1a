//! Peers that die, and links that go: the survivor notices in time and takes the next connection.

use std::io;
use std::time::{Duration, Instant};

use crate::interop::case::{CASE_TIMEOUT, Case, Route, failure};
use crate::interop::guest::GuestCommand;
use crate::interop::ping::{expect_exit_ok, rping_client, rping_server, run_iwping_client};
use crate::interop::testbed::{self, Testbed, last_line, program_error};
use crate::process::Running;

/// `--timeout` and `--user-timeout` of our programs here.
const TIMEOUT: Duration = Duration::from_secs(5);
/// `--keepalive` of our servers: a client may be silent between rounds, unless it is dead.
const KEEPALIVE: Duration = Duration::from_millis(400);
/// What they may take on top: the pause between two retransmissions, and the machine is busy.
const TIMEOUT_SLACK: Duration = Duration::from_secs(6);
/// Far more than there is time for.
const UNBOUNDED_ROUNDS: u32 = 10_000_000;
/// Rounds that show that all is well.
const ROUNDS: u32 = 10;
/// Bytes of a round.
const SIZE: u32 = 4096;
/// How long a transfer runs before something happens to it.
const TRANSFER_TIME: Duration = Duration::from_secs(2);

/// What we send to a peer that is no more, and sends nothing. What is sent while the link is down
/// is not captured, and missed by the analysis afterwards; nor is what passes just as it comes up,
/// before the kernel has told the capture.
const UNANSWERED: [&str; 7] = [
    "retransmission",
    "fast_retransmission",
    "spurious_retransmission",
    "duplicate_ack",
    "keep_alive",
    "lost_segment",
    "ack_lost_segment",
];

/// Each end and the link between them, in mid-transfer, in both roles.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn(&mut Testbed) -> io::Result<String>| {
        Case::new(format!("peer-failure/{name}"), Route::PLAIN, body).expects_analysis(&UNANSWERED)
    };
    vec![
        case("guest-under-our-server", guest_client_fails).quick(true),
        case("guest-under-our-client", guest_server_fails),
        case("link-for-30s-under-our-server", |testbed| link_down_under_server(testbed, 30)),
        case("link-for-8s-under-our-server", |testbed| link_down_under_server(testbed, 8))
            .quick(true),
        case("link-for-30s-under-our-client", |testbed| link_down_under_client(testbed, 30)),
        case("link-for-2s", short_link_outage).quick(true),
        case("our-server", our_server_is_killed).quick(true),
        case("our-client", our_client_is_killed).quick(true),
    ]
}

fn our_server(testbed: &mut Testbed) -> io::Result<Running> {
    let (timeout, keepalive) = (TIMEOUT.as_secs(), KEEPALIVE.as_secs_f32());
    let line = format!(
        "server -P -v --timeout {timeout} --user-timeout {timeout} --keepalive {keepalive}"
    );
    testbed.serve("iwping", &line, "waiting for clients")
}

/// A client in the guest, in mid-transfer.
fn start_guest_transfer(testbed: &Testbed, server: &mut Running) -> io::Result<GuestCommand> {
    let client = testbed.guest.start(&rping_client(testbed, SIZE, UNBOUNDED_ROUNDS))?;
    server.wait_for("server ping data", CASE_TIMEOUT)?;
    std::thread::sleep(TRANSFER_TIME);
    Ok(client)
}

/// A client in the guest succeeds.
fn expect_served(testbed: &Testbed) -> io::Result<()> {
    expect_exit_ok("rping", &testbed.guest.run(&rping_client(testbed, SIZE, ROUNDS), CASE_TIMEOUT)?)
}

/// Our server reports that a client failed, in time.
fn expect_server_report(server: &mut Running, since: Instant) -> io::Result<String> {
    server.wait_for("a client failed", TIMEOUT + TIMEOUT_SLACK)?;
    let output = server.output()?;
    let report = output.lines().find(|line| line.contains("a client failed")).unwrap_or_default();
    Ok(format!("after {:.1} s {report}", since.elapsed().as_secs_f32()))
}

fn guest_client_fails(testbed: &mut Testbed) -> io::Result<String> {
    let mut server = our_server(testbed)?;
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

/// A client of ours in mid-transfer.
fn start_our_transfer(testbed: &mut Testbed) -> io::Result<Running> {
    let line =
        format!("client {} -v -V -S {SIZE} --timeout {}", testbed.guest_addr(), TIMEOUT.as_secs());
    let mut client = testbed.start("iwping", &line)?;
    client.wait_for("ping data", CASE_TIMEOUT)?;
    std::thread::sleep(TRANSFER_TIME);
    Ok(client)
}

/// Our client ends with an error, in time, and after some rounds.
fn expect_client_error(client: Running, since: Instant) -> io::Result<String> {
    let ended = client.finish(TIMEOUT + TIMEOUT_SLACK)?;
    let code = ended.status.and_then(|status| status.code());
    if code != Some(1) || !ended.output.contains(" rounds of ") {
        return Err(program_error("iwping", &ended));
    }
    let report = last_line(&ended.output);
    Ok(format!("after {:.1} s {report}", since.elapsed().as_secs_f32()))
}

/// What became of a client in the guest whose server is no more.
fn orphan_outcome(client: GuestCommand) -> io::Result<String> {
    let ended = client.finish(TIMEOUT);
    match ended.code {
        None => Ok("rping waits for ever".into()),
        // It takes this for a good end.
        Some(0) if !ended.output.contains("DISCONNECT") => {
            Err(failure(format!("rping goes on: {ended:?}")))
        }
        Some(code) => Ok(format!("rping ends with {code}")),
    }
}

fn link_down_under_server(testbed: &mut Testbed, seconds: u64) -> io::Result<String> {
    let mut server = our_server(testbed)?;
    let client = start_guest_transfer(testbed, &mut server)?;
    testbed.set_link(false)?;
    let began = Instant::now();
    let report = expect_server_report(&mut server, began)?;
    std::thread::sleep(Duration::from_secs(seconds).saturating_sub(began.elapsed()));
    testbed.set_link(true)?;
    // The guest learns now that nobody knows its connection, if it has something to send again.
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

/// A link that comes back before anybody's patience ends costs nothing but time.
fn short_link_outage(testbed: &mut Testbed) -> io::Result<String> {
    let rounds = 1000;
    let mut server = our_server(testbed)?;
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
    let mut server = our_server(testbed)?;
    let client = start_guest_transfer(testbed, &mut server)?;
    testbed::kill(server)?;
    // Whoever has the address next does not know the connection, and says so if he is asked: if
    // the guest has something to send again. Otherwise siw, which has no keepalive, waits for ever.
    let _next = our_server(testbed)?;
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
