//! Two contexts of the runtime on one thread over heap ports, with RDMA Writes from one to the
//! other through the verbs: from post to polled completion.
//!
//! The application does as `iwperf`: it polls its completion queue, which drives the shard whenever
//! the queue is empty, and posts a request for each that has completed, with one doorbell for all.

mod crowd;
pub mod single;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ferrowarp::device::{DeviceSpec, Port};
use ferrowarp::{Access, Config, ConnParam, Context, Cq, Mr, Pd, Qp, QpOptions, Wc, WcStatus};

use crate::loopback::{self, FrameCounts, LoopDevice};
use crate::memory_marks::{self, Mark, range_of, range_of_vec};
use crate::workload::{Workload, payload};

const PORT: u16 = 18515;
/// Bytes of registered memory at each end, unless a message needs more. Little: filling it takes
/// part of the time of a memory trace.
const ARENA_LEN: u32 = 1 << 17;
/// Virtual time per poll.
const POLL_TIME: Duration = Duration::from_micros(1);
/// Queue pairs of a context that has space for the queues of [`VerbsPair::add_crowd`].
const CROWD_QPS_MAX: usize = 32_768;
/// Time after which the source polls no queue pair any more that was posted to.
const IDLE_AFTER: Duration = Duration::from_millis(20);
/// Limit of the establishment, which is immediate on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Passes without a completion, some seconds, before the transfer is given up.
const IDLE_PASS_COUNT_MAX: u64 = 10_000_000;

impl Port for LoopDevice {}

struct Endpoint {
    // Before what they use: fields are dropped in their order.
    qps: Vec<Qp>,
    mr: Mr,
    cq: Cq,
    _pd: Pd,
    context: Context,
    /// Those of a poll.
    completions: Box<[Wc]>,
    frames: Arc<FrameCounts>,
    /// Memory of the port.
    port_memory: Vec<Range<usize>>,
}

/// Two connected contexts, with RDMA Writes from the source to the sink.
pub struct VerbsPair {
    source: Endpoint,
    sink: Endpoint,
    workload: Workload,
    slot_count: u64,
    posted: u64,
    completed: u64,
    /// Requests that each queue pair has posted, and that have completed.
    progress: Vec<[u64; 2]>,
    /// Queue pairs of which requests have completed, to post the next ones.
    to_post: Vec<usize>,
    is_marked: bool,
}

impl VerbsPair {
    /// Opens two contexts in virtual time, and connects them. `is_roomy`: with space for the
    /// queues of [`add_crowd`](Self::add_crowd).
    pub fn connect(workload: Workload, is_roomy: bool) -> Result<Self> {
        ensure!(workload.timestamps, "the runtime has no setting for TCP timestamps");
        let qps = u32::try_from(workload.qps)?;
        let arena_len = ARENA_LEN.max(workload.size.checked_mul(qps).context("too many bytes")?);
        let [left, right] = loopback::pair(workload.mtu, workload.checksum());
        let [of_left, of_right] = [&left, &right].map(|of| (Arc::clone(&of.frames), of.memory()));
        let config = |host| config(&workload, host, is_roomy);
        let (left, right) = Context::joined((left, config(1)), (right, config(2)))?;
        let source = Endpoint::new(left, of_left, &workload, arena_len)?;
        let sink = Endpoint::new(right, of_right, &workload, arena_len)?;
        source.mr.write(0, &payload(arena_len));

        let param = ConnParam::new().crc(workload.crc);
        let listener = sink.context.listen(PORT, 1)?;
        for (active, passive) in source.qps.iter().zip(&sink.qps) {
            active.connect(SocketAddr::new(workload.address(2), PORT), param.clone())?;
            let request = listener.accept_timeout(TIMEOUT).context("no connect request")?;
            request.accept(passive, param.clone())?;
            active.wait_established(TIMEOUT)?;
            passive.wait_established(TIMEOUT)?;
        }
        Ok(Self {
            source,
            sink,
            workload,
            slot_count: u64::from(arena_len / workload.size / qps),
            posted: 0,
            completed: 0,
            progress: vec![[0; 2]; workload.qps],
            to_post: (0..workload.qps).collect(),
            is_marked: false,
        })
    }

    /// Writes `count` messages, until all have completed: those of the last segments may be under
    /// way. Returns the frames that the source has sent.
    pub fn write(&mut self, count: u64) -> u64 {
        let before = self.source.frames.sent.load(Relaxed);
        let target = self.posted + count;
        self.to_post = (0..self.workload.qps).collect();
        self.poll_until(target, |pair| pair.completed == target);
        self.source.frames.sent.load(Relaxed) - before
    }

    /// Polls the source `count` times while there is nothing to do.
    pub fn poll_idle(&mut self, count: u64) {
        let settled = IDLE_AFTER.as_nanos() / POLL_TIME.as_nanos();
        for _ in 0..settled {
            self.source.context.drive();
            self.sink.context.drive();
        }
        for _ in 0..count {
            self.poll_source(self.posted);
        }
    }

    /// As [`write`](Self::write), with marks in a memory trace.
    pub fn write_marked(&mut self, count: u64) -> Result<()> {
        let mut ignored = Vec::new();
        for end in [&self.source, &self.sink] {
            ignored.extend_from_slice(&end.port_memory);
            let payload = usize::try_from(end.mr.addr())?;
            ignored.push(payload..payload + end.mr.len());
            ignored.push(range_of(&*end.completions));
        }
        ignored.extend([range_of_vec(&self.progress), range_of_vec(&self.to_post)]);
        memory_marks::announce(&ignored).context("cannot announce the marks")?;
        self.is_marked = true;
        self.write(count);
        self.is_marked = false;
        Ok(())
    }

    /// Polls until the sink has received every frame. It may not have acknowledged them all.
    pub fn drain(&mut self) {
        self.poll_until(self.posted, |pair| {
            pair.sink.frames.received.load(Relaxed) == pair.source.frames.sent.load(Relaxed)
        });
    }

    #[inline]
    fn poll_until(&mut self, target: u64, is_done: impl Fn(&Self) -> bool) {
        let mut idle_passes = 0;
        while !is_done(self) {
            let completed = self.completed;
            self.poll_source(target);
            self.poll_sink();
            idle_passes = if self.completed > completed { 0 } else { idle_passes + 1 };
            assert!(idle_passes < IDLE_PASS_COUNT_MAX, "no more progress");
        }
    }

    /// One step of the source: polls completions, which drives the shard, and posts. Not inlined,
    /// so that a profile separates the two ends.
    #[inline(never)]
    fn poll_source(&mut self, target: u64) {
        let sent = self.source.frames.sent.load(Relaxed);
        self.mark(Mark::Source);
        let Self { source, progress, to_post, .. } = self;
        self.completed += source.poll(|wc| {
            let index = usize::try_from(wc.wr_id).expect("the index of a queue pair");
            progress[index][1] += 1;
            if to_post.last() != Some(&index) {
                to_post.push(index);
            }
        });
        for at in 0..self.to_post.len() {
            let index = self.to_post[at];
            let [posted, completed] = self.progress[index];
            let free = self.workload.depth as u64 - (posted - completed);
            let count = free.min(target - self.posted);
            if count > 0 {
                self.post(index, count);
            }
        }
        self.to_post.clear();
        let is_train = self.source.frames.sent.load(Relaxed) > sent;
        self.mark(if is_train { Mark::Train } else { Mark::Idle });
    }

    /// One step of the sink: polls completions, which drives the shard.
    #[inline(never)]
    fn poll_sink(&mut self) {
        let received = self.sink.frames.received.load(Relaxed);
        self.mark(Mark::Sink);
        self.sink.poll(|_| {});
        let is_train = self.sink.frames.received.load(Relaxed) > received;
        self.mark(if is_train { Mark::Train } else { Mark::Idle });
    }

    #[inline]
    fn mark(&self, mark: Mark) {
        if self.is_marked {
            mark.store();
        }
    }

    /// Posts the next requests of a queue pair, with one doorbell.
    fn post(&mut self, index: usize, count: u64) {
        let (source, sink, size) = (&self.source.mr, &self.sink.mr, self.workload.size);
        let [posted, _] = self.progress[index];
        let wr_id = index as u64;
        let first_slot = wr_id * self.slot_count;
        let remote = sink.remote();
        let mut post = self.source.qps[index].post();
        for number in posted..posted + count {
            let slot = first_slot + number % self.slot_count;
            let slot = usize::try_from(slot).expect("below the arena's length");
            let offset = slot * size as usize;
            let place = remote.at(offset as u64);
            post.write(source.sge(offset, size), place).wr_id(wr_id).signaled();
        }
        post.ring().expect("fewer outstanding than slots");
        self.posted += count;
        self.progress[index][0] += count;
    }

    /// True if the bytes that the first queue pair has written to the sink so far equal the
    /// source's.
    pub fn is_verified(&self) -> bool {
        let slots = self.progress[0][1].min(self.slot_count);
        let len = usize::try_from(slots * u64::from(self.workload.size)).expect("in memory");
        let [mut placed, mut sent] = [vec![0; len], vec![0; len]];
        self.sink.mr.read(0, &mut placed);
        self.source.mr.read(0, &mut sent);
        placed == sent
    }
}

impl Endpoint {
    fn new(
        context: Context,
        (frames, port_memory): (Arc<FrameCounts>, Vec<Range<usize>>),
        workload: &Workload,
        arena_len: u32,
    ) -> Result<Self> {
        let pd = context.alloc_pd();
        let cq = context.create_cq(2 * workload.depth * workload.qps)?;
        let mr = pd.register(context.allocate(arena_len as usize)?, Access::ALL)?;
        let options = QpOptions::new(&cq).max_send_wr(workload.depth).max_recv_wr(workload.depth);
        let qps = (0..workload.qps).map(|_| pd.create_qp(&options)).collect::<Result<_, _>>()?;
        let completions = vec![Wc::default(); workload.depth * workload.qps].into();
        Ok(Self { qps, mr, cq, _pd: pd, context, completions, frames, port_memory })
    }

    /// Polls the completion queue; returns the number of completions.
    #[inline]
    fn poll(&mut self, mut on_completed: impl FnMut(&Wc)) -> u64 {
        let found = self.cq.poll(&mut self.completions);
        for wc in found {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            on_completed(wc);
        }
        found.len() as u64
    }
}

/// Configuration of host 1, the source, or 2. Closes at once, without waiting for the peer.
fn config(workload: &Workload, host: u8, is_roomy: bool) -> Config {
    let address = workload.address(host);
    // The device is not opened by its name.
    let mut config = Config::new(DeviceSpec::Ring, address, workload.prefix_len())
        .mtu(workload.mtu)
        .seed(0x5eed + u64::from(host))
        .virtual_time(POLL_TIME)
        // Fewer than by default: initializing them takes part of the time of a memory trace.
        .regions_max(256)
        .linger(Duration::ZERO)
        .drop_linger(Duration::ZERO);
    if is_roomy {
        config.qps_max = CROWD_QPS_MAX;
    }
    if host == 1 {
        config.tcp.ecn = workload.ecn_mode();
    }
    config
}
