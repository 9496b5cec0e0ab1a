//! The stack over emulated cards in a guest (`pci:`), bound to vfio-pci: against the stack over
//! `tap` on the host, and against siw, which has another card in the same guest.

use std::io;

use crate::interop::card::{
    CARD_TIMEOUT, CARDS, Card, E1000E, PATIENT, PEERS, Peer, PingServer, SIZE, VIRTIO,
    expect_rounds,
};
use crate::interop::cards_bulk;
use crate::interop::cards_failure;
use crate::interop::cards_refused::{refuse_cards, refuse_without_iommu};
use crate::interop::case::{CASE_TIMEOUT, Case, Route};
use crate::interop::ping::expect_exit_ok;
use crate::interop::testbed::{Testbed, last_line};

/// Rounds of a case.
const ROUNDS: u32 = 200;

/// Returns the cases of all cards: of two at once, then of one card after the other.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let both = Card { name: "two-cards", ..VIRTIO };
    for (path, route) in [("ipv4", Route::PLAIN), ("ipv6", Route::PLAIN.v6())] {
        cases.push(both.case(&format!("one-process/{path}"), route, two_cards));
    }
    let refused = |testbed: &mut Testbed| {
        refuse_cards(testbed)?;
        card_connects(testbed, Peer::Tap, "")
    };
    cases.push(both.case("refused", Route::PLAIN, refused));
    let lent = Card { name: "two-cards", ..E1000E };
    let host_program = |testbed: &mut Testbed| cards_bulk::host_program_listens(testbed);
    cases.push(lent.case("host-program", Route::PLAIN.mtu(9000), host_program));
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
        // Where an RTR message shifts the markers, one falls behind an FPDU of a full segment.
        // Wireshark takes it for a part of that FPDU, and its CRC for wrong.
        let options = "--markers --client-server";
        let markers = |testbed: &mut Testbed| card_connects(testbed, Peer::Tap, options);
        cases.push(card.case("markers", Route::PLAIN, markers));
        cases.extend(cards_bulk::cases(card));
        cases.extend(cards_failure::cases(card));
    }
    let unusable = Card { name: "no-iommu", ..E1000E };
    let refused = unusable.case("refused", Route::PLAIN, refuse_without_iommu);
    cases.push(refused.without_iommu().without_fpdus());
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
    let server = PingServer::start(testbed, peer, PATIENT)?;
    let addr = server.addr();
    let line = format!("client {addr} -V -S {SIZE} -C {ROUNDS} {PATIENT} {options}");
    let client = testbed.guest.run(&testbed.card_command("iwping", &line), CARD_TIMEOUT)?;
    expect_exit_ok("iwping", &client)?;
    server.finish()?;
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

/// Both cards in one process: a transfer between them, and another after the first card was closed
/// and opened again.
fn two_cards(testbed: &mut Testbed) -> io::Result<String> {
    let [first, second] = testbed.card_addrs();
    let devices = format!("pci:{} pci:{}", VIRTIO.bdf(), E1000E.bdf());
    let line = format!("two_devices {devices} --addresses {first} {second}");
    let result = testbed.guest.run(&line, CARD_TIMEOUT)?;
    expect_exit_ok("two_devices", &result)?;
    Ok(last_line(&result.output).to_owned())
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
