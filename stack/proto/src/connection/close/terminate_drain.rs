//! Receive path after the local end has ended a stream, by an error or a local call. If the peer
//! has found an error by then, its Terminate is on the way. We report it
//! ([`ConnEvent::TerminateReceived`], RFC 5040 section 5.4).
//!
//! To find it we deframe in-order bytes and check their CRCs. We place, deliver and answer nothing.
//! The drain ends at the first inconsistency, at the peer's FIN, or at the linger timeout.
//!
//! [`ConnEvent::TerminateReceived`]: crate::verbs::cm::ConnEvent::TerminateReceived

use crate::connection::Connection;
use crate::connection::context::{Context, Env};
use crate::connection::phase::{Phase, PhaseEvent};
use crate::mpa::deframer::{Deframer, PartialMemory};
use crate::mpa::stream_bytes::StreamBytes;
use crate::time::Instant;

impl<E: Env> Connection<E> {
    /// Ends the stream, except that a Terminate from the peer is still awaited if one is possible.
    pub(super) fn begin_terminate_drain(&mut self, cx: &mut Context<E>) {
        let fpdu_pool = &mut cx.pools.fpdu;
        let qp = self.qp.and_then(|qp| cx.qps.get(qp));
        let awaits_terminate = qp.is_some_and(|qp| qp.stream.awaits_terminate());
        match &mut self.phase {
            // Active streams have priority for buffers of the FPDU pool.
            Phase::Rdma { deframer }
                if awaits_terminate
                    && !self.tcb.peer_finished()
                    && (!deframer.has_partial() || !fpdu_pool.is_under_pressure()) =>
            {
                let deframer = Box::new(std::mem::replace(deframer, Deframer::new(None)));
                self.phase.enter(PhaseEvent::Drain, Phase::DrainTerminate { deframer });
            }
            _ => self.end_stream(fpdu_pool),
        }
    }

    /// Processes in-order bytes of a stream that has ended locally. Cost: a CRC over the bytes.
    #[cold]
    pub(crate) fn drain_terminate(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        mut bytes: StreamBytes<'_>,
    ) {
        let (fpdu_pool, crc) = (&mut cx.pools.fpdu, self.framing.has_crc());
        let Phase::DrainTerminate { deframer } = &mut self.phase else { return };
        let mut qp = self.qp.and_then(|qp| cx.qps.get_mut(qp));
        let is_open = loop {
            let Some(qp) = &mut qp else { break false };
            let memory = PartialMemory::Scarce;
            match deframer.next(now, &mut bytes, crc, fpdu_pool, memory, || self.tcb.peer_group()) {
                Ok(None) => break true,
                Ok(Some(ulpdu)) if qp.drain_ulpdu(&mut cx.verbs, ulpdu.bytes) => break false,
                Ok(Some(_)) => {}
                Err(_) => break false,
            }
        };
        if !is_open {
            self.end_stream(fpdu_pool);
        }
    }
}
