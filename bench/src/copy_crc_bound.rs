//! Upper bound of the bandwidth: copy and CRC at both ends, without any protocol.
//!
//! For each segment the sender copies from the source to a frame and computes the CRC over the
//! frame; the receiver verifies the CRC and copies to the sink. On one core both run alternately;
//! on two they pass the frames over a single-producer single-consumer ring, and back over another.

use std::hint::{black_box, spin_loop};
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rtrb::{Consumer, Producer, RingBuffer};

/// Total bytes of all frames: the window of a connection, which limits the stack's data in flight.
/// More would only increase the cache footprint.
const WINDOW_LEN: usize = 256 * 1024;
/// Maximum number of frames passed at a time.
const BURST_LEN: usize = 16;
/// Bursts between two reads of the clock.
const BURSTS_PER_CLOCK_READ: usize = 32;
/// Bytes of the CRC, which follows the segment in its frame.
const CRC_LEN: usize = 4;

/// Implementation of CRC32C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crc {
    /// None: only the copies.
    Off,
    /// `crc-fast`: carry-less multiplication, with AVX-512 where available.
    CrcFast,
    /// `crc32c`: the instruction of SSE 4.2.
    Crc32c,
}

impl Crc {
    /// Returns the name of the crate.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "no CRC",
            Self::CrcFast => "crc-fast",
            Self::Crc32c => "crc32c",
        }
    }

    #[inline]
    fn of(self, bytes: &[u8]) -> [u8; CRC_LEN] {
        match self {
            Self::Off => [0; CRC_LEN],
            Self::CrcFast => {
                let wide = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
                let [b0, b1, b2, b3, ..] = wide.to_le_bytes();
                [b0, b1, b2, b3]
            }
            Self::Crc32c => crc32c::crc32c(bytes).to_le_bytes(),
        }
    }
}

/// Parameters of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct CopyCrcParams {
    /// Bytes per segment.
    pub segment_len: usize,
    /// Bytes of the message, which is sent repeatedly; length of source and sink.
    pub message_len: usize,
    /// CRC implementation.
    pub crc: Crc,
}

/// A segment followed by its CRC.
type Frame = Box<[u8]>;

/// One end: its message, and the offset of the next segment in it.
struct Endpoint {
    params: CopyCrcParams,
    message: Vec<u8>,
    at: usize,
    segments: u64,
}

impl Endpoint {
    fn new(params: CopyCrcParams) -> Self {
        let message = (0..params.message_len.max(params.segment_len)).map(|at| at.to_le_bytes()[0]);
        Self { params, message: message.collect(), at: 0, segments: 0 }
    }

    fn next_range(&mut self) -> Range<usize> {
        if self.at + self.params.segment_len > self.message.len() {
            self.at = 0;
        }
        let start = self.at;
        self.at += self.params.segment_len;
        self.segments += 1;
        start..self.at
    }

    #[inline]
    fn send(&mut self, frame: &mut Frame) {
        let range = self.next_range();
        let (segment, crc) = frame.split_at_mut(self.params.segment_len);
        segment.copy_from_slice(black_box(&self.message[range]));
        crc.copy_from_slice(&self.params.crc.of(segment));
    }

    #[inline]
    fn receive(&mut self, frame: &Frame) {
        let range = self.next_range();
        let (segment, crc) = frame.split_at(self.params.segment_len);
        assert_eq!(crc, self.params.crc.of(segment), "a segment was corrupted in transit");
        self.message[range].copy_from_slice(segment);
        black_box(&mut self.message);
    }

    fn gbit_s(&self, elapsed: Duration) -> f64 {
        let bytes = self.segments as f64 * self.params.segment_len as f64;
        bytes * 8.0 / 1e9 / elapsed.as_secs_f64()
    }
}

fn frame_count(params: CopyCrcParams) -> usize {
    (WINDOW_LEN / params.segment_len).max(BURST_LEN)
}

fn frames(params: CopyCrcParams) -> impl Iterator<Item = Frame> {
    (0..frame_count(params)).map(move |_| vec![0; params.segment_len + CRC_LEN].into_boxed_slice())
}

/// Measures the rate in Gb/s when both ends share the calling thread.
///
/// # Panics
/// If a segment is corrupted.
#[must_use]
pub fn one_core(params: CopyCrcParams, duration: Duration) -> f64 {
    let mut pool: Vec<Frame> = frames(params).collect();
    let mut burst: Vec<Frame> = Vec::with_capacity(BURST_LEN);
    let (mut source, mut sink) = (Endpoint::new(params), Endpoint::new(params));
    let start = Instant::now();
    loop {
        for _ in 0..BURSTS_PER_CLOCK_READ {
            for _ in 0..BURST_LEN {
                let mut frame = pool.pop().expect("more frames than a burst");
                source.send(&mut frame);
                burst.push(frame);
            }
            for frame in burst.drain(..) {
                sink.receive(&frame);
                pool.push(frame);
            }
        }
        let elapsed = start.elapsed();
        if elapsed >= duration {
            return sink.gbit_s(elapsed);
        }
    }
}

/// Runs [`one_core`] in a thread pinned to `core`.
///
/// # Errors
/// If the thread cannot be pinned.
///
/// # Panics
/// If a segment is corrupted.
pub fn one_core_pinned(params: CopyCrcParams, core: usize, duration: Duration) -> Result<f64> {
    let (is_pinned, gbit_s) = thread::scope(|scope| {
        scope
            .spawn(|| (pin(core), one_core(params, duration)))
            .join()
            .expect("the thread does not panic")
    });
    ensure!(is_pinned, "cannot pin to core {core}");
    Ok(gbit_s)
}

/// Measures the rate in Gb/s from a thread on the first of `cores` to a thread on the second.
///
/// # Errors
/// If a thread cannot be started or pinned.
///
/// # Panics
/// If a segment is corrupted.
pub fn two_cores(params: CopyCrcParams, cores: [usize; 2], duration: Duration) -> Result<f64> {
    let (mut to_sink, mut from_source) = RingBuffer::new(frame_count(params));
    let (mut to_source, mut from_sink) = RingBuffer::new(frame_count(params));
    for frame in frames(params) {
        to_source.push(frame).ok().context("the ring holds all frames")?;
    }
    run_on_cores(
        cores,
        move || {
            let mut source = Endpoint::new(params);
            let mut burst = Vec::with_capacity(BURST_LEN);
            let start = Instant::now();
            while start.elapsed() < duration {
                for _ in 0..BURSTS_PER_CLOCK_READ {
                    if pop_burst(&mut from_sink, &mut burst) {
                        burst.iter_mut().for_each(|frame| source.send(frame));
                        push_burst(&mut to_sink, &mut burst);
                    } else {
                        spin_loop();
                    }
                }
            }
            // Dropping `to_sink` ends the sink's thread.
        },
        move || {
            let mut sink = Endpoint::new(params);
            let mut burst = Vec::with_capacity(BURST_LEN);
            let start = Instant::now();
            loop {
                if pop_burst(&mut from_source, &mut burst) {
                    burst.iter().for_each(|frame| sink.receive(frame));
                    push_burst(&mut to_source, &mut burst);
                } else if from_source.is_abandoned() {
                    return sink.gbit_s(start.elapsed());
                } else {
                    spin_loop();
                }
            }
        },
    )
    .map(|((), gbit_s)| gbit_s)
}

/// Takes up to a burst of frames. False if there are none.
fn pop_burst(ring: &mut Consumer<Frame>, burst: &mut Vec<Frame>) -> bool {
    let Ok(chunk) = ring.read_chunk(ring.slots().min(BURST_LEN)) else { return false };
    burst.extend(chunk);
    !burst.is_empty()
}

/// Pushes a burst. Cannot fail: each ring has capacity for all frames.
fn push_burst(ring: &mut Producer<Frame>, burst: &mut Vec<Frame>) {
    let chunk = ring.write_chunk_uninit(burst.len()).expect("the ring holds all frames");
    chunk.fill_from_iter(burst.drain(..));
}

/// Measures the round trip of a cache line between two cores in nanoseconds.
///
/// # Errors
/// If a thread cannot be started or pinned.
pub fn cache_line_round_trip_ns(cores: [usize; 2], count: u64) -> Result<f64> {
    let (ping, pong) = (AtomicU64::new(0), AtomicU64::new(0));
    let (ping, pong) = (&ping, &pong);
    let wait_for = |line: &AtomicU64, value| {
        while line.load(Ordering::Acquire) != value {
            spin_loop();
        }
    };
    let (elapsed, ()) = run_on_cores(
        cores,
        move || {
            let start = Instant::now();
            for round in 1..=count {
                ping.store(round, Ordering::Release);
                wait_for(pong, round);
            }
            start.elapsed()
        },
        move || {
            for round in 1..=count {
                wait_for(ping, round);
                pong.store(round, Ordering::Release);
            }
        },
    )?;
    Ok(elapsed.as_secs_f64() * 1e9 / count as f64)
}

/// Runs two closures concurrently, each pinned to its core.
fn run_on_cores<A: Send, B: Send>(
    cores: [usize; 2],
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B + Send,
) -> Result<(A, B)> {
    let ready = Barrier::new(2);
    let begin = |core| {
        let is_pinned = pin(core);
        ready.wait();
        is_pinned
    };
    let begin = &begin;
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(move || (begin(cores[0]), first()));
        let second = scope.spawn(move || (begin(cores[1]), second()));
        (first.join(), second.join())
    });
    let (is_first_pinned, first) = first.expect("the first thread does not panic");
    let (is_second_pinned, second) = second.expect("the second thread does not panic");
    ensure!(
        is_first_pinned && is_second_pinned,
        "cannot pin to cores {} and {}",
        cores[0],
        cores[1]
    );
    Ok((first, second))
}

/// Pins the calling thread. False if the core does not exist or is not allowed.
#[must_use]
pub fn pin(core: usize) -> bool {
    core_affinity::set_for_current(core_affinity::CoreId { id: core })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(2);

    #[test]
    fn crc_implementations_agree() {
        for bytes in [&b"123456789"[..], &[0; 32]] {
            assert_eq!(Crc::CrcFast.of(bytes), Crc::Crc32c.of(bytes));
        }
        assert_eq!(Crc::CrcFast.of(b"123456789"), 0xe306_9283_u32.to_le_bytes());
    }

    #[test]
    fn one_core_rate_is_positive() {
        for crc in [Crc::Off, Crc::CrcFast, Crc::Crc32c] {
            let params = CopyCrcParams { segment_len: 1460, message_len: 65_536, crc };
            assert!(one_core(params, SHORT) > 0.0);
        }
    }

    #[test]
    fn two_cores_rate_is_positive() {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let [first, .., last] = cores.as_slice() else { return };
        let params = CopyCrcParams { segment_len: 8960, message_len: 65_536, crc: Crc::CrcFast };
        assert!(two_cores(params, [first.id, last.id], SHORT).unwrap() > 0.0);
        assert!(cache_line_round_trip_ns([first.id, last.id], 1000).unwrap() > 0.0);
    }

    #[test]
    #[should_panic(expected = "a segment was corrupted in transit")]
    fn corrupted_segment_fails_crc_check() {
        let params = CopyCrcParams { segment_len: 100, message_len: 1000, crc: Crc::CrcFast };
        let mut frame = frames(params).next().unwrap();
        Endpoint::new(params).send(&mut frame);
        frame[50] ^= 1;
        Endpoint::new(params).receive(&frame);
    }
}
