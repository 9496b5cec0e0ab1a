//! Peers that die, and links that go: the survivor notices in time and takes the next connection.

use std::io;
use std::time::{Duration, Instant};

use crate::interop::case::{Case, PATIENCE, Route, failure};
use crate::interop::guest::GuestCommand;
use crate::interop::lab::{self, Lab, failed, last_line};
use crate::interop::ping::{ended_well, our_client, rping_client, rping_server};
use crate::process::Running;

/// `--timeout` and `--user-timeout` of our programs here.
const TIMEOUT: Duration = Duration::from_secs(5);
/// `--keepalive` of our servers: a client may be silent between rounds, unless it is dead.
const KEEPALIVE: Duration = Duration::from_millis(400);
/// What they may take on top: the pause between two retransmissions, and the machine is busy.
const GRACE: Duration = Duration::from_secs(6);
/// Far more than there is time for.
const ENDLESS: u32 = 10_000_000;
/// Rounds that show that all is well.
const ROUNDS: u32 = 10;
/// Octets of a round.
const SIZE: u32 = 4096;
/// How long a transfer runs before something happens to it.
const UNDER_WAY: Duration = Duration::from_secs(2);

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
    let case = |name: &str, body: fn(&mut Lab) -> io::Result<String>| {
        Case::new(format!("deaths/{name}"), Route::PLAIN, body).explained(&UNANSWERED)
    };
    vec![
        case("guest-under-our-server", guest_dies_as_client).quick(true),
        case("guest-under-our-client", guest_dies_as_server),
        case("link-for-30s-under-our-server", |lab| link_goes_under_server(lab, 30)),
        case("link-for-8s-under-our-server", |lab| link_goes_under_server(lab, 8)).quick(true),
        case("link-for-30s-under-our-client", |lab| link_goes_under_client(lab, 30)),
        case("link-for-2s", link_blinks).quick(true),
        case("our-server", our_server_dies).quick(true),
        case("our-client", our_client_dies).quick(true),
    ]
}

fn our_server(lab: &mut Lab) -> io::Result<Running> {
    let (timeout, keepalive) = (TIMEOUT.as_secs(), KEEPALIVE.as_secs_f32());
    let line = format!(
        "server -P -v --timeout {timeout} --user-timeout {timeout} --keepalive {keepalive}"
    );
    lab.serve("iwping", &line, "waiting for clients")
}

/// A client in the guest, in mid-transfer.
fn endless_guest(lab: &Lab, server: &mut Running) -> io::Result<GuestCommand> {
    let client = lab.guest.start(&rping_client(lab, SIZE, ENDLESS))?;
    server.wait_for("server ping data", PATIENCE)?;
    std::thread::sleep(UNDER_WAY);
    Ok(client)
}

/// A client in the guest succeeds.
fn serves(lab: &Lab) -> io::Result<()> {
    ended_well("rping", &lab.guest.run(&rping_client(lab, SIZE, ROUNDS), PATIENCE)?)
}

/// Our server reports that a client failed, in time.
fn reports(server: &mut Running, since: Instant) -> io::Result<String> {
    server.wait_for("a client failed", TIMEOUT + GRACE)?;
    let output = server.output()?;
    let told = output.lines().find(|line| line.contains("a client failed")).unwrap_or_default();
    Ok(format!("after {:.1} s {told}", since.elapsed().as_secs_f32()))
}

fn guest_dies_as_client(lab: &mut Lab) -> io::Result<String> {
    let mut server = our_server(lab)?;
    let client = endless_guest(lab, &mut server)?;
    lab.guest.cut()?;
    let told = reports(&mut server, Instant::now())?;
    drop(client);
    lab.guest.boot_again()?;
    serves(lab)?;
    Ok(format!("{told}; the next guest is served"))
}

fn guest_dies_as_server(lab: &mut Lab) -> io::Result<String> {
    let server = lab.guest.start(&rping_server(lab, "-P", SIZE))?;
    lab.guest.does("listening 7174")?;
    let client = endless_client(lab)?;
    lab.guest.cut()?;
    let told = gives_up(client, Instant::now())?;
    drop(server);
    lab.guest.boot_again()?;
    let _server = lab.guest.start(&rping_server(lab, "-P", SIZE))?;
    lab.guest.does("listening 7174")?;
    our_client(lab, SIZE, ROUNDS)?;
    Ok(told)
}

/// A client of ours in mid-transfer.
fn endless_client(lab: &mut Lab) -> io::Result<Running> {
    let line = format!("client {} -v -V -S {SIZE} --timeout {}", lab.theirs(), TIMEOUT.as_secs());
    let mut client = lab.start("iwping", &line)?;
    client.wait_for("ping data", PATIENCE)?;
    std::thread::sleep(UNDER_WAY);
    Ok(client)
}

/// Our client ends with an error, in time, and after some rounds.
fn gives_up(client: Running, since: Instant) -> io::Result<String> {
    let ended = client.finish(TIMEOUT + GRACE)?;
    let code = ended.status.and_then(|status| status.code());
    if code != Some(1) || !ended.output.contains(" rounds of ") {
        return Err(failed("iwping", &ended));
    }
    let told = last_line(&ended.output);
    Ok(format!("after {:.1} s {told}", since.elapsed().as_secs_f32()))
}

/// What became of a client in the guest whose server is no more.
fn orphaned(client: GuestCommand) -> io::Result<String> {
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

fn link_goes_under_server(lab: &mut Lab, seconds: u64) -> io::Result<String> {
    let mut server = our_server(lab)?;
    let client = endless_guest(lab, &mut server)?;
    lab.link(false)?;
    let began = Instant::now();
    let told = reports(&mut server, began)?;
    std::thread::sleep(Duration::from_secs(seconds).saturating_sub(began.elapsed()));
    lab.link(true)?;
    // The guest learns now that nobody knows its connection, if it has something to send again.
    let orphan = orphaned(client)?;
    serves(lab)?;
    Ok(format!("{told}; {orphan} when the link is back after {seconds} s; the next is served"))
}

fn link_goes_under_client(lab: &mut Lab, seconds: u64) -> io::Result<String> {
    let _server = lab.guest.start(&rping_server(lab, "-P", SIZE))?;
    lab.guest.does("listening 7174")?;
    let client = endless_client(lab)?;
    lab.link(false)?;
    let began = Instant::now();
    let told = gives_up(client, began)?;
    std::thread::sleep(Duration::from_secs(seconds).saturating_sub(began.elapsed()));
    lab.link(true)?;
    our_client(lab, SIZE, ROUNDS)?;
    Ok(format!("{told}; after {seconds} s the next client is served"))
}

/// A link that comes back before anybody's patience ends costs nothing but time.
fn link_blinks(lab: &mut Lab) -> io::Result<String> {
    let rounds = 1000;
    let mut server = our_server(lab)?;
    let client = lab.guest.start(&rping_client(lab, SIZE, rounds))?;
    server.wait_for("server ping data", PATIENCE)?;
    lab.link(false)?;
    std::thread::sleep(Duration::from_secs(2));
    lab.link(true)?;
    ended_well("rping", &client.finish(PATIENCE * 2))?;
    let told = server.output()?;
    if told.contains("failed") {
        return Err(failure(last_line(&told)));
    }
    Ok(format!("{rounds} rounds in spite of it"))
}

fn our_server_dies(lab: &mut Lab) -> io::Result<String> {
    let mut server = our_server(lab)?;
    let client = endless_guest(lab, &mut server)?;
    lab::kill(server)?;
    // Whoever has the address next does not know the connection, and says so if he is asked: if
    // the guest has something to send again. Otherwise siw, which has no keepalive, waits for ever.
    let _next = our_server(lab)?;
    let told = orphaned(client)?;
    serves(lab)?;
    Ok(format!("{told}; our next server serves"))
}

fn our_client_dies(lab: &mut Lab) -> io::Result<String> {
    let _server = lab.guest.start(&rping_server(lab, "-P", SIZE))?;
    lab.guest.does("listening 7174")?;
    lab::kill(endless_client(lab)?)?;
    our_client(lab, SIZE, ROUNDS)?;
    Ok("rping -s -P serves our next client".into())
}
