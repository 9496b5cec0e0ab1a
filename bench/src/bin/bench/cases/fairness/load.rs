//! The sending side: competing Writes, and the Write whose latency is measured; and the sink.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use ferrowarp::Context;
use ferrowarp::device::{DeviceSpec, register_current_thread};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::hub::HubPort;
use super::traffic::Traffic;
use crate::ring::{End, Write, config, open_config, open_ring};

/// Bytes of the Write whose latency is measured.
const PROBE_LEN: u32 = 64;
/// Frames that the port queues hold: slots of `ring`, and frames for a flush. They lie before
/// any that is sent later, whatever the turns of the connections.
pub(crate) const PORT_QUEUE_LEN: usize = 511 + 256;
/// Its `wr_id`; that of the others is the index of their queue pair.
const PROBE_ID: u64 = u64::MAX;
/// Bytes of the number at its end, by which the sink recognizes it.
const NUMBER_LEN: usize = 8;
/// Host number of the sink; the senders have the next ones.
const SINK: u8 = 1;

/// The Write on its way, known to both sides.
#[derive(Debug)]
struct Shared {
    posted_at: Instant,
    latency: Duration,
    /// Number of the last Write that was placed.
    placed: u64,
}

/// A measured Write that has been placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) latency: Duration,
    /// Segments of the others that were handed to the port since it was posted, to the end of the
    /// pass in which its own was.
    pub(crate) segments_before: u64,
}

/// The sink of all Writes.
pub(crate) struct Sink {
    end: End,
    /// Place of the number in the region.
    offset: usize,
    next: u64,
    shared: Rc<RefCell<Shared>>,
}

impl Sink {
    /// Polls once, and looks whether the Write has been placed.
    #[inline]
    pub(crate) fn step(&mut self) -> Result<()> {
        self.end.poll(|_, _| ())?;
        if self.end.mr().load_word(self.offset) == self.next {
            let mut shared = self.shared.borrow_mut();
            shared.latency = shared.posted_at.elapsed();
            shared.placed = self.next;
            self.next += 1;
        }
        Ok(())
    }
}

/// The senders, polled by one thread.
pub(crate) struct Load {
    ends: Vec<End>,
    /// Queue pairs that compete: context and index.
    competitors: Vec<(usize, usize)>,
    prober: (usize, usize),
    competing: Write,
    probe: Write,
    depth: usize,
    is_competing: bool,
    outstanding: usize,
    /// Number of the Write that was posted last, and whether it is on its way.
    number: u64,
    is_posted: bool,
    /// When it was posted: frames that all contexts had sent, and segments of its queue pair.
    sent_before: (u64, u32),
    /// Its [`Placed::segments_before`], once it was handed to the port.
    segments_before: Option<u64>,
    /// Time of the next Write, and the longest pause before it; none are posted without.
    next_at: Instant,
    pause_max: Option<Duration>,
    rng: SmallRng,
    shared: Rc<RefCell<Shared>>,
    runs: Vec<(u64, usize)>,
}

impl Load {
    /// Connects the senders of the traffic to a sink. The calling thread polls them from now on.
    pub(crate) fn connect(traffic: &Traffic, mtu: u16) -> Result<(Self, Sink)> {
        let size = traffic.size as usize;
        let offset = size.next_multiple_of(64);
        let len = offset + PROBE_LEN as usize;
        let all = traffic.qps + 1;
        let (contexts, sink_context) = if traffic.is_incast {
            incast_contexts(all, mtu)?
        } else {
            let (left, right) = Context::ring_pair(
                config(DeviceSpec::Ring, SINK + 1, mtu, all),
                config(DeviceSpec::Ring, SINK, mtu, all),
            )?;
            (vec![left], right)
        };
        register_current_thread();
        let per_context = if traffic.is_incast { 1 } else { all };
        let end = |(host, context)| End::new(context, host, per_context, traffic.depth, len);
        let mut ends = (SINK + 1..).zip(contexts).map(end).collect::<Result<Vec<_>>>()?;
        let mut sink = End::new(sink_context, SINK, all, 1, len)?;
        let mut qps = Vec::new();
        for (context, end) in ends.iter_mut().enumerate() {
            for index in 0..end.qp_count() {
                end.connect(index, &mut sink, qps.len())?;
                qps.push((context, index));
            }
        }
        let Some(prober) = qps.pop() else { bail!("traffic has queue pairs") };
        let (posted_at, latency) = (Instant::now(), Duration::ZERO);
        let shared = Rc::new(RefCell::new(Shared { posted_at, latency, placed: 0 }));
        let remote = sink.remote();
        let number_at = len - NUMBER_LEN;
        let load = Self {
            ends,
            competitors: qps,
            prober,
            competing: Write { remote, offset: 0, len: traffic.size },
            probe: Write { remote, offset, len: PROBE_LEN },
            depth: traffic.depth,
            is_competing: false,
            outstanding: 0,
            number: 0,
            is_posted: false,
            sent_before: (0, 0),
            segments_before: None,
            next_at: Instant::now(),
            pause_max: None,
            rng: SmallRng::seed_from_u64(1),
            shared: Rc::clone(&shared),
            runs: Vec::new(),
        };
        Ok((load, Sink { end: sink, offset: number_at, next: 1, shared }))
    }

    /// Returns the number of contexts, which are polled one by one.
    pub(crate) fn context_count(&self) -> usize {
        self.ends.len()
    }

    /// Polls a context once: competing Writes are posted again as they complete, and the measured
    /// one when its time has come. Returns one that has been placed.
    #[inline]
    pub(crate) fn step(&mut self, context: usize) -> Result<Option<Placed>> {
        let end = &mut self.ends[context];
        let runs = &mut self.runs;
        end.poll(|wr_id, count| runs.push((wr_id, count)))?;
        for (wr_id, count) in self.runs.drain(..) {
            if wr_id == PROBE_ID {
                continue;
            }
            if self.is_competing {
                let index = usize::try_from(wr_id)?;
                self.ends[context].write(index, (wr_id, count), &self.competing)?;
            } else {
                self.outstanding -= count;
            }
        }
        if context == self.prober.0 { self.probe_step() } else { Ok(None) }
    }

    fn probe_step(&mut self) -> Result<Option<Placed>> {
        if self.is_posted {
            if self.segments_before.is_none() {
                let (frames, segments) = self.sent()?;
                let own = segments.wrapping_sub(self.sent_before.1);
                if own > 0 {
                    self.segments_before = Some(frames - self.sent_before.0 - u64::from(own));
                }
            }
            if self.shared.borrow().placed != self.number {
                return Ok(None);
            }
            self.is_posted = false;
            if let Some(max) = self.pause_max {
                self.next_at = Instant::now() + max.mul_f64(self.rng.random::<f64>());
            }
            let latency = self.shared.borrow().latency;
            let Some(segments_before) = self.segments_before.take() else {
                bail!("a Write was placed that was not sent");
            };
            return Ok(Some(Placed { latency, segments_before }));
        }
        if self.pause_max.is_some() && Instant::now() >= self.next_at {
            let (context, index) = self.prober;
            self.sent_before = self.sent()?;
            self.number += 1;
            self.is_posted = true;
            let end = &self.ends[context];
            let number_at = self.probe.offset + PROBE_LEN as usize - NUMBER_LEN;
            end.mr().write(number_at, &self.number.to_ne_bytes());
            self.shared.borrow_mut().posted_at = Instant::now();
            end.write(index, (PROBE_ID, 1), &self.probe)?;
        }
        Ok(None)
    }

    /// Returns the frames that all contexts have sent, and the segments of the measured Writes'
    /// queue pair, modulo 2^32.
    fn sent(&self) -> Result<(u64, u32)> {
        let (context, index) = self.prober;
        let segments = self.ends[context].tcp_stats(index)?.segments_out;
        Ok((self.ends.iter().map(End::frames_sent).sum(), segments))
    }

    /// Begins to write on all queue pairs that compete.
    pub(crate) fn start_competing(&mut self) -> Result<()> {
        self.is_competing = true;
        for &(context, index) in &self.competitors {
            self.ends[context].write(index, (index as u64, self.depth), &self.competing)?;
            self.outstanding += self.depth;
        }
        Ok(())
    }

    /// Posts no further competing Writes.
    pub(crate) fn stop_competing(&mut self) {
        self.is_competing = false;
    }

    /// Posts measured Writes, one at a time, each after a pause of at most `pause_max` that is
    /// drawn at random; or none any more.
    pub(crate) fn set_probing(&mut self, pause_max: Option<Duration>) {
        self.pause_max = pause_max;
    }

    /// True if nothing is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding == 0 && !self.is_posted
    }

    /// Returns the segments that the competing connections have sent, each modulo 2^32.
    pub(crate) fn segments(&self) -> Result<Vec<u32>> {
        let of = |&(context, index): &(usize, usize)| -> Result<u32> {
            Ok(self.ends[context].tcp_stats(index)?.segments_out)
        };
        self.competitors.iter().map(of).collect()
    }
}

/// Opens `count` contexts that share one end of a `ring`, and that of the sink at the other end.
/// DPDK has 32 ports at most: too few for a ring each.
fn incast_contexts(count: usize, mtu: u16) -> Result<(Vec<Context>, Context)> {
    let sink_config = config(DeviceSpec::Ring, SINK, mtu, count);
    let mut options = open_config(mtu);
    options.pools = sink_config.pools;
    let (left, right) = open_ring(&options)?;
    let ports = (SINK + 1..).zip(HubPort::share(left, count));
    let contexts =
        ports.map(|(host, port)| Context::over(port, config(DeviceSpec::Ring, host, mtu, 1)));
    Ok((contexts.collect::<Result<_, _>>()?, Context::over(right, sink_config)?))
}
