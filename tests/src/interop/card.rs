//! Emulated cards: those that the guest has, and what their cases share.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use crate::interop::case::{CASE_TIMEOUT, Case, Route, Version, failure};
use crate::interop::faults::RECOVERING;
use crate::interop::guest::{self, GuestCommand};
use crate::interop::ping::expect_exit_ok;
use crate::interop::testbed::{Testbed, last_line, program_error};
use crate::process::Running;

/// Timeout of a workload on a busy machine: the guest is emulated, and polls.
pub(super) const CARD_TIMEOUT: Duration = Duration::from_secs(240);
/// Option of the programs: an end may be descheduled for seconds.
pub(super) const PATIENT: &str = "--timeout 60";

/// Bytes of a round of iwping: several segments with each MTU.
pub(super) const SIZE: u32 = 20_000;
/// Port of rping.
const RPING_PORT: u16 = 7174;

/// A card of the guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Card {
    /// Name in cases.
    pub name: &'static str,
    /// Its place in [`GUEST_CARDS`](crate::interop::guest::GUEST_CARDS).
    pub number: usize,
    /// Packets above 1500 bytes can be received: QEMU's vmxnet3 drops them.
    pub has_jumbo: bool,
    /// iwperf's name of the checksums that the card computes.
    pub checksum: &'static str,
    /// The card cuts frames into TCP segments.
    pub has_tso: bool,
}

/// The checksum of TCP, but not of the IPv4 header.
const TCP: &str = "offload (TCP)";

pub(super) const VIRTIO: Card =
    Card { name: "virtio", number: 0, has_jumbo: true, checksum: TCP, has_tso: true };
const VIRTIO_2_QUEUES: Card = Card { name: "virtio-2-queues", number: 1, ..VIRTIO };
pub(super) const E1000E: Card =
    Card { name: "e1000e", number: 2, has_jumbo: true, checksum: "offload", has_tso: false };
const VMXNET3: Card =
    Card { name: "vmxnet3", number: 3, has_jumbo: false, checksum: TCP, has_tso: true };
pub(super) const CARDS: [Card; 4] = [VIRTIO, VIRTIO_2_QUEUES, E1000E, VMXNET3];

/// Cases of the quick matrix: each card, and most kinds of case, once, with one boot.
pub(super) const QUICK: [&str; 9] = [
    "cards/two-cards/one-process/ipv4",
    "cards/two-cards/host-program",
    "cards/virtio/ping/ipv4-1500/to-tap",
    "cards/virtio/checksums/offloaded/ipv4",
    "cards/virtio-2-queues/shards/ipv6/to-tap",
    "cards/e1000e/ping/ipv6-9000/from-siw",
    "cards/e1000e/link-for-2s/to-tap",
    "cards/vmxnet3/markers",
    "cards/vmxnet3/unplug/to-tap",
];

impl Card {
    /// Returns its PCI address.
    pub(super) fn bdf(&self) -> String {
        guest::card_bdf(self.number)
    }

    /// Returns a case with this card. The queues of the interfaces between both ends may overflow.
    pub(super) fn case(
        &self,
        what: &str,
        route: Route,
        body: impl Fn(&mut Testbed) -> io::Result<String> + 'static,
    ) -> Case {
        let name = format!("cards/{}/{what}", self.name);
        let is_quick = QUICK.contains(&name.as_str());
        Case::new(name, route, body)
            .quick(is_quick)
            .with_card(self.number)
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

/// The path that differs most from the plain one.
pub(super) fn other_route(card: Card) -> Route {
    if card.has_jumbo { Route::PLAIN.v6().mtu(9000) } else { Route::PLAIN.v6() }
}

/// Returns the option of siw_peer for the IP version of the path.
pub(super) fn family_option(testbed: &Testbed) -> &'static str {
    if testbed.route().version == Version::V6 { "--ipv6" } else { "" }
}

/// The other end of rounds that `iwping client` makes over the card.
pub(super) enum PingServer {
    /// `iwping server` on the host, at this address.
    Host(IpAddr, Running),
    /// rping on siw, at this address.
    Siw(IpAddr, GuestCommand),
}

impl PingServer {
    /// Starts it with these options of `iwping server`.
    pub(super) fn start(testbed: &mut Testbed, peer: Peer, options: &str) -> io::Result<Self> {
        match peer {
            Peer::Tap => {
                let line = format!("server {options}");
                let server = testbed.serve("iwping", &line, "waiting for clients")?;
                Ok(Self::Host(testbed.stack_addr(), server))
            }
            Peer::Siw => {
                let addr = testbed.guest_addr();
                let rping = testbed.guest.start(&format!("rping -s -a {addr} -S {SIZE}"))?;
                testbed.guest.run_ok(&format!("listening {RPING_PORT}"))?;
                Ok(Self::Siw(addr, rping))
            }
        }
    }

    pub(super) fn addr(&self) -> IpAddr {
        match self {
            Self::Host(addr, _) | Self::Siw(addr, _) => *addr,
        }
    }

    /// Expects it to end with success.
    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Self::Host(_, server) => {
                let server = server.finish(CASE_TIMEOUT)?;
                if server.success() {
                    return Ok(());
                }
                Err(program_error("iwping on the host", &server))
            }
            Self::Siw(_, rping) => expect_exit_ok("rping", &rping.finish(CASE_TIMEOUT)),
        }
    }
}

/// Checks that iwping reports these rounds, and returns a summary.
pub(super) fn expect_rounds(report: &str, rounds: u32) -> io::Result<String> {
    if !report.contains(&format!("{rounds} rounds of {SIZE} bytes, every byte verified")) {
        return Err(failure(format!("iwping: {}", last_line(report))));
    }
    let median = report.split("median ").nth(1).and_then(|rest| rest.split(' ').next());
    Ok(format!("{rounds} rounds of {SIZE}, median {} usec", median.unwrap_or("?")))
}
