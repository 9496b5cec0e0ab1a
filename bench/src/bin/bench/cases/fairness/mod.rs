//! Latency of short RDMA Writes beside other traffic, and the promise of the transmit path's
//! fairness rule: a connection that has something to send waits for one quantum of each of the
//! others, and for the frames handed to the port before.

mod bench;
mod hub;
mod traffic;

use clap::Args;

use self::bench::{ALLOWED, ALONE, BEFORE, BOUND, Bench, P50, P99, SEGMENT};
use self::traffic::Traffic;
use super::{Case, Setup, case};
use crate::cores::on_core;
use crate::model::Limit::{AtMost, EachAtMost};
use crate::runner::Group;

pub(crate) const CASE: Case =
    case!("fairness", "Latency beside other traffic", rounds: 9, seconds: 2.0, quick: (6, 0.4));

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
        let of = |figure| ("ours".to_owned(), figure);
        let title = format!("{} ({} outstanding each)", traffic.title, traffic.depth);
        let mut group = Group::new(title, format!("{}-one", traffic.name))
            .contender("ours", move |seconds| {
                on_core(core, || Bench::connect(&traffic, mtu)?.round(&traffic, mtu, seconds))
            })
            .compare_figures(of(BEFORE), of(ALLOWED), Some(EachAtMost(1.0)))
            .compare_figures(of(P99), of(BOUND), Some(AtMost(1.0)));
        for figure in [P50, ALONE, SEGMENT] {
            group = group.show("ours", figure, None);
        }
        group
    };
    traffic::all().into_iter().map(group).collect()
}
