//! Latency of short RDMA Writes beside other traffic, and the promise of the transmit path's
//! fairness rule: a connection that has something to send waits for one quantum of each of the
//! others, and for the frames handed to the port before.

mod bench;
mod hub;

use clap::Args;

use self::bench::{ALLOWED, ALONE, BEFORE, BOUND, Bench, P50, P99, SEGMENT};
use super::{Case, Setup};
use crate::cores::on_core;
use crate::model::Limit::{AtMost, EachAtMost};
use crate::runner::Group;

pub(crate) const CASE: Case = Case {
    name: "fairness",
    title: "Latency beside other traffic",
    rounds: 9,
    seconds: 2.0,
    quick: (6, 0.4),
};

#[derive(Args)]
pub(crate) struct Options {
    /// Competing queue pairs, instead of those of each kind of traffic
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=200))]
    qps: Option<u8>,
    /// MTU in bytes
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
}

pub(crate) fn groups(setup: &Setup, options: &Options) -> Vec<Group> {
    let (core, mtu) = (setup.cores[0], options.mtu);
    let group = |mut traffic: Traffic| {
        traffic.qps = options.qps.map_or(traffic.qps, usize::from);
        let title = format!("{} ({} outstanding each)", traffic.title, traffic.depth);
        Group::new(title, format!("{}-one", traffic.name))
            .contender("ours", move |seconds| {
                on_core(core, || Bench::connect(&traffic, mtu)?.round(&traffic, mtu, seconds))
            })
            .compare_figures(("ours", BEFORE), ("ours", ALLOWED), Some(EachAtMost(1.0)))
            .compare_figures(("ours", P99), ("ours", BOUND), Some(AtMost(1.0)))
            .show("ours", &[P50, ALONE, SEGMENT], None)
    };
    all_traffic().into_iter().map(group).collect()
}

/// Segments that a connection sends per pass, at most (`connection/tx.rs`).
const QUANTUM_SEGMENTS: usize = 16;
/// Bytes around a payload in an FPDU: ULPDU length, tagged header, CRC.
const FPDU_OVERHEAD_LEN: usize = 2 + 14 + 4;
/// Bytes of IP and TCP headers with timestamps, at IPv4.
const HEADERS_LEN: usize = 20 + 20 + 12;

/// Traffic beside the Writes whose latency is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Traffic {
    /// Name, by which `--rows` selects it.
    name: &'static str,
    title: &'static str,
    /// Whether each queue pair has a context and a port of its own, all connected to one sink.
    is_incast: bool,
    qps: usize,
    size: u32,
    depth: usize,
}

fn all_traffic() -> Vec<Traffic> {
    let kind =
        |name, title, qps, size, depth| Traffic { name, title, is_incast: false, qps, size, depth };
    vec![
        kind("stream", "1 MiB Writes on another queue pair", 1, 1 << 20, 16),
        kind("qps-64", "64-byte Writes on 1,000 queue pairs", 1000, 64, 16),
        kind("qps-64K", "64 KiB Writes on 1,000 queue pairs", 1000, 65_536, 2),
        Traffic {
            is_incast: true,
            ..kind("incast-64", "64-byte Writes of 31 other senders", 31, 64, 1)
        },
        Traffic {
            is_incast: true,
            ..kind("incast-64K", "64 KiB Writes of 31 other senders", 31, 65_536, 16)
        },
    ]
}

impl Traffic {
    /// Returns the segments that a queue pair sends when it is served, at most: a quantum, or all
    /// that it has outstanding.
    fn quantum(&self, mtu: u16) -> usize {
        let capacity = usize::from(mtu) - HEADERS_LEN;
        let outstanding = self.depth * (self.size as usize + FPDU_OVERHEAD_LEN);
        // A message that exceeds a segment has an FPDU in each.
        let segments = outstanding.div_ceil(capacity - FPDU_OVERHEAD_LEN);
        segments.min(QUANTUM_SEGMENTS)
    }
}
