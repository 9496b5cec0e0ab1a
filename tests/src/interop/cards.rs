//! The stack over emulated cards in a guest (`pci:`), bound to vfio-pci: against the stack over
//! `tap` on the host, and against siw, which has another card in the same guest.

use std::io;
use std::time::Duration;

use crate::interop::cards_bulk;
use crate::interop::case::Case;
use crate::interop::faults::RECOVERING;
use crate::interop::operation::{CASE_TIMEOUT, failure};
use crate::interop::ping::expect_exit_ok;
use crate::interop::route::{Route, Version};
use crate::interop::testbed::{Testbed, last_line, program_error};

/// Rounds of a case, and bytes per round: several segments with each MTU.
const ROUNDS: u32 = 200;
const SIZE: u32 = 20_000;
/// Rounds of a case during which the link fails: it must not end before.
const ROUNDS_OF_OUTAGE: u32 = 5000;
/// Timeout of a workload on a busy machine: the guest is emulated, and polls.
pub(super) const CARD_TIMEOUT: Duration = Duration::from_secs(240);
/// Option of the programs: an end may be descheduled for seconds.
pub(super) const PATIENT: &str = "--timeout 60";
/// Duration of an outage.
const OUTAGE: Duration = Duration::from_secs(2);
/// Port of rping.
const PORT: u16 = 7174;

/// A configuration of a guest's cards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Card {
    /// Name in cases.
    pub name: &'static str,
    /// `--card` of `scripts/nic-guest`.
    pub options: &'static [&'static str],
    /// Packets above 1500 bytes can be received: QEMU's vmxnet3 drops them.
    pub has_jumbo: bool,
}

/// A guest is booted once for each.
const CARDS: [Card; 4] = [
    Card { name: "virtio", options: &["virtio"], has_jumbo: true },
    Card { name: "virtio-2-queues", options: &["virtio:queues=2"], has_jumbo: true },
    Card { name: "e1000e", options: &["e1000e"], has_jumbo: true },
    Card { name: "vmxnet3", options: &["vmxnet3"], has_jumbo: false },
];

impl Card {
    /// Returns a case with this card. The queues of the interfaces between both ends may overflow.
    pub(super) fn case(
        &self,
        what: &str,
        route: Route,
        body: impl Fn(&mut Testbed) -> io::Result<String> + 'static,
    ) -> Case {
        Case::new(format!("cards/{}/{what}", self.name), route, body)
            .with_cards(self.options)
            .expects_analysis(&RECOVERING)
            .expects_analysis(&["window_full"])
    }
}

/// The other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// The stack over `tap` on the host.
    Tap,
    /// siw in the same guest.
    Siw,
}

pub(super) const PEERS: [(Peer, &str); 2] = [(Peer::Tap, "tap"), (Peer::Siw, "siw")];

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
                let plain = route == Route::PLAIN && peer == Peer::Tap;
                let other = route == other_route(card) && peer == Peer::Siw;
                cases
                    .push(card.case(&format!("ping/{path}/to-{name}"), route, client).quick(plain));
                cases.push(
                    card.case(&format!("ping/{path}/from-{name}"), route, server).quick(other),
                );
            }
        }
        let markers = |testbed: &mut Testbed| card_connects(testbed, Peer::Tap, "--markers");
        cases.push(card.case("markers", Route::PLAIN, markers).quick(card.name == "vmxnet3"));
        cases.extend(cards_bulk::cases(card));
        let outage = card.case("link-for-2s", Route::PLAIN, link_outage);
        cases.push(
            outage.quick(card.name == "e1000e").expects_analysis(&["lost_segment", "keep_alive"]),
        );
    }
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

/// The path that differs most from the plain one.
pub(super) fn other_route(card: Card) -> Route {
    if card.has_jumbo { Route::PLAIN.v6().mtu(9000) } else { Route::PLAIN.v6() }
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

/// The card's link is down for a while in a transfer, which continues afterwards.
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
    let report = expect_rounds(&client.output, ROUNDS_OF_OUTAGE)?;
    Ok(format!("{report}, in spite of an outage after {served}"))
}

fn served_rounds(output: &str) -> usize {
    output.lines().filter(|line| line.starts_with("server ping")).count()
}

/// Returns the option of siw_peer for the IP version of the path.
pub(super) fn family_option(testbed: &Testbed) -> &'static str {
    if testbed.route().version == Version::V6 { "--ipv6" } else { "" }
}
