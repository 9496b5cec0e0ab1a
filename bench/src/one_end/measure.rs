//! RDMA Writes from one end to the other, with the time of each poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use core_affinity::CoreId;
use ferrowarp::Context;
use ferrowarp::device::{DeviceSpec, OpenConfig, open, register_current_thread};

use super::port::CountingPort;
use crate::ring_end::{End, Write, config};

/// Outstanding Writes.
const DEPTH: usize = 128;
/// Time before a measurement: slow start, and growth of the window.
const WARM_UP: Duration = Duration::from_millis(100);
/// Polls between two looks at the clock's limit.
const POLLS_PER_CHECK: usize = 32;
/// Readings of the clock whose mean is its cost.
const CLOCK_READINGS: u32 = 1_000_000;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Setup {
    /// MTU in bytes.
    pub mtu: u16,
    /// Bytes per Write.
    pub size: u32,
    /// Cores of source and sink, one if they share it.
    pub cores: Vec<usize>,
}

/// Time of an end's polls in nanoseconds, without that of the clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollTimes {
    /// Of those that moved frames.
    pub busy_ns: f64,
    /// Of the others.
    pub idle_ns: f64,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    /// Time of the run in nanoseconds.
    pub elapsed_ns: f64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Segments that the source sent.
    pub segments: u64,
    /// Source, with the posting of requests; sink.
    pub ends: [PollTimes; 2],
}

impl Run {
    /// Returns the bandwidth of both ends together in Gb/s.
    #[must_use]
    pub fn gbit_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elapsed_ns
    }

    /// Returns an end's nanoseconds per segment.
    #[must_use]
    pub fn ns_per_segment(&self, end: usize) -> f64 {
        self.ends[end].busy_ns / self.segments as f64
    }

    /// Returns the bandwidth in Gb/s of an end that is always busy.
    #[must_use]
    pub fn gbit_s_alone(&self, end: usize) -> f64 {
        self.bytes as f64 * 8.0 / self.ends[end].busy_ns
    }

    /// Returns the share of the run's time in polls without frames, of both ends.
    #[must_use]
    pub fn idle_share(&self) -> f64 {
        self.ends.iter().map(|end| end.idle_ns).sum::<f64>() / self.elapsed_ns
    }
}

/// Returns the mean time of a reading of the clock in nanoseconds.
#[must_use]
pub fn clock_ns() -> f64 {
    let start = Instant::now();
    let mut last = start;
    for _ in 0..CLOCK_READINGS {
        last = std::hint::black_box(Instant::now());
    }
    (last - start).as_nanos() as f64 / f64::from(CLOCK_READINGS)
}

/// Adds up the time between readings of the clock.
struct Stopwatch {
    last: Instant,
    clock_ns: f64,
    moved: Arc<AtomicU64>,
    moved_before: u64,
    times: PollTimes,
}

impl Stopwatch {
    fn new(moved: &Arc<AtomicU64>, clock_ns: f64) -> Self {
        let (moved_before, times) = (moved.load(Ordering::Relaxed), PollTimes::default());
        Self { last: Instant::now(), clock_ns, moved: Arc::clone(moved), moved_before, times }
    }

    /// Ends a poll, which began at `start`; returns the present.
    #[inline]
    fn stop(&mut self, start: Instant) -> Instant {
        let now = Instant::now();
        let moved = self.moved.load(Ordering::Relaxed);
        let ns = (now - start).as_nanos() as f64 - self.clock_ns;
        if moved == self.moved_before {
            self.times.idle_ns += ns;
        } else {
            self.times.busy_ns += ns;
        }
        (self.moved_before, self.last) = (moved, now);
        now
    }
}

/// The end that writes.
struct Source {
    end: End,
    write: Write,
    completed: u64,
}

impl Source {
    /// Polls, and posts as many Writes as have completed.
    #[inline]
    fn step(&mut self) -> Result<()> {
        let mut count = 0;
        self.end.poll(|_, more| count += more)?;
        if count > 0 {
            self.end.write(0, (0, count), &self.write)?;
            self.completed += count as u64;
        }
        Ok(())
    }

    fn segments(&self) -> Result<u32> {
        Ok(self.end.tcp_stats(0)?.segments_out)
    }
}

/// Two connected ends, and how many frames the port of each has moved.
pub struct Pair {
    source: Source,
    sink: End,
    moved: [Arc<AtomicU64>; 2],
    setup: Setup,
}

impl Pair {
    /// Connects the ends, with the calling thread on the first core.
    ///
    /// # Errors
    /// Errors of the device and the verbs.
    pub fn connect(setup: &Setup) -> Result<Self> {
        pin(setup.cores[0])?;
        // The first device starts DPDK, with which the thread is registered then.
        let (mtu, size) = (setup.mtu, setup.size);
        let mut open_config = OpenConfig::default();
        open_config.mtu = mtu;
        let Some((left, right)) = open(&DeviceSpec::Ring, &open_config)?.into_pair() else {
            bail!("a ring has two ends");
        };
        register_current_thread();
        let moved = [0; 2].map(|count| Arc::new(AtomicU64::new(count)));
        let [left, right] = [(left, &moved[0]), (right, &moved[1])]
            .map(|(port, moved)| CountingPort::new(port, Arc::clone(moved)));
        let (left, right) = Context::joined((left, config(1, mtu, 1)), (right, config(2, mtu, 1)))?;
        let mut end = End::new(left, 1, 1, DEPTH, size as usize)?;
        let mut sink = End::new(right, 2, 1, 1, size as usize)?;
        end.connect(0, &mut sink, 0)?;
        let write = Write { remote: sink.remote(), offset: 0, len: size };
        end.write(0, (0, DEPTH), &write)?;
        let source = Source { end, write, completed: 0 };
        Ok(Self { source, sink, moved, setup: setup.clone() })
    }

    /// Writes for some time.
    ///
    /// # Errors
    /// If a request fails.
    pub fn run(&mut self, duration: Duration, clock_ns: f64) -> Result<Run> {
        match self.setup.cores[..] {
            [_] => {
                self.run_on_one_core(WARM_UP, clock_ns)?;
                self.run_on_one_core(duration, clock_ns)
            }
            [_, core] => self.run_on_two_cores(duration, clock_ns, core),
            _ => bail!("one core or two"),
        }
    }

    fn run_on_one_core(&mut self, duration: Duration, clock_ns: f64) -> Result<Run> {
        let Self { source, sink, moved, setup } = self;
        let (completed, segments) = (source.completed, source.segments()?);
        let mut watches = [&moved[0], &moved[1]].map(|moved| Stopwatch::new(moved, clock_ns));
        let start = Instant::now();
        let mut now = start;
        while now - start < duration {
            for _ in 0..POLLS_PER_CHECK {
                source.step()?;
                now = watches[0].stop(now);
                sink.poll(|_, _| ())?;
                now = watches[1].stop(now);
            }
        }
        let ends = watches.map(|watch| watch.times);
        finish(source, setup, (completed, segments), now - start, ends)
    }

    fn run_on_two_cores(&mut self, duration: Duration, clock_ns: f64, core: usize) -> Result<Run> {
        let Self { source, sink, moved, setup } = self;
        let (measures, stops) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let sink_thread = scope.spawn(|| -> Result<PollTimes> {
                pin(core)?;
                register_current_thread();
                let mut watch = Stopwatch::new(&moved[1], clock_ns);
                let mut is_measured = false;
                while !stops.load(Ordering::Relaxed) {
                    if measures.load(Ordering::Relaxed) && !is_measured {
                        watch = Stopwatch::new(&moved[1], clock_ns);
                        is_measured = true;
                    }
                    for _ in 0..POLLS_PER_CHECK {
                        sink.poll(|_, _| ())?;
                        watch.stop(watch.last);
                    }
                }
                Ok(watch.times)
            });
            let mut measure = || {
                let start = Instant::now();
                while start.elapsed() < WARM_UP {
                    source.step()?;
                }
                measures.store(true, Ordering::Relaxed);
                let before = (source.completed, source.segments()?);
                let mut watch = Stopwatch::new(&moved[0], clock_ns);
                let start = Instant::now();
                let mut now = start;
                while now - start < duration {
                    for _ in 0..POLLS_PER_CHECK {
                        source.step()?;
                        now = watch.stop(now);
                    }
                }
                Ok::<_, anyhow::Error>((before, now - start, watch.times))
            };
            let measured = measure();
            stops.store(true, Ordering::Relaxed);
            let sink_times = sink_thread.join();
            let sink_times = sink_times.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let (before, elapsed, times) = measured?;
            finish(source, setup, before, elapsed, [times, sink_times])
        })
    }
}

fn finish(
    source: &Source,
    setup: &Setup,
    (completed, segments): (u64, u32),
    elapsed: Duration,
    ends: [PollTimes; 2],
) -> Result<Run> {
    let bytes = (source.completed - completed) * u64::from(setup.size);
    let segments = u64::from(source.segments()?.wrapping_sub(segments));
    ensure!(bytes > 0 && segments > 0, "nothing was written: more --seconds");
    Ok(Run { elapsed_ns: elapsed.as_nanos() as f64, bytes, segments, ends })
}

/// Pins the calling thread.
fn pin(core: usize) -> Result<()> {
    ensure!(core_affinity::set_for_current(CoreId { id: core }), "cannot pin to core {core}");
    Ok(())
}
