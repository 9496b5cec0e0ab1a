//! Ends of connections over `ring`, polled by the threads that measure.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ferrowarp::device::DeviceSpec;
use ferrowarp::{
    Access, Config, ConnParam, Context, Cq, Listener, Mr, Operation, Payload, Pd, Qp, QpOptions,
    QpState, SendWr, TcpStats, Wc, WcStatus,
};

/// Port on which a sink listens.
const PORT: u16 = 18515;
/// Time until two queue pairs are connected.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// The mempools are sized for full windows of at most this many connections.
const WINDOWS_MAX: u32 = 64;

/// Configuration of the host 198.18.0.`host` with so many connections.
#[must_use]
pub fn config(host: u8, mtu: u16, connections: usize) -> Config {
    let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, host].into(), 24);
    config.mtu = mtu;
    let windows = u32::try_from(connections).unwrap_or(u32::MAX).min(WINDOWS_MAX);
    config.pools.windows = config.pools.windows.max(windows);
    config.limits.connections_max = config.limits.connections_max.max(2 * connections);
    config.linger = Duration::ZERO;
    config.drop_linger = Duration::ZERO;
    config
}

/// Returns the cores that two ends may have: those given, or else the first two of this task; one
/// if there is no other.
///
/// # Errors
/// If they cannot be told.
pub fn cores_of_ends(given: &[usize]) -> Result<Vec<usize>> {
    let ours = core_affinity::get_core_ids().unwrap_or_default();
    let mut cores: Vec<usize> = ours.iter().map(|core| core.id).take(2).collect();
    if !given.is_empty() {
        cores = given.to_vec();
    }
    cores.dedup();
    ensure!(matches!(cores.len(), 1..=2), "--cores takes one core for both ends, or two");
    Ok(cores)
}

/// A context with queue pairs, one completion queue for all and one memory region.
pub struct End {
    // Before what they use: fields are dropped in their order.
    qps: Vec<Qp>,
    listener: Option<Listener>,
    mr: Mr,
    cq: Cq,
    _pd: Pd,
    context: Context,
    completions: Vec<Wc>,
    /// Address of the host.
    host: u8,
}

impl End {
    /// Creates `qps` queue pairs of so many outstanding requests, and a region of `len` bytes.
    ///
    /// # Errors
    /// Errors of the verbs.
    pub fn new(context: Context, host: u8, qps: usize, depth: usize, len: usize) -> Result<Self> {
        let pd = context.alloc_pd();
        let cq = context.create_cq((qps * depth).max(64))?;
        let mr = pd.register(context.allocate(len)?, Access::ALL)?;
        let options = QpOptions::new(&cq).max_send_wr(depth).max_recv_wr(1);
        let qps = (0..qps).map(|_| pd.create_qp(&options)).collect::<Result<_, _>>()?;
        let completions = Vec::with_capacity(256);
        Ok(Self { qps, listener: None, mr, cq, _pd: pd, context, completions, host })
    }

    /// Connects the queue pair `index` to the queue pair `sink_index` of a sink.
    ///
    /// # Errors
    /// If that fails, or takes too long.
    pub fn connect(&mut self, index: usize, sink: &mut Self, sink_index: usize) -> Result<()> {
        let listener = match sink.listener.take() {
            Some(listener) => listener,
            None => sink.context.listen(PORT, 16)?,
        };
        let remote = ([198, 18, 0, sink.host], PORT).into();
        self.qps[index].connect(remote, ConnParam::default())?;
        let start = Instant::now();
        loop {
            self.poll(|_, _| ())?;
            sink.poll(|_, _| ())?;
            if let Some(request) = listener.poll() {
                request.accept(&sink.qps[sink_index], ConnParam::default())?;
            }
            match [self.qps[index].state(), sink.qps[sink_index].state()] {
                [QpState::Rts, QpState::Rts] => break,
                [QpState::Error, _] | [_, QpState::Error] => bail!("queue pair {index}: refused"),
                _ => ensure!(start.elapsed() < CONNECT_TIMEOUT, "queue pair {index}: no answer"),
            }
        }
        sink.listener = Some(listener);
        Ok(())
    }

    /// Polls once: drives the stack, and takes completions. `completed` gets `wr_id` and number of
    /// each run of completions with the same `wr_id`.
    ///
    /// # Errors
    /// If a request failed.
    #[inline]
    pub fn poll(&mut self, mut completed: impl FnMut(u64, usize)) -> Result<()> {
        self.cq.poll(&mut self.completions);
        for run in self.completions.chunk_by(|a, b| a.wr_id == b.wr_id) {
            if let Some(wc) = run.iter().find(|wc| wc.status != WcStatus::Success) {
                bail!("{wc:?}");
            }
            completed(run[0].wr_id, run.len());
        }
        self.completions.clear();
        Ok(())
    }

    /// Posts `count` RDMA Writes of `len` bytes at `offset` to the same place of a remote region.
    ///
    /// # Errors
    /// If the queue pair does not take all of them.
    #[inline]
    pub fn write(&self, index: usize, (wr_id, count): (u64, usize), write: &Write) -> Result<()> {
        let wrs = (0..count).map(|_| {
            let payload = Payload::Gather([self.mr.sge(write.offset, write.len)].into());
            let remote = write.remote.addr + write.offset as u64;
            let operation = Operation::Write { payload, rkey: write.remote.rkey, remote };
            SendWr { wr_id, operation, signaled: true, fence: false }
        });
        let (posted, error) = self.qps[index].post_sends(wrs);
        if let Some(error) = error {
            return Err(error).with_context(|| format!("{posted} of {count} posted"));
        }
        Ok(())
    }

    /// Returns the region.
    #[must_use]
    pub fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Returns what a peer needs to write to the region.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote { rkey: self.mr.rkey(), addr: self.mr.addr() }
    }

    /// Returns the number of queue pairs.
    #[must_use]
    pub fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// Returns the TCP counters of a queue pair's connection.
    ///
    /// # Errors
    /// If it has ended.
    pub fn tcp_stats(&self, index: usize) -> Result<TcpStats> {
        self.qps[index].tcp_stats().context("the connection has ended")
    }

    /// Returns the number of frames handed to the port.
    #[must_use]
    pub fn frames_sent(&self) -> u64 {
        self.context.counters().engine.frames_out
    }
}

/// A region of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    rkey: u32,
    addr: u64,
}

/// An RDMA Write, without its queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// The region to write to.
    pub remote: Remote,
    /// Place in both regions.
    pub offset: usize,
    /// Bytes.
    pub len: u32,
}
