//! What comes after this end has ended a stream, over an error or because it was told to. A peer
//! that had found an error of its own by then has sent a Terminate, and the application is told of
//! that one, too ([`Event::TerminateReceived`]).
//!
//! So bytes in order are still taken apart, and CRCs checked. Nothing is placed, delivered or
//! answered, and the first thing that does not add up is the end of it; so is the peer's FIN, or
//! the end of lingering.

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
    /// Ends the stream but for the peer's last word, if there may be one.
    pub(super) fn begin_terminate_drain(&mut self, index: u32) {
        let Self { connections, fpdu_pool: assembly, verbs, .. } = self;
        let Some(conn) = connections.get_mut(index) else { return };
        let awaits = conn.qp.and_then(|qp| verbs.get(qp)).is_some_and(|qp| {
            // Streams that go on have the first claim to buffers for partial FPDUs.
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

    /// Bytes in order of a stream that has ended here. Cost: that of their CRC.
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
    /// A ULPDU behind the end of its stream: true if it was the peer's Terminate, which is told.
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
