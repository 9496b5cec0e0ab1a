//! Ends of connections, polled by the threads that measure, most of them over `ring`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ferrowarp::device::{DeviceSpec, DpdkDevice, OpenConfig, open, register_current_thread};
use ferrowarp::stats::TcpStats;
use ferrowarp::{
    Access, Config, ConnEvent, ConnParam, Context, Cq, EndReason, Listener, Mr, Pd, Qp, QpOptions,
    QpState, RemoteAddr, Wc, WcStatus,
};

/// First of the ports on which a sink listens.
const PORT: u16 = 4791;
/// Ports from which connections are opened.
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 10_000..=65_534;
/// Connections to one port: fewer than there are source ports, so that one is found at once even
/// while ended connections keep theirs in TIME-WAIT.
const CONNECTIONS_PER_PORT: usize = 25_000;
/// Time until two queue pairs are connected, or ended.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// The mempools are sized for full windows of at most this many connections.
const WINDOWS_MAX: u32 = 64;

/// Configuration of the host 198.18.0.`host` over `ring` with so many connections.
pub(crate) fn config(host: u8, mtu: u16, connections: usize) -> Config {
    let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, host].into(), 24);
    config.mtu = mtu;
    let windows = u32::try_from(connections).unwrap_or(u32::MAX).min(WINDOWS_MAX);
    config.pools.windows = config.pools.windows.max(windows);
    config.source_ports = SOURCE_PORTS;
    config.qps_max = config.qps_max.max(connections);
    // As many again may be in TIME-WAIT.
    config.limits.connections_max = config.limits.connections_max.max(2 * connections);
    config.limits.queue_entries_max = config.limits.queue_entries_max.max(1 << 26);
    config.linger = Duration::ZERO;
    config.drop_linger = Duration::ZERO;
    config
}

/// Opens the two ends of a `ring` for so many connections.
pub(crate) fn open_ring(mtu: u16, connections: usize) -> Result<(DpdkDevice, DpdkDevice)> {
    let options = OpenConfig::new().mtu(mtu).pools(config(1, mtu, connections).pools);
    open(&DeviceSpec::Ring, &options)?.into_pair().context("a ring has two ends")
}

/// Two connected ends on this thread, with Writes from the source to the sink.
pub(crate) struct Pair {
    pub(crate) source: End,
    pub(crate) sink: End,
    write: Write,
    pub(crate) completed: u64,
}

/// Bytes and number of the Writes that a source at full speed has outstanding.
pub(crate) const STREAM: (u32, usize) = (65_536, 128);
/// Time before the measurements of such a source: slow start, and growth of the window.
pub(crate) const STREAM_WARM_UP: Duration = Duration::from_millis(100);

impl Pair {
    /// Connects the hosts 1 and 2, and begins Writes at full speed.
    pub(crate) fn connect(left: Context, right: Context) -> Result<Self> {
        let (size, depth) = STREAM;
        let mut source = End::new(left, 1, 1, depth, size as usize)?;
        let mut sink = End::new(right, 2, 1, 1, size as usize)?;
        source.connect(0, &mut sink, 0)?;
        Self::new(source, sink, size, depth)
    }

    /// Begins Writes of `size` bytes on the first queue pair of connected ends.
    pub(crate) fn new(source: End, sink: End, size: u32, depth: usize) -> Result<Self> {
        let write = sink.write_to(0, size);
        source.write(0, depth, &write)?;
        Ok(Self { source, sink, write, completed: 0 })
    }

    /// Polls the source, and posts as many Writes as have completed.
    #[inline]
    pub(crate) fn poll_source(&mut self) -> Result<()> {
        self.source.poll(|source, index, count| {
            self.completed += count as u64;
            source.write(index, count, &self.write)
        })
    }

    #[inline]
    pub(crate) fn poll_sink(&mut self) -> Result<()> {
        self.sink.poll(|_, _, _| Ok(()))
    }

    /// Polls both ends.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<()> {
        self.poll_source()?;
        self.poll_sink()
    }

    /// Writes for some time; returns the bandwidth in Gb/s.
    pub(crate) fn run(&mut self, duration: Duration) -> Result<f64> {
        let (start, before) = (Instant::now(), self.completed);
        loop {
            for _ in 0..POLLS_PER_CLOCK_READ {
                self.poll()?;
            }
            let elapsed = start.elapsed();
            if elapsed >= duration {
                let bytes = (self.completed - before) * u64::from(self.write.len);
                return Ok(bytes as f64 * 8.0 / elapsed.as_nanos() as f64);
            }
        }
    }

    /// Returns the TCP counters of source and sink.
    pub(crate) fn tcp_stats(&self) -> Result<[TcpStats; 2]> {
        Ok([self.source.tcp_stats(0)?, self.sink.tcp_stats(0)?])
    }
}

/// Polls between two readings of the clock.
const POLLS_PER_CLOCK_READ: usize = 32;

/// A context with queue pairs, one completion queue for all and one memory region.
pub(crate) struct End {
    // Before what they use: fields are dropped in their order.
    qps: Vec<Qp>,
    listeners: Vec<Listener>,
    mr: Mr,
    cq: Cq,
    pd: Pd,
    context: Context,
    completions: Box<[Wc]>,
    host: u8,
}

impl End {
    /// Creates `qps` queue pairs of so many outstanding requests, and a region of `len` bytes. This
    /// thread polls them.
    pub(crate) fn new(
        context: Context,
        host: u8,
        qps: usize,
        depth: usize,
        len: usize,
    ) -> Result<Self> {
        let cq = context.create_cq((qps * depth).max(64))?;
        Self::with_cq(context, cq, host, qps, depth, len)
    }

    /// As [`End::new`], with a completion queue of the context.
    pub(crate) fn with_cq(
        context: Context,
        cq: Cq,
        host: u8,
        qps: usize,
        depth: usize,
        len: usize,
    ) -> Result<Self> {
        register_current_thread();
        let pd = context.alloc_pd();
        let mr = pd.register(context.allocate(len)?, Access::ALL)?;
        let (completions, listeners) = (vec![Wc::default(); 256].into(), Vec::new());
        let mut end = Self { qps: vec![], listeners, mr, cq, pd, context, completions, host };
        end.add_qps(qps, depth, 1)?;
        Ok(end)
    }

    /// Creates further queue pairs of so many requests.
    pub(crate) fn add_qps(&mut self, count: usize, send: usize, recv: usize) -> Result<()> {
        let options = QpOptions::new(&self.cq).max_send_wr(send).max_recv_wr(recv);
        for _ in 0..count {
            self.qps.push(self.pd.create_qp(&options)?);
        }
        Ok(())
    }

    /// Connects the queue pair `index` to the queue pair `sink_index` of a sink.
    pub(crate) fn connect(
        &mut self,
        index: usize,
        sink: &mut Self,
        sink_index: usize,
    ) -> Result<()> {
        let of_port = sink_index / CONNECTIONS_PER_PORT;
        let port = PORT + u16::try_from(of_port)?;
        if of_port == sink.listeners.len() {
            sink.listeners.push(sink.context.listen(port, 16)?);
        }
        let remote = ([198, 18, 0, sink.host], port).into();
        self.qps[index].connect(remote, ConnParam::new())?;
        let start = Instant::now();
        loop {
            // All shards: an answer need not arrive at the one that asked.
            self.context.drive();
            sink.context.drive();
            if let Some(request) = sink.listeners[of_port].poll() {
                request.accept(&sink.qps[sink_index], ConnParam::new())?;
            }
            match [self.qps[index].state(), sink.qps[sink_index].state()] {
                [QpState::Rts, QpState::Rts] => return Ok(()),
                [QpState::Error, _] | [_, QpState::Error] => bail!("queue pair {index}: refused"),
                _ => ensure!(start.elapsed() < CONNECT_TIMEOUT, "queue pair {index}: no answer"),
            }
        }
    }

    /// Ends the connection of the last queue pair with that of `sink` gracefully, and destroys
    /// both.
    pub(crate) fn end_last(&mut self, sink: &mut Self) -> Result<()> {
        let (Some(active), Some(passive)) = (self.qps.pop(), sink.qps.pop()) else {
            bail!("no queue pair is left");
        };
        active.close()?;
        let start = Instant::now();
        for qp in [&active, &passive] {
            loop {
                use EndReason::{Local, PeerClosed};
                match qp.next_event() {
                    Some(ConnEvent::Disconnected { reason: Local | PeerClosed, .. }) => break,
                    Some(ConnEvent::Established { .. }) | None => {}
                    Some(other) => bail!("instead of a graceful end: {other:?}"),
                }
                self.poll(|_, _, _| Ok(()))?;
                sink.poll(|_, _, _| Ok(()))?;
                ensure!(start.elapsed() < CONNECT_TIMEOUT, "a connection does not end");
            }
        }
        Ok(())
    }

    /// Polls once: drives the stack, and takes completions. `completed` gets the queue pair and the
    /// number of each run of completions.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        mut completed: impl FnMut(&Self, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let found = self.cq.poll(&mut self.completions).len();
        for run in self.completions[..found].chunk_by(|a, b| a.wr_id == b.wr_id) {
            if let Some(wc) = run.iter().find(|wc| wc.status != WcStatus::Success) {
                bail!("{wc:?}");
            }
            completed(self, usize::try_from(run[0].wr_id)?, run.len())?;
        }
        Ok(())
    }

    /// Posts `count` RDMA Writes on the queue pair `index`.
    #[inline]
    pub(crate) fn write(&self, index: usize, count: usize, write: &Write) -> Result<()> {
        let &Write { rkey, addr, offset, len } = write;
        let remote = RemoteAddr { addr: addr + offset as u64, rkey };
        let mut post = self.qps[index].post();
        for _ in 0..count {
            post.write(self.mr.sge(offset, len), remote).wr_id(index as u64).signaled();
        }
        post.ring().map(drop).with_context(|| format!("{count} requests"))
    }

    pub(crate) fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Returns a Write of a peer to the region.
    pub(crate) fn write_to(&self, offset: usize, len: u32) -> Write {
        Write { rkey: self.mr.rkey(), addr: self.mr.addr(), offset, len }
    }

    pub(crate) fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// Returns the TCP counters of a queue pair's connection.
    pub(crate) fn tcp_stats(&self, index: usize) -> Result<TcpStats> {
        self.qps[index].tcp_stats().context("the connection has ended")
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the number of frames received, and handed to the port.
    pub(crate) fn frames(&self) -> [u64; 2] {
        let counters = self.context.counters().engine;
        [counters.frames_in, counters.frames_out]
    }
}

/// An RDMA Write of `len` bytes at `offset` to the same place of a remote region, without its queue
/// pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    rkey: u32,
    addr: u64,
    pub(crate) offset: usize,
    pub(crate) len: u32,
}
