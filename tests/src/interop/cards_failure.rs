//! Failures of a card during a transfer: its link goes down and comes up again, or it is unplugged.
//! And pauses of the whole guest: it is stopped and resumed, or restored from a snapshot.

use std::io;
use std::time::{Duration, Instant};

use crate::interop::card::{
    CARD_TIMEOUT, Card, PATIENT, PEERS, Peer, PingServer, SIZE, expect_rounds,
};
use crate::interop::cards_bulk::{Transfer, transfer_during};
use crate::interop::case::{CASE_TIMEOUT, Case, Route, failure};
use crate::interop::guest::GuestCommand;
use crate::interop::ping::expect_exit_ok;
use crate::interop::testbed::{Testbed, last_line};

/// Duration of an outage.
const OUTAGE: Duration = Duration::from_secs(2);

/// Time for which the guest is stopped.
const PAUSE: Duration = Duration::from_secs(5);
/// Time for the monitor to restore the guest.
const RESTORE: Duration = Duration::from_secs(5);
/// Transfer with a pause in it. Its program waits for less time than the pause lasts.
const LONG: Transfer =
    Transfer { size: 100_001, messages: 100, qps: 2, depth: 8, timeout: "--timeout 3" };

/// Returns the cases of a card, those after which the guest has to be booted last.
pub(super) fn cases(card: Card) -> Vec<Case> {
    let mut cases = Vec::new();
    for (peer, name) in PEERS {
        let outage = move |testbed: &mut Testbed| link_outage(testbed, peer);
        let outage = card.case(&format!("link-for-2s/to-{name}"), Route::PLAIN, outage);
        cases.push(outage.expects_analysis(&["lost_segment", "keep_alive"]));
    }
    if card.name == "virtio" {
        cases.push(card.case("stopped-for-5s/to-tap", Route::PLAIN, stopped_guest));
        let restored = |testbed: &mut Testbed| {
            let outcome = restored_guest(testbed);
            // The host has seen commands that the guest does not know of.
            testbed.guest.power_off()?;
            outcome
        };
        cases.push(card.case("restored/to-siw", Route::PLAIN, restored));
    }
    for (peer, name) in PEERS {
        let unplug = move |testbed: &mut Testbed| {
            let outcome = unplug(testbed, peer);
            // The next case needs the card.
            testbed.guest.power_off()?;
            outcome
        };
        let unplug = card.case(&format!("unplug/to-{name}"), Route::PLAIN, unplug);
        cases.push(unplug.expects_analysis(&["lost_segment"]));
    }
    cases
}

/// The card's link is down for a while in a transfer, which continues afterwards; both changes are
/// reported.
fn link_outage(testbed: &mut Testbed, peer: Peer) -> io::Result<String> {
    let patient = format!("{PATIENT} --user-timeout 60");
    let server = PingServer::start(testbed, peer, &patient)?;
    let before = testbed.bytes_of_card()?;
    // It must not end before the outage. The other one emulates two processors that transfer.
    let rounds = if peer == Peer::Tap { 900 } else { 600 };
    let line = format!("client {} -V -S {SIZE} -C {rounds} {patient}", server.addr());
    let client = testbed.guest.start(&testbed.card_command("iwping", &line))?;
    // The link of some cards comes up in the moment before the first round. The stack reads its
    // state every 0.1 s, and these rounds take a multiple of that.
    wait_for_bytes(testbed, &client, before + u64::from(SIZE * rounds / 3))?;
    testbed.set_card_link(false)?;
    client.wait_for("the link is down", CASE_TIMEOUT)?;
    let passed = testbed.bytes_of_card()?;
    std::thread::sleep(OUTAGE);
    let passed_at_end = testbed.bytes_of_card()?;
    testbed.set_card_link(true)?;
    if passed != passed_at_end {
        return Err(failure(format!("{} bytes without a link", passed_at_end - passed)));
    }
    client.wait_for("the link is up", CASE_TIMEOUT)?;
    let client = client.finish(CARD_TIMEOUT);
    expect_exit_ok("iwping", &client)?;
    server.finish()?;
    let report = expect_rounds(&client.output, rounds)?;
    Ok(format!("{report}, in spite of an outage after {} bytes", passed - before))
}

/// The guest is stopped in a transfer, for longer than its program waits for a peer, and resumed:
/// the transfer goes on.
fn stopped_guest(testbed: &mut Testbed) -> io::Result<String> {
    transfer_in_pauses(testbed, Peer::Tap, |testbed, client| {
        testbed.guest.monitor("stop")?;
        std::thread::sleep(PAUSE);
        expect_running(client)?;
        testbed.guest.monitor("cont")
    })
}

/// The guest is restored from a snapshot in a transfer between its cards: both ends go on from
/// there, and frames of the time that no longer counts do no harm. The guest's clock jumps ahead by
/// that time: QEMU's emulated TSC never goes back.
fn restored_guest(testbed: &mut Testbed) -> io::Result<String> {
    transfer_in_pauses(testbed, Peer::Siw, |testbed, client| {
        testbed.guest.monitor("savevm running")?;
        let saved_at = testbed.bytes_of_card()?;
        wait_for_bytes(testbed, client, saved_at + LONG.bytes() / 8)?;
        testbed.guest.run_ok("touch /forgotten")?;
        expect_running(client)?;
        testbed.guest.monitor("loadvm running")?;
        std::thread::sleep(RESTORE);
        testbed.guest.run_ok("[ ! -e /forgotten ]").map(|_| ())
    })
}

/// Checks that a transfer has not ended before it was disturbed.
fn expect_running(client: &GuestCommand) -> io::Result<()> {
    if client.has_ended() {
        return Err(failure(format!("the transfer has ended: {}", client.output().trim())));
    }
    Ok(())
}

/// Runs a transfer over the card, with a pause of the guest in it. Returns a summary, with the
/// clock that the program in the guest has read.
fn transfer_in_pauses(
    testbed: &mut Testbed,
    peer: Peer,
    pause: impl FnOnce(&mut Testbed, &GuestCommand) -> io::Result<()>,
) -> io::Result<String> {
    let before = testbed.bytes_of_card()?;
    let results = transfer_during(testbed, peer, LONG, "write-bw", |testbed, client| {
        // The card sends half of all.
        wait_for_bytes(testbed, client, before + LONG.bytes() / 4)?;
        pause(testbed, client)
    })?;
    let clock = results.lines().find_map(|line| line.trim().strip_prefix("\"clock\": \""));
    let clock = clock.ok_or_else(|| failure("iwperf does not name its clock"))?;
    Ok(format!("{}; {}", LONG.expect_verified(&results)?, clock.trim_end_matches(['"', ','])))
}

/// Waits until the card has sent so many bytes since the network was made.
fn wait_for_bytes(testbed: &Testbed, client: &GuestCommand, count: u64) -> io::Result<()> {
    let deadline = Instant::now() + CARD_TIMEOUT;
    while testbed.bytes_of_card()? < count {
        expect_running(client)?;
        if Instant::now() > deadline {
            let output = client.output();
            return Err(failure(format!("the transfer does not proceed: {}", output.trim())));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The card is unplugged in a transfer: the connection ends in error, the program ends with one
/// line that says why, and `iwping server` notices. rping does not: the kernel's TCP has no
/// keepalive for it.
fn unplug(testbed: &mut Testbed, peer: Peer) -> io::Result<String> {
    let before = testbed.bytes_of_card()?;
    let options = "-P --timeout 10 --keepalive 0.8 --user-timeout 10";
    let mut server = PingServer::start(testbed, peer, options)?;
    let line = format!("client {} -V -S {SIZE} {PATIENT}", server.addr());
    let client = testbed.guest.start(&testbed.card_command("iwping", &line))?;
    wait_for_bytes(testbed, &client, before + 10 * u64::from(SIZE))?;
    testbed.unplug_card()?;
    // The guest's kernel waits five seconds before it asks for the card.
    let result = client.finish(CARD_TIMEOUT);
    let report = last_line(&result.output).to_owned();
    if result.code != Some(1) || !report.ends_with("the device was removed") {
        return Err(failure(format!("iwping: {:?}: {}", result.code, result.output.trim())));
    }
    let is_rest = |line: &&str| !line.contains(" rounds of ");
    if result.output.lines().filter(is_rest).count() != 1 {
        return Err(failure(format!("more than a line: {}", result.output.trim())));
    }
    if let PingServer::Host(_, server) = &mut server {
        server.wait_for("a client failed", CASE_TIMEOUT)?;
    }
    let bdf = testbed.card_bdf();
    let gone = format!(
        "for i in $(seq 200); do [ -e /sys/bus/pci/devices/{bdf} ] || exit 0; sleep 0.1; \
         done; exit 1"
    );
    testbed.guest.run_ok(&gone)?;
    Ok(report)
}
