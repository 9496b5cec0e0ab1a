//! Receive path after the local end has ended a stream, by an error or a local call. A peer that
//! had found an error by then has sent a Terminate; it is reported, too
//! ([`Event::TerminateReceived`], RFC 5040 section 5.4).
//!
//! So in-order bytes are still deframed, and CRCs checked. Nothing is placed, delivered or
//! answered. The drain ends at the first inconsistency, at the peer's FIN, or at the linger
//! timeout.

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::connection::Phase;
use crate::engine::queue_pairs::QueuePairs;
use crate::mpa::deframer::{Deframer, PartialMemory};
use crate::mpa::stream_bytes::StreamBytes;
use crate::rdmap::stream::Indication;
use crate::time::Instant;
use crate::verbs::cm::Event;
use crate::verbs::wc::Completions;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Ends the stream, except that a Terminate from the peer is still awaited if one is possible.
    pub(super) fn begin_terminate_drain(&mut self, index: u32) {
        let Self { connections, fpdu_pool: assembly, verbs, .. } = self;
        let Some(conn) = connections.get_mut(index) else { return };
        let awaits = conn.qp.and_then(|qp| verbs.get(qp)).is_some_and(|qp| {
            // Active streams have priority for buffers of the FPDU pool.
            let may_keep =
                |deframer: &Deframer| !deframer.has_partial() || !assembly.is_under_pressure();
            matches!(&conn.phase, Phase::Rdma { deframer } if may_keep(deframer))
                && qp.stream.awaits_terminate()
                && !conn.tcb.peer_finished()
        });
        if awaits
            && let Phase::Rdma { deframer: receiver } =
                std::mem::replace(&mut conn.phase, Phase::Closed)
        {
            conn.phase = Phase::DrainTerminate { deframer: Box::new(receiver) };
        } else {
            conn.end_stream(assembly);
        }
    }

    /// Processes in-order bytes of a stream that has ended locally. Cost: that of the CRC.
    #[cold]
    pub(super) fn drain_terminate(&mut self, now: Instant, index: u32, mut bytes: StreamBytes<'_>) {
        let Self { connections, fpdu_pool: pool, verbs, .. } = self;
        let Some(conn) = connections.get_mut(index) else { return };
        let crc = conn.framing.has_crc();
        let Phase::DrainTerminate { deframer } = &mut conn.phase else { return };
        let is_open = loop {
            let Some(qp) = conn.qp else { break false };
            match deframer.next(now, &mut bytes, crc, pool, PartialMemory::Scarce) {
                Ok(None) => break true,
                Ok(Some(ulpdu)) if verbs.drain_ulpdu(qp, ulpdu.bytes) => break false,
                Ok(Some(_)) => {}
                Err(_) => break false,
            }
        };
        if !is_open {
            conn.end_stream(pool);
        }
    }
}

impl<M: Memory, C: Completions> QueuePairs<M, C> {
    /// Processes a ULPDU after the end of its stream: true if it is a Terminate, which is reported.
    fn drain_ulpdu(&mut self, index: u32, ulpdu: &[u8]) -> bool {
        let (stream, _) = self.stream_of(index);
        let Some(Indication::Terminated(terminate)) =
            stream.and_then(|stream| stream.drain_ulpdu(ulpdu))
        else {
            return false;
        };
        self.counters.fpdus_in += 1;
        self.counters.terminates_in += 1;
        let qp = self.id(index);
        self.events.push_back(Event::TerminateReceived { qp, terminate });
        true
    }
}
