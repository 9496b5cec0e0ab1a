//! Pings over paths with loss, reordering, duplication and jitter: netem at the guest's egress.

use crate::interop::case::{Case, Route};
use crate::interop::ping::{Server, run_rounds};

/// Name of the fault, options of netem in tc's syntax, and the flags it may cause for our segments
/// in Wireshark's analysis.
///
/// A lost ACK makes us retransmit (RACK-TLP, without an RTO); a lost or reordered segment of the
/// peer makes us send duplicate ACKs.
pub const FAULTS: [(&str, &str, &[&str]); 4] = [
    ("loss", "loss 1%", &RECOVERING),
    ("reorder", "delay 5ms reorder 95% 50%", &RECOVERING),
    ("duplicate", "duplicate 1%", &DUPLICATED),
    ("jitter", "delay 5ms 2ms", &RECOVERING),
];

/// Flags caused by lost and reordered segments.
pub const RECOVERING: [&str; 6] = [
    "retransmission",
    "fast_retransmission",
    "spurious_retransmission",
    "out_of_order",
    "duplicate_ack",
    "ack_lost_segment",
];
/// Flags caused by duplicates: each is acknowledged at once, with D-SACK if negotiated.
const DUPLICATED: [&str; 3] = ["duplicate_ack", "retransmission", "spurious_retransmission"];

/// Returns a case for each fault in both roles, over both IP versions.
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
