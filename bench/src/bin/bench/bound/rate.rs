//! Bandwidth of the bound: a transfer on one core, handed off from one core to another, or one on
//! each of several cores.

use std::hint::spin_loop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use ferrowarp::device::{DpdkTx, TxFrame as _};
use rtrb::{Consumer, Producer, RingBuffer};

use super::frames::{BURST_LEN, FramePool, ONE_CORE_COUNT, two_cores_count};
use super::transfer::{Sink, Source, Transfer, WorkingSet};
use crate::cores::{Work, on_each};
use crate::ring::open_ring;

/// Bursts between two reads of the clock.
const BURSTS_PER_CLOCK_READ: usize = 32;

/// Measures the bandwidth of payload in Gb/s: both ends on one core in turn, or one on each of two
/// cores.
pub(crate) fn measure(
    transfer: &Arc<Transfer>,
    set: WorkingSet,
    cores: &[usize],
    duration: Duration,
) -> Result<f64> {
    let [first, second] = *cores else { return measure_each(transfer, set, cores, duration) };
    // The ports are kept, and with them the memory of the frames.
    let (mut port, _peer) = open_ring(transfer.mtu, 1)?;
    let count = two_cores_count(transfer.mtu);
    let pool = FramePool::allocate(&mut port, count)?;
    handed_off([first, second], ends(transfer, set)?, pool, count, duration)
}

/// Measures the bandwidth of payload in Gb/s of transfers that have nothing in common, both ends of
/// one on each core; `set` is that of each.
pub(crate) fn measure_each(
    transfer: &Arc<Transfer>,
    set: WorkingSet,
    cores: &[usize],
    duration: Duration,
) -> Result<f64> {
    let mut ports = Vec::with_capacity(cores.len());
    let mut work: Vec<Work<'_, f64>> = Vec::with_capacity(cores.len());
    for _ in cores {
        let (mut port, peer) = open_ring(transfer.mtu, 1)?;
        let pool = FramePool::allocate(&mut port, ONE_CORE_COUNT)?;
        let mut ends = ends(transfer, set)?;
        ports.push((port, peer));
        work.push(Box::new(move || Ok(alternate(&mut ends, pool, duration))));
    }
    Ok(on_each(cores, work)?.into_iter().sum())
}

fn ends(transfer: &Arc<Transfer>, set: WorkingSet) -> Result<(Source, Sink)> {
    Ok((Source::new(transfer, set)?, Sink::new(transfer, set)?))
}

/// Both ends on this core: the source builds a burst, then the sink places it.
fn alternate(
    (source, sink): &mut (Source, Sink),
    mut pool: FramePool<DpdkTx>,
    duration: Duration,
) -> f64 {
    let mut burst = Vec::with_capacity(BURST_LEN);
    let start = Instant::now();
    loop {
        for _ in 0..BURSTS_PER_CLOCK_READ {
            while burst.len() < BURST_LEN {
                let mut frame = pool.take().expect("more frames than a burst");
                source.build(frame.buf_mut());
                burst.push(frame);
            }
            for frame in &mut burst {
                sink.place(frame.buf_mut());
            }
            // As on the acknowledgment of the burst.
            burst.drain(..).for_each(|frame| pool.free(frame));
        }
        let elapsed = start.elapsed();
        if elapsed >= duration {
            return gbit_s(sink, elapsed);
        }
    }
}

/// One end on each core. The frames are passed over a single-producer single-consumer ring, and
/// come back over another.
fn handed_off(
    cores: [usize; 2],
    (mut source, mut sink): (Source, Sink),
    mut pool: FramePool<DpdkTx>,
    frame_count: usize,
    duration: Duration,
) -> Result<f64> {
    let (mut to_sink, mut from_source) = RingBuffer::new(frame_count);
    let (mut to_source, mut from_sink) = RingBuffer::new(frame_count);
    let source_side: Work<'_, f64> = Box::new(move || {
        let mut burst = Vec::with_capacity(BURST_LEN);
        let start = Instant::now();
        loop {
            for _ in 0..BURSTS_PER_CLOCK_READ {
                pop(&mut from_sink, frame_count, |frame| pool.free(frame));
                while burst.len() < BURST_LEN
                    && let Some(frame) = pool.take()
                {
                    burst.push(frame);
                }
                burst.iter_mut().for_each(|frame: &mut DpdkTx| source.build(frame.buf_mut()));
                push(&mut to_sink, &mut burst);
            }
            if start.elapsed() >= duration {
                // Dropping `to_sink` ends the sink's thread.
                return Ok(0.0);
            }
        }
    });
    let sink_side: Work<'_, f64> = Box::new(move || {
        let mut burst = Vec::with_capacity(BURST_LEN);
        let start = Instant::now();
        loop {
            pop(&mut from_source, BURST_LEN, |frame| burst.push(frame));
            if burst.is_empty() && from_source.is_abandoned() && from_source.is_empty() {
                return Ok(gbit_s(&sink, start.elapsed()));
            }
            burst.iter_mut().for_each(|frame: &mut DpdkTx| sink.place(frame.buf_mut()));
            push(&mut to_source, &mut burst);
        }
    });
    Ok(on_each(&cores, vec![source_side, sink_side])?[1])
}

/// Takes at most `max` frames off a ring.
#[inline]
fn pop<F>(ring: &mut Consumer<F>, max: usize, take: impl FnMut(F)) {
    match ring.read_chunk(ring.slots().min(max)) {
        Ok(chunk) if !chunk.is_empty() => chunk.into_iter().for_each(take),
        _ => spin_loop(),
    }
}

/// Pushes a burst. Cannot fail: each ring has capacity for all frames.
#[inline]
fn push<F>(ring: &mut Producer<F>, burst: &mut Vec<F>) {
    let chunk = ring.write_chunk_uninit(burst.len()).expect("the ring holds all frames");
    chunk.fill_from_iter(burst.drain(..));
}

fn gbit_s(sink: &Sink, elapsed: Duration) -> f64 {
    sink.placed as f64 * 8.0 / 1e9 / elapsed.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::layout::Target;
    use crate::bound::ping_pong;

    const SHORT: Duration = Duration::from_millis(2);

    fn transfers(mtu: u16, message_len: usize) -> [Arc<Transfer>; 2] {
        Transfer::frozen_and_best(mtu, message_len, Target { stag: 1, to: 0 })
    }

    #[test]
    fn figures_are_positive_on_one_core_and_on_two() {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let cores: Vec<usize> = cores.iter().map(|core| core.id).take(2).collect();
        for (mtu, message_len) in [(1500, 65_536), (9000, 4096), (9000, 1 << 20)] {
            for transfer in transfers(mtu, message_len) {
                let set = WorkingSet { slots: 3, depth: 4 };
                assert!(measure(&transfer, set, &cores[..1], SHORT).unwrap() > 0.0);
                if cores.len() == 2 {
                    assert!(measure(&transfer, set, &cores, SHORT).unwrap() > 0.0);
                }
                assert!(measure_each(&transfer, set, &cores, SHORT).unwrap() > 0.0);
            }
        }
        if let Ok(two) = <[usize; 2]>::try_from(cores) {
            let of = |len| transfers(1500, len)[0].clone();
            let found = ping_pong::measure(&of(10_000), two, SHORT);
            assert!(found.is_err(), "more than one segment");
        }
    }
}
