//! The stack over emulated cards in a guest (`pci:`), bound to vfio-pci: against the stack over
//! `tap` on the host, and against siw, which has another card in the same guest.

use std::io;
use std::time::Duration;

use crate::interop::card::{CARD_TIMEOUT, CARDS, Card, PATIENT, PEERS, Peer};
use crate::interop::cards_bulk;
use crate::interop::cards_refused::refuse_cards;
use crate::interop::case::Case;
use crate::interop::operation::{CASE_TIMEOUT, failure};
use crate::interop::ping::expect_exit_ok;
use crate::interop::route::Route;
use crate::interop::testbed::{CARD_BDF, SECOND_CARD_BDF, Testbed, last_line, program_error};

/// Rounds of a case, and bytes per round: several segments with each MTU.
const ROUNDS: u32 = 200;
const SIZE: u32 = 20_000;
/// Rounds of a case during which the link fails: it must not end before.
const ROUNDS_OF_OUTAGE: u32 = 1000;
/// Duration of an outage.
const OUTAGE: Duration = Duration::from_secs(2);
/// Port of rping.
const PORT: u16 = 7174;

/// Returns the cases of all cards, those of each in succession.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for card in CARDS {
        for route in routes(card) {
            let path = route.to_string().replace(' ', "-").to_lowercase();
            for (peer, name) in PEERS {
                let client = move |testbed: &mut Testbed| card_connects(testbed, peer, "");
                let server = move |testbed: &mut Testbed| card_listens(testbed, peer);
                cases.push(card.case(&format!("ping/{path}/to-{name}"), route, client));
                cases.push(card.case(&format!("ping/{path}/from-{name}"), route, server));
            }
        }
        let markers = |testbed: &mut Testbed| card_connects(testbed, Peer::Tap, "--markers");
        cases.push(card.case("markers", Route::PLAIN, markers));
        cases.extend(cards_bulk::cases(card));
        let outage = card.case("link-for-2s", Route::PLAIN, link_outage);
        cases.push(outage.expects_analysis(&["lost_segment", "keep_alive"]));
        let unplug = card.case("unplug", Route::PLAIN, unplug);
        cases.push(unplug.expects_analysis(&["lost_segment"]));
    }
    let both = Card { name: "two-cards", options: &["virtio", "e1000e"], ..CARDS[0] };
    for (path, route) in [("ipv4", Route::PLAIN), ("ipv6", Route::PLAIN.v6())] {
        cases.push(both.case(&format!("one-process/{path}"), route, two_cards));
    }
    let refused = |testbed: &mut Testbed| {
        refuse_cards(testbed)?;
        card_connects(testbed, Peer::Tap, "")
    };
    cases.push(both.case("refused", Route::PLAIN, refused));
    cases
}

fn routes(card: Card) -> Vec<Route> {
    let (v4, v6) = (Route::PLAIN, Route::PLAIN.v6());
    let mut routes = vec![v4, v6];
    if card.has_jumbo {
        routes.extend([v4.mtu(9000), v6.mtu(9000)]);
    }
    routes
}

/// Runs verified rounds of `iwping client` over the card.
fn card_connects(testbed: &mut Testbed, peer: Peer, options: &str) -> io::Result<String> {
    let (server, rping, addr) = match peer {
        Peer::Tap => {
            let line = format!("server {PATIENT}");
            let server = testbed.serve("iwping", &line, "waiting for clients")?;
            (Some(server), None, testbed.stack_addr())
        }
        Peer::Siw => {
            let addr = testbed.guest_addr();
            let rping = testbed.guest.start(&format!("rping -s -a {addr} -S {SIZE}"))?;
            testbed.guest.run_ok(&format!("listening {PORT}"))?;
            (None, Some(rping), addr)
        }
    };
    let line = format!("client {addr} -V -S {SIZE} -C {ROUNDS} {PATIENT} {options}");
    let client = testbed.guest.run(&testbed.card_command("iwping", &line), CARD_TIMEOUT)?;
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
    expect_rounds(&client.output, ROUNDS)
}

/// Runs verified rounds of a client of `iwping server` over the card.
fn card_listens(testbed: &mut Testbed, peer: Peer) -> io::Result<String> {
    let line = testbed.card_command("iwping", &format!("server {PATIENT}"));
    let server = testbed.guest.start(&line)?;
    server.wait_for("waiting for clients", CASE_TIMEOUT)?;
    let addr = testbed.card_addr();
    let outcome = match peer {
        Peer::Tap => {
            let line = format!("client {addr} -V -S {SIZE} -C {ROUNDS} {PATIENT}");
            let output = testbed.run_ok("iwping", &line, CARD_TIMEOUT)?;
            expect_rounds(&output, ROUNDS)?
        }
        Peer::Siw => {
            let line = format!("rping -c -V -a {addr} -S {SIZE} -C {ROUNDS}");
            expect_exit_ok("rping", &testbed.guest.run(&line, CARD_TIMEOUT)?)?;
            format!("{ROUNDS} rounds of {SIZE}")
        }
    };
    expect_exit_ok("iwping", &server.finish(CASE_TIMEOUT))?;
    Ok(outcome)
}

/// Checks that iwping reports these rounds, and returns a summary.
fn expect_rounds(report: &str, rounds: u32) -> io::Result<String> {
    if !report.contains(&format!("{rounds} rounds of {SIZE} bytes, every byte verified")) {
        return Err(failure(format!("iwping: {}", last_line(report))));
    }
    let median = report.split("median ").nth(1).and_then(|rest| rest.split(' ').next());
    Ok(format!("{rounds} rounds of {SIZE}, median {} usec", median.unwrap_or("?")))
}

/// The card's link is down for a while in a transfer, which continues afterwards; both changes are
/// reported.
fn link_outage(testbed: &mut Testbed) -> io::Result<String> {
    let line = format!("server -v {PATIENT} --user-timeout 60");
    let mut server = testbed.serve("iwping", &line, "waiting for clients")?;
    let addr = testbed.stack_addr();
    let line =
        format!("client {addr} -V -S {SIZE} -C {ROUNDS_OF_OUTAGE} {PATIENT} --user-timeout 60");
    let client = testbed.guest.start(&testbed.card_command("iwping", &line))?;
    server.wait_for("server ping data", CASE_TIMEOUT)?;
    testbed.set_card_link(false)?;
    // Frames that have passed the card already.
    std::thread::sleep(OUTAGE / 2);
    let served = served_rounds(&server.output()?);
    std::thread::sleep(OUTAGE);
    let served_at_end = served_rounds(&server.output()?);
    testbed.set_card_link(true)?;
    if served == 0 || served != served_at_end {
        return Err(failure(format!("{served} rounds, and {served_at_end} without a link")));
    }
    let client = client.finish(CARD_TIMEOUT);
    expect_exit_ok("iwping", &client)?;
    for state in ["the link is down", "the link is up"] {
        if !client.output.contains(state) {
            return Err(failure(format!("iwping does not report that {state}")));
        }
    }
    let report = expect_rounds(&client.output, ROUNDS_OF_OUTAGE)?;
    Ok(format!("{report}, in spite of an outage after {served}"))
}

fn served_rounds(output: &str) -> usize {
    output.lines().filter(|line| line.starts_with("server ping")).count()
}

/// Both cards in one process: a transfer between them, and another after the first card was closed
/// and opened again.
fn two_cards(testbed: &mut Testbed) -> io::Result<String> {
    let [first, second] = testbed.card_addrs();
    let line =
        format!("two_devices pci:{CARD_BDF} pci:{SECOND_CARD_BDF} --addresses {first} {second}");
    let result = testbed.guest.run(&line, CARD_TIMEOUT)?;
    expect_exit_ok("two_devices", &result)?;
    Ok(last_line(&result.output).to_owned())
}

/// The card is unplugged in a transfer: the connection ends in error, the program ends with one
/// line that says why, and the peer notices.
fn unplug(testbed: &mut Testbed) -> io::Result<String> {
    let line = "server -P -v --timeout 5 --keepalive 0.4 --user-timeout 5";
    let mut server = testbed.serve("iwping", line, "waiting for clients")?;
    let line = format!("client {} -V -S {SIZE} {PATIENT}", testbed.stack_addr());
    let client = testbed.guest.start(&testbed.card_command("iwping", &line))?;
    server.wait_for("server ping data", CASE_TIMEOUT)?;
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
    server.wait_for("a client failed", CASE_TIMEOUT)?;
    let gone = format!(
        "for i in $(seq 200); do [ -e /sys/bus/pci/devices/{CARD_BDF} ] || exit 0; sleep 0.1; \
         done; exit 1"
    );
    testbed.guest.run_ok(&gone)?;
    // The next case needs the card.
    testbed.guest.power_off()?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use crate::interop::card::QUICK;

    #[test]
    fn quick_matrix_has_the_cases_listed() {
        let cases = super::cases();
        let quick = cases.iter().filter(|case| case.is_quick);
        assert_eq!(quick.count(), QUICK.len());
    }
}
