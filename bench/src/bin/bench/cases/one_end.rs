//! Time that each end of a transfer takes by itself: what it could reach alone on a core.
//!
//! Both ends share a core. The clock is read between their polls.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Case, Setup, case, on_core};
use crate::ring::Pair;
use crate::ring::watched_port::Watch;
use crate::runner::{Figures, Group};

pub(crate) const CASE: Case =
    case!("one-end", "One end alone", rounds: 9, seconds: 1.0, quick: (9, 0.3));

const SIZE: u32 = 65_536;
/// Time before a measurement: slow start, and growth of the window.
const WARM_UP: Duration = Duration::from_millis(100);
/// Polls between two looks at the limit.
const POLLS_PER_CHECK: usize = 32;
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
        let name = format!("write-bw-64K-{mtu}-one");
        let mut group =
            Group::new("", name).contender("ours", move |seconds| measure(mtu, core, seconds));
        for figure in FIGURES.as_flattened() {
            group = group.show("ours", figure, None);
        }
        group
    };
    [1500, 9000].map(group).into()
}

fn measure(mtu: u16, core: usize, seconds: f64) -> Result<Figures> {
    on_core(core, || {
        let clock_ns = clock_ns();
        let mut pair = Pair::connect(mtu, SIZE, None)?;
        pair.run(WARM_UP)?;
        let (completed, segments) = (pair.completed, pair.tcp_stats()?[0].segments_out);
        let mut watches = pair.watches.each_ref().map(|watch| Stopwatch::new(watch, clock_ns));
        let start = Instant::now();
        let mut now = start;
        while now - start < Duration::from_secs_f64(seconds) {
            for _ in 0..POLLS_PER_CHECK {
                pair.poll_source()?;
                now = watches[0].stop(now);
                pair.poll_sink()?;
                now = watches[1].stop(now);
            }
        }
        let bytes = (pair.completed - completed) * u64::from(SIZE);
        let segments = pair.tcp_stats()?[0].segments_out.wrapping_sub(segments);
        ensure!(bytes > 0 && segments > 0, "nothing was written: more --seconds");
        let of_end = |(watch, names): (Stopwatch, [&'static str; 2])| {
            let [ns, gbit_s] = names;
            let busy_ns = watch.busy_ns;
            [(ns, busy_ns / f64::from(segments)), (gbit_s, bytes as f64 * 8.0 / busy_ns)]
        };
        Ok(watches.into_iter().zip(FIGURES).flat_map(of_end).collect())
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

/// Adds up the time of the polls that moved frames.
struct Stopwatch {
    clock_ns: f64,
    watch: Arc<Watch>,
    moved: u64,
    busy_ns: f64,
}

impl Stopwatch {
    fn new(watch: &Arc<Watch>, clock_ns: f64) -> Self {
        let moved = watch.moved.load(Ordering::Relaxed);
        Self { clock_ns, watch: Arc::clone(watch), moved, busy_ns: 0.0 }
    }

    /// Ends a poll, which began at `start`; returns the present.
    #[inline]
    fn stop(&mut self, start: Instant) -> Instant {
        let now = Instant::now();
        let moved = self.watch.moved.load(Ordering::Relaxed);
        if moved != self.moved {
            self.busy_ns += (now - start).as_nanos() as f64 - self.clock_ns;
            self.moved = moved;
        }
        now
    }
}
