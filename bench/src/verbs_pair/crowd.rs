//! Queues of the source that have nothing to do, or whose requests wait for a full completion
//! queue: a poll should cost the same as without them.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use ferrowarp::{ConnParam, Qp, QpOptions, QpState, Srq};

use super::{PORT, TIMEOUT, VerbsPair};

/// Queue pairs without work, and as many whose requests wait.
const QP_COUNT: usize = 10_000;
const SRQ_COUNT: usize = 1000;
/// Length of the full completion queue, and requests that overrun it.
const FULL_LEN: usize = 4;

impl VerbsPair {
    /// Adds the queues to the source, until what is returned is dropped.
    pub fn add_crowd(&mut self) -> Result<impl Sized + use<>> {
        let Self { source, sink, workload, .. } = self;
        let pd = &source._pd;
        let srqs: Vec<Srq> = (0..SRQ_COUNT).map(|_| pd.create_srq(4)).collect::<Result<_, _>>()?;
        let idle = QpOptions::new(&source.cq).max_send_wr(1).max_recv_wr(1).shard(0);
        let mut qps: Vec<_> =
            (0..QP_COUNT).map(|_| pd.create_qp(&idle)).collect::<Result<_, _>>()?;
        let full = source.context.create_cq(FULL_LEN)?;
        let blocked = QpOptions::new(&full).max_send_wr(2 * FULL_LEN).max_recv_wr(1).shard(0);
        for _ in 0..QP_COUNT {
            let qp = pd.create_qp(&blocked)?;
            qp.post_recv(0, [])?;
            qps.push(qp);
        }
        // One that overruns the completion queue ends them all.
        let active = pd.create_qp(&blocked)?;
        let passive = sink._pd.create_qp(&QpOptions::new(&sink.cq))?;
        let listener = sink.context.listen(PORT + 1, 1)?;
        let remote = SocketAddr::new(workload.address(2), PORT + 1);
        active.connect(remote, ConnParam::new())?;
        let request = listener.accept_timeout(TIMEOUT).context("no connect request")?;
        request.accept(&passive, ConnParam::new())?;
        active.wait_established(TIMEOUT)?;
        let active = self.write_from(active, FULL_LEN + 1);
        while qps[QP_COUNT..].iter().any(|qp| qp.state() != QpState::Error) {
            self.source.context.drive();
            self.sink.context.drive();
        }
        qps.extend([active, passive]);
        Ok((qps, srqs, full))
    }

    /// Writes `count` messages from another queue pair of the source, and returns it. They are
    /// posted where those of the pair are: with a second place that posts, the compiler would not
    /// inline that in the first, whose instructions are counted.
    fn write_from(&mut self, qp: Qp, count: usize) -> Qp {
        let own = std::mem::replace(&mut self.source.qps[0], qp);
        for _ in 0..count {
            (self.progress[0], self.posted, self.to_post) = ([0; 2], 0, vec![0]);
            self.poll_source(1);
        }
        (self.progress[0], self.posted) = ([0; 2], 0);
        std::mem::replace(&mut self.source.qps[0], own)
    }
}
