//! Failures of a card during a transfer: its link goes down and comes up again, or it is unplugged.

use std::io;
use std::time::{Duration, Instant};

use crate::interop::card::{
    CARD_TIMEOUT, Card, PATIENT, PEERS, Peer, SIZE, expect_rounds, serve_rping,
};
use crate::interop::case::Case;
use crate::interop::operation::{CASE_TIMEOUT, failure};
use crate::interop::ping::expect_exit_ok;
use crate::interop::route::Route;
use crate::interop::testbed::{CARD_BDF, Testbed, last_line, program_error};

/// Duration of an outage.
const OUTAGE: Duration = Duration::from_secs(2);

/// Returns the cases of a card.
pub(super) fn cases(card: Card) -> Vec<Case> {
    let mut cases = Vec::new();
    for (peer, name) in PEERS {
        let outage = move |testbed: &mut Testbed| link_outage(testbed, peer);
        let outage = card.case(&format!("link-for-2s/to-{name}"), Route::PLAIN, outage);
        cases.push(outage.expects_analysis(&["lost_segment", "keep_alive"]));
        let unplug = move |testbed: &mut Testbed| unplug(testbed, peer);
        let unplug = card.case(&format!("unplug/to-{name}"), Route::PLAIN, unplug);
        cases.push(unplug.expects_analysis(&["lost_segment"]));
    }
    cases
}

/// The card's link is down for a while in a transfer, which continues afterwards; both changes are
/// reported.
fn link_outage(testbed: &mut Testbed, peer: Peer) -> io::Result<String> {
    let patient = format!("{PATIENT} --user-timeout 60");
    let (server, rping, addr) = match peer {
        Peer::Tap => {
            let server =
                testbed.serve("iwping", &format!("server {patient}"), "waiting for clients")?;
            (Some(server), None, testbed.stack_addr())
        }
        Peer::Siw => (None, Some(serve_rping(testbed)?), testbed.guest_addr()),
    };
    let before = testbed.bytes_of_card()?;
    // It must not end before the outage. The other one emulates two processors that transfer.
    let rounds = if peer == Peer::Tap { 1500 } else { 600 };
    let line = format!("client {addr} -V -S {SIZE} -C {rounds} {patient}");
    let client = testbed.guest.start(&testbed.card_command("iwping", &line))?;
    // The link of some cards comes up in the moment before. Until this many rounds have passed, its
    // state has been read again.
    wait_for_bytes(testbed, before + u64::from(SIZE * rounds / 3))?;
    testbed.set_card_link(false)?;
    client.wait_for("the link is down", CASE_TIMEOUT)?;
    let sent = testbed.bytes_of_card()?;
    std::thread::sleep(OUTAGE);
    let sent_at_end = testbed.bytes_of_card()?;
    testbed.set_card_link(true)?;
    if sent != sent_at_end {
        return Err(failure(format!("{} bytes without a link", sent_at_end - sent)));
    }
    client.wait_for("the link is up", CASE_TIMEOUT)?;
    let client = client.finish(CARD_TIMEOUT);
    expect_exit_ok("iwping", &client)?;
    if let Some(server) = server {
        let server = server.finish(CASE_TIMEOUT)?;
        if !server.success() {
            return Err(program_error("iwping on the host", &server));
        }
    }
    if let Some(rping) = rping {
        expect_exit_ok("rping", &rping.finish(CASE_TIMEOUT))?;
    }
    let report = expect_rounds(&client.output, rounds)?;
    Ok(format!("{report}, in spite of an outage after {} bytes", sent - before))
}

/// Waits until the card has sent so many bytes since the network was made.
fn wait_for_bytes(testbed: &Testbed, count: u64) -> io::Result<()> {
    let deadline = Instant::now() + CARD_TIMEOUT;
    while testbed.bytes_of_card()? < count {
        if Instant::now() > deadline {
            return Err(failure("the transfer does not proceed"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The card is unplugged in a transfer: the connection ends in error, the program ends with one
/// line that says why, and the peer notices.
fn unplug(testbed: &mut Testbed, peer: Peer) -> io::Result<String> {
    let before = testbed.bytes_of_card()?;
    let (mut server, rping, addr) = match peer {
        Peer::Tap => {
            let line = "server -P --timeout 5 --keepalive 0.4 --user-timeout 5";
            let server = testbed.serve("iwping", line, "waiting for clients")?;
            (Some(server), None, testbed.stack_addr())
        }
        Peer::Siw => (None, Some(serve_rping(testbed)?), testbed.guest_addr()),
    };
    let line = format!("client {addr} -V -S {SIZE} {PATIENT}");
    let client = testbed.guest.start(&testbed.card_command("iwping", &line))?;
    wait_for_bytes(testbed, before + 10 * u64::from(SIZE))?;
    testbed.guest.monitor("device_del card0")?;
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
    if let Some(server) = &mut server {
        server.wait_for("a client failed", CASE_TIMEOUT)?;
    }
    let gone = format!(
        "for i in $(seq 200); do [ -e /sys/bus/pci/devices/{CARD_BDF} ] || exit 0; sleep 0.1; \
         done; exit 1"
    );
    testbed.guest.run_ok(&gone)?;
    // The kernel's TCP has no keepalive for it, so rping would wait for minutes.
    drop(rping);
    // The next case needs the card.
    testbed.guest.power_off()?;
    Ok(report)
}
