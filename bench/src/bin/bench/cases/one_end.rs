//! Time that each end of a transfer takes by itself: what it could reach alone on a core.
//!
//! Both ends share a core. The clock is read before and after each poll: one in which the port of
//! an end moved frames counts for that end.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ferrowarp::Context;

use super::{Case, Setup};
use crate::cores::on_core;
use crate::ring::{Pair, STREAM, STREAM_WARM_UP, config};
use crate::runner::{Figures, Group};

pub(crate) const CASE: Case =
    Case { name: "one-end", title: "One end alone", rounds: 9, seconds: 1.0, quick: (9, 0.3) };

/// Readings of the clock whose mean is its cost.
const CLOCK_READINGS: u32 = 1_000_000;
/// Figures of source and sink.
const FIGURES: [[&str; 2]; 2] = [
    ["source, ns per segment", "source alone, Gb/s"],
    ["sink, ns per segment", "sink alone, Gb/s"],
];

pub(crate) fn groups(setup: &Setup) -> Vec<Group> {
    let core = setup.cores[0];
    let group = |mtu| {
        Group::new("", format!("write-bw-64K-{mtu}-one"))
            .contender("ours", move |seconds| measure(mtu, core, seconds))
            .show("ours", FIGURES.as_flattened(), None)
    };
    [1500, 9000].map(group).into()
}

fn measure(mtu: u16, core: usize, seconds: f64) -> Result<Figures> {
    on_core(core, || {
        let clock_ns = clock_ns();
        let (left, right) = Context::ring_pair(config(1, mtu, 1), config(2, mtu, 1))?;
        let mut pair = Pair::connect(left, right)?;
        pair.run(STREAM_WARM_UP)?;
        let (completed, segments) = (pair.completed, pair.tcp_stats()?[0].segments_out);
        let mut busy_ns = [0.0; 2];
        let mut moved = [pair.source.frames(), pair.sink.frames()];
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs_f64(seconds) {
            for end in 0..2 {
                let began = Instant::now();
                let polled = if end == 0 { pair.poll_source() } else { pair.poll_sink() };
                let ns = began.elapsed().as_nanos() as f64 - clock_ns;
                polled?;
                let now = if end == 0 { pair.source.frames() } else { pair.sink.frames() };
                if now != moved[end] {
                    (moved[end], busy_ns[end]) = (now, busy_ns[end] + ns);
                }
            }
        }
        let bytes = (pair.completed - completed) * u64::from(STREAM.0);
        let segments = pair.tcp_stats()?[0].segments_out.wrapping_sub(segments);
        ensure!(bytes > 0 && segments > 0, "nothing was written: more --seconds");
        let of_end = |(busy_ns, [ns, gbit_s]): (f64, [&'static str; 2])| {
            [(ns, busy_ns / f64::from(segments)), (gbit_s, bytes as f64 * 8.0 / busy_ns)]
        };
        Ok(busy_ns.into_iter().zip(FIGURES).flat_map(of_end).collect())
    })
}

/// Returns the mean time of a reading of the clock in nanoseconds.
fn clock_ns() -> f64 {
    let start = Instant::now();
    let mut last = start;
    for _ in 0..CLOCK_READINGS {
        last = std::hint::black_box(Instant::now());
    }
    (last - start).as_nanos() as f64 / f64::from(CLOCK_READINGS)
}
