//! Queues of the source that have nothing to do, or whose requests wait for a full completion
//! queue: a poll should cost the same as without them.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use ferrowarp::{
    ConnParam, Cq, Operation, Payload, Qp, QpOptions, QpState, RecvWr, SendWr, SgList, Srq,
};

use super::{PORT, TIMEOUT, VerbsPair};

const IDLE_COUNT: usize = 10_000;
const SRQ_COUNT: usize = 1000;
const BLOCKED_COUNT: usize = 10_000;
/// Length of the full completion queue, and requests that overrun it.
const FULL_LEN: usize = 4;

/// See the [module's documentation](self).
pub struct Crowd {
    _qps: Vec<Qp>,
    _srqs: Vec<Srq>,
    _full: Cq,
}

impl Crowd {
    /// Adds the queues to the source.
    ///
    /// # Errors
    /// If one cannot be created, or a connection fails.
    pub fn add(pair: &mut VerbsPair) -> Result<Self> {
        let VerbsPair { source, sink, workload, .. } = pair;
        let pd = &source._pd;
        let srqs = (0..SRQ_COUNT).map(|_| pd.create_srq(4)).collect::<Result<_, _>>()?;
        let idle = QpOptions::new(&source.cq).max_send_wr(1).max_recv_wr(1).shard(0);
        let mut qps: Vec<_> =
            (0..IDLE_COUNT).map(|_| pd.create_qp(&idle)).collect::<Result<_, _>>()?;
        let full = source.context.create_cq(FULL_LEN)?;
        let blocked = QpOptions::new(&full).max_send_wr(2 * FULL_LEN).max_recv_wr(1).shard(0);
        for _ in 0..BLOCKED_COUNT {
            let qp = pd.create_qp(&blocked)?;
            qp.post_recv(RecvWr { wr_id: 0, sg_list: SgList::default() })?;
            qps.push(qp);
        }
        // One that overruns the completion queue ends them all.
        let active = pd.create_qp(&blocked)?;
        let passive = sink._pd.create_qp(&QpOptions::new(&sink.cq))?;
        let listener = sink.context.listen(PORT + 1, 1)?;
        let remote = SocketAddr::new(workload.address(2), PORT + 1);
        active.connect(remote, ConnParam::default())?;
        let request = listener.accept_timeout(TIMEOUT).context("no connect request")?;
        request.accept(&passive, ConnParam::default())?;
        active.wait_established(TIMEOUT)?;
        let empty = |wr_id| SendWr {
            wr_id,
            operation: Operation::Write { payload: Payload::empty(), rkey: 0, remote: 0 },
            signaled: true,
            fence: false,
        };
        active.post_sends((0..=FULL_LEN as u64).map(empty)).1.map_or(Ok(()), Err)?;
        while qps[IDLE_COUNT..].iter().any(|qp| qp.state() != QpState::Error) {
            source.context.drive();
            sink.context.drive();
        }
        qps.extend([active, passive]);
        Ok(Self { _qps: qps, _srqs: srqs, _full: full })
    }
}
