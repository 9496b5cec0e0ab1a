//! The same runs over a bad path: netem in the guest, on what leaves it.

use crate::interop::case::{Case, Route};
use crate::interop::ping::{Server, run_rounds};

/// What netem does, in tc's words, and what it makes of our own segments in Wireshark's analysis.
///
/// A lost acknowledgement makes us send again (RACK and the tail probe do, without a timeout); a
/// lost or late segment of the peer makes us acknowledge out of order, which shows as duplicates.
pub const FAULTS: [(&str, &str, &[&str]); 4] = [
    ("loss", "loss 1%", &RECOVERING),
    ("reorder", "delay 5ms reorder 95% 50%", &RECOVERING),
    ("duplicate", "duplicate 1%", &DUPLICATED),
    ("jitter", "delay 5ms 2ms", &RECOVERING),
];

/// What comes of lost and late segments.
pub const RECOVERING: [&str; 6] = [
    "retransmission",
    "fast_retransmission",
    "spurious_retransmission",
    "out_of_order",
    "duplicate_ack",
    "ack_lost_segment",
];
/// A duplicate is answered at once, with D-SACK where it was wanted.
const DUPLICATED: [&str; 3] = ["duplicate_ack", "retransmission", "spurious_retransmission"];

/// Each fault, in both roles, over both versions of IP.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (fault, netem, explained) in FAULTS {
        for (server, name) in
            [(Server::Iwping, "rping-to-iwping"), (Server::Rping, "iwping-to-rping")]
        {
            for (size, rounds) in [(64, 1000), (65535, 200)] {
                let v6 = (server == Server::Iwping) == (size == 64);
                let route = if v6 { Route::PLAIN.v6() } else { Route::PLAIN }.netem(netem);
                let quick = fault == "loss" && server == Server::Iwping && size == 65535
                    || fault == "reorder" && server == Server::Rping && size == 65535;
                let rounds = if quick { 100 } else { rounds };
                let body = move |testbed: &mut _| run_rounds(testbed, server, size, rounds);
                let case = Case::new(format!("faults/{fault}/{name}/{size}"), route, body);
                cases.push(case.quick(quick).expects_analysis(explained));
            }
        }
    }
    cases
}
