//! The bound: what both ends have to do to every byte, and nothing else.
//!
//! For each piece the sender copies from the source to a frame and makes the CRC over the frame;
//! the receiver makes the CRC again and copies to the sink. On one core both take turns; on two
//! they hand the frames over a plain single-producer ring, and back over another.

use std::hint::{black_box, spin_loop};
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rtrb::{Consumer, Producer, RingBuffer};

/// Bytes that all frames hold together: the window of a connection, which bounds what the stack
/// has under way. More would only spread over more of the caches.
const WINDOW_LEN: usize = 256 * 1024;
/// Pieces handed over at a time, at most.
const BURST_LEN: usize = 16;
/// Bursts between two looks at the clock.
const BURSTS_PER_CLOCK_READ: usize = 32;
/// Bytes of the CRC, which follows the piece in its frame.
const CRC_LEN: usize = 4;

/// Which implementation of CRC32C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crc {
    /// None: only the copies.
    Off,
    /// `crc-fast`: carry-less multiplication, with AVX-512 where there is any.
    CrcFast,
    /// `crc32c`: the instruction of SSE 4.2.
    Crc32c,
}

impl Crc {
    /// Name of the crate.
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

/// What is moved.
#[derive(Clone, Copy, Debug)]
pub struct CopyCrcParams {
    /// Bytes of a piece.
    pub segment_len: usize,
    /// Bytes of the message that is sent over and over; source and sink are as long.
    pub message_len: usize,
    /// Which CRC.
    pub crc: Crc,
}

/// A piece, and its CRC behind it.
type Frame = Box<[u8]>;

/// One end: its message, and where in it the next piece lies.
struct Endpoint {
    params: CopyCrcParams,
    message: Vec<u8>,
    at: usize,
    segments: u64,
}

impl Endpoint {
    fn new(work: CopyCrcParams) -> Self {
        let message = (0..work.message_len.max(work.segment_len)).map(|at| at.to_le_bytes()[0]);
        Self { params: work, message: message.collect(), at: 0, segments: 0 }
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
        let (piece, crc) = frame.split_at_mut(self.params.segment_len);
        piece.copy_from_slice(black_box(&self.message[range]));
        crc.copy_from_slice(&self.params.crc.of(piece));
    }

    #[inline]
    fn receive(&mut self, frame: &Frame) {
        let range = self.next_range();
        let (piece, crc) = frame.split_at(self.params.segment_len);
        assert_eq!(crc, self.params.crc.of(piece), "a piece was corrupted in transit");
        self.message[range].copy_from_slice(piece);
        black_box(&mut self.message);
    }

    fn gbit_s(&self, elapsed: Duration) -> f64 {
        let bytes = self.segments as f64 * self.params.segment_len as f64;
        bytes * 8.0 / 1e9 / elapsed.as_secs_f64()
    }
}

fn frame_count(work: CopyCrcParams) -> usize {
    (WINDOW_LEN / work.segment_len).max(BURST_LEN)
}

fn frames(work: CopyCrcParams) -> impl Iterator<Item = Frame> {
    (0..frame_count(work)).map(move |_| vec![0; work.segment_len + CRC_LEN].into_boxed_slice())
}

/// Gigabits per second when both ends share the calling thread.
///
/// # Panics
/// If a piece arrives changed.
#[must_use]
pub fn one_core(work: CopyCrcParams, duration: Duration) -> f64 {
    let mut pool: Vec<Frame> = frames(work).collect();
    let mut wire: Vec<Frame> = Vec::with_capacity(BURST_LEN);
    let (mut source, mut sink) = (Endpoint::new(work), Endpoint::new(work));
    let start = Instant::now();
    loop {
        for _ in 0..BURSTS_PER_CLOCK_READ {
            for _ in 0..BURST_LEN {
                let mut frame = pool.pop().expect("more frames than a burst");
                source.send(&mut frame);
                wire.push(frame);
            }
            for frame in wire.drain(..) {
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

/// [`one_core`] in a thread of its own on `core`.
///
/// # Errors
/// If the thread cannot be pinned.
///
/// # Panics
/// If a piece arrives changed.
pub fn one_core_pinned(work: CopyCrcParams, core: usize, duration: Duration) -> Result<f64> {
    let (is_pinned, gbit_s) = thread::scope(|scope| {
        scope
            .spawn(|| (pin(core), one_core(work, duration)))
            .join()
            .expect("the thread does not panic")
    });
    ensure!(is_pinned, "cannot pin to core {core}");
    Ok(gbit_s)
}

/// Gigabits per second from a thread on the first of `cores` to a thread on the second.
///
/// # Errors
/// If a thread cannot be started or pinned.
///
/// # Panics
/// If a piece arrives changed.
pub fn two_cores(work: CopyCrcParams, cores: [usize; 2], duration: Duration) -> Result<f64> {
    let (mut to_sink, mut from_source) = RingBuffer::new(frame_count(work));
    let (mut to_source, mut from_sink) = RingBuffer::new(frame_count(work));
    for frame in frames(work) {
        to_source.push(frame).ok().context("the ring holds all frames")?;
    }
    run_on_cores(
        cores,
        move || {
            let mut source = Endpoint::new(work);
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
            // Dropping `to_sink` tells the other end.
        },
        move || {
            let mut sink = Endpoint::new(work);
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

/// Takes what is there, up to a burst. False if there is nothing.
fn pop_burst(ring: &mut Consumer<Frame>, burst: &mut Vec<Frame>) -> bool {
    let Ok(chunk) = ring.read_chunk(ring.slots().min(BURST_LEN)) else { return false };
    burst.extend(chunk);
    !burst.is_empty()
}

/// Each ring holds all frames: there is always room.
fn push_burst(ring: &mut Producer<Frame>, burst: &mut Vec<Frame>) {
    let chunk = ring.write_chunk_uninit(burst.len()).expect("the ring holds all frames");
    chunk.fill_from_iter(burst.drain(..));
}

/// Nanoseconds for one cache line to go to the other of two cores and come back.
///
/// # Errors
/// If a thread cannot be started or pinned.
pub fn cache_line_round_trip_ns(cores: [usize; 2], count: u64) -> Result<f64> {
    let (there, back) = (AtomicU64::new(0), AtomicU64::new(0));
    let (there, back) = (&there, &back);
    let wait_for = |line: &AtomicU64, value| {
        while line.load(Ordering::Acquire) != value {
            spin_loop();
        }
    };
    let (elapsed, ()) = run_on_cores(
        cores,
        move || {
            let start = Instant::now();
            for turn in 1..=count {
                there.store(turn, Ordering::Release);
                wait_for(back, turn);
            }
            start.elapsed()
        },
        move || {
            for turn in 1..=count {
                wait_for(there, turn);
                back.store(turn, Ordering::Release);
            }
        },
    )?;
    Ok(elapsed.as_secs_f64() * 1e9 / count as f64)
}

/// Runs two closures at a time, each on its core.
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

/// Pins the calling thread. False if the core is not there or not ours.
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
            let work = CopyCrcParams { segment_len: 1460, message_len: 65_536, crc };
            assert!(one_core(work, SHORT) > 0.0);
        }
    }

    #[test]
    fn two_cores_rate_is_positive() {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let [first, .., last] = cores.as_slice() else { return };
        let work = CopyCrcParams { segment_len: 8960, message_len: 65_536, crc: Crc::CrcFast };
        assert!(two_cores(work, [first.id, last.id], SHORT).unwrap() > 0.0);
        assert!(cache_line_round_trip_ns([first.id, last.id], 1000).unwrap() > 0.0);
    }

    #[test]
    #[should_panic(expected = "a piece was corrupted in transit")]
    fn corrupted_segment_fails_crc_check() {
        let work = CopyCrcParams { segment_len: 100, message_len: 1000, crc: Crc::CrcFast };
        let mut frame = frames(work).next().unwrap();
        Endpoint::new(work).send(&mut frame);
        frame[50] ^= 1;
        Endpoint::new(work).receive(&frame);
    }
}
