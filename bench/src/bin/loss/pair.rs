//! Two contexts over `ring` on one thread, with RDMA Writes from one to the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ferrowarp::device::{DeviceSpec, OpenConfig, open};
use ferrowarp::{
    Access, Config, ConnParam, Context, Cq, Mr, Operation, Payload, Pd, Qp, QpOptions, SendWr,
    TcpStats, Wc, WcStatus,
};

use crate::port::{Losses, LossyPort};

const PORT: u16 = 18515;
const DEPTH: usize = 128;
const TIMEOUT: Duration = Duration::from_secs(60);

struct End {
    // Before what they use: fields are dropped in their order.
    qp: Qp,
    mr: Mr,
    cq: Cq,
    _pd: Pd,
    context: Context,
    completions: Vec<Wc>,
}

/// Two connected contexts; the port of the source loses frames.
pub(crate) struct Pair {
    source: End,
    sink: End,
    size: u32,
    outstanding: usize,
    pub(crate) losses: Arc<Losses>,
}

impl Pair {
    pub(crate) fn connect(mtu: u16, size: u32, rate: f64, seed: u64) -> Result<Self> {
        let mut open_config = OpenConfig::default();
        open_config.mtu = mtu;
        let Some((left, right)) = open(&DeviceSpec::Ring, &open_config)?.into_pair() else {
            bail!("a ring has two ends");
        };
        let losses = Arc::new(Losses::default());
        let config = |host: u8| {
            let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, host].into(), 24);
            config.mtu = mtu;
            config.linger = Duration::ZERO;
            config.drop_linger = Duration::ZERO;
            config
        };
        // ACKs are not lost: what a lost one reports, the next reports as well.
        let left = LossyPort::new(left, rate, seed, &losses);
        let right = LossyPort::new(right, 0.0, seed, &Arc::default());
        let (left, right) = Context::joined((left, config(1)), (right, config(2)))?;
        let [source, sink] = [End::new(left, size)?, End::new(right, size)?];

        let listener = sink.context.listen(PORT, 1)?;
        source.qp.connect(([198, 18, 0, 2], PORT).into(), ConnParam::default())?;
        let request = listener.accept_timeout(TIMEOUT).context("no connect request")?;
        request.accept(&sink.qp, ConnParam::default())?;
        source.qp.wait_established(TIMEOUT)?;
        sink.qp.wait_established(TIMEOUT)?;
        Ok(Self { source, sink, size, outstanding: 0, losses })
    }

    /// Polls both ends once, and posts as many Writes as have completed; returns their number.
    pub(crate) fn poll(&mut self) -> Result<usize> {
        let count = self.source.poll()?;
        self.outstanding -= count;
        let (mr, remote) = (&self.source.mr, &self.sink.mr);
        let wrs = (self.outstanding..DEPTH).map(|wr_id| {
            let payload = Payload::Gather([mr.sge(0, self.size)].into());
            let operation =
                Operation::Write { payload, rkey: remote.rkey(), remote: remote.addr() };
            SendWr { wr_id: wr_id as u64, operation, signaled: true, fence: false }
        });
        let (posted, error) = self.source.qp.post_sends(wrs);
        self.outstanding += posted;
        if let Some(error) = error {
            return Err(error.into());
        }
        self.sink.poll()?;
        Ok(count)
    }

    /// Writes for some time; returns the bandwidth in Gb/s.
    pub(crate) fn bandwidth(&mut self, duration: Duration) -> Result<f64> {
        let start = Instant::now();
        let mut completed = 0;
        loop {
            for _ in 0..32 {
                completed += self.poll()?;
            }
            let elapsed = start.elapsed();
            if elapsed >= duration {
                let bits = completed as f64 * f64::from(self.size) * 8.0;
                return Ok(bits / elapsed.as_nanos() as f64);
            }
        }
    }

    /// Returns the counters of TCP at the source and at the sink.
    pub(crate) fn tcp_stats(&self) -> Result<[TcpStats; 2]> {
        let of = |end: &End| end.qp.tcp_stats().context("the connection has ended");
        Ok([of(&self.source)?, of(&self.sink)?])
    }
}

impl End {
    fn new(context: Context, size: u32) -> Result<Self> {
        let pd = context.alloc_pd();
        let cq = context.create_cq(2 * DEPTH)?;
        let mr = pd.register(context.allocate(size as usize)?, Access::ALL)?;
        let options = QpOptions::new(&cq).max_send_wr(DEPTH).max_recv_wr(1);
        let qp = pd.create_qp(&options)?;
        Ok(Self { qp, mr, cq, _pd: pd, context, completions: Vec::with_capacity(DEPTH) })
    }

    fn poll(&mut self) -> Result<usize> {
        let count = self.cq.poll(&mut self.completions);
        for wc in self.completions.drain(..) {
            ensure!(wc.status == WcStatus::Success, "{wc:?}");
        }
        Ok(count)
    }
}
