//! Packing of complete FPDUs into the payload of a segment.

use crate::connection::context::Env;
use crate::connection::{Connection, unmarked_demand};
use crate::ddp::memory::Memory;
use crate::mpa::fpdu::{LENGTH_LEN, MULPDU_RANGE, begin_fpdu, fpdu_len, len_of_first};
use crate::mpa::framing::Framing;
use crate::mpa::markers;
use crate::rdmap::stream::{BuildError, LastOf};
use crate::tcp::TxDemand;
use crate::verbs::cm::EndReason;
use crate::verbs::queue_pair::Qp;
use crate::verbs::resources::Verbs;

/// Result of [`Connection::pack_payload`].
#[derive(Clone, Copy)]
pub(super) struct PackedPayload {
    /// Length of the payload in bytes.
    pub(super) len: usize,
    /// The stream ended over a fault found while building.
    pub(super) stream_failed: bool,
    /// Demand after this payload, if it is known.
    pub(super) next: Option<TxDemand>,
}

impl<E: Env> Connection<E> {
    /// Fills the payload of a new segment: startup bytes, or as many complete FPDUs as fit. A
    /// message that would be cut begins in a segment of its own. `qp` is the connection's.
    #[inline(always)]
    pub(super) fn pack_payload(
        &mut self,
        mut qp: Option<&mut Qp>,
        verbs: &mut Verbs<E::Memory, E::Completions>,
        payload: &mut [u8],
    ) -> PackedPayload {
        // Often these are short Writes alone, or short Sends.
        if let Some(qp) = &mut qp
            && payload.len() <= self.tcb.emss()
            && !self.framing.has_markers()
            && self.startup_tx.is_none()
        {
            let mut len = pack_writes(qp, verbs, self.framing, payload);
            if len == 0 {
                len = pack_sends(qp, verbs, self.framing, payload);
            }
            if len > 0 {
                // Nothing follows, or nothing that fits.
                let next = qp.stream.next_tx();
                let ulpdu_max = Framing::ulpdu_max(payload.len() - len, None) as u64;
                if next.is_none_or(|next| next.ulpdu_len > ulpdu_max) {
                    qp.complete_sends(verbs);
                    let next = next.map_or(TxDemand::Nothing, unmarked_demand);
                    return PackedPayload { len, stream_failed: false, next: Some(next) };
                }
            }
            return self.pack_any(Some(qp), verbs, payload, len);
        }
        self.pack_any(qp, verbs, payload, 0)
    }

    /// Fills any payload as [`Connection::pack_payload`] does. `len` bytes of it are filled.
    #[inline(never)]
    fn pack_any(
        &mut self,
        qp: Option<&mut Qp>,
        verbs: &mut Verbs<E::Memory, E::Completions>,
        payload: &mut [u8],
        mut len: usize,
    ) -> PackedPayload {
        let mut stream_failed = false;
        // RFC 5044 section 7.1: the startup frame comes before any FPDU.
        if let Some(startup_tx) = &mut self.startup_tx {
            let len = startup_tx.take(payload);
            if startup_tx.len() == 0 {
                // req: RDMAP-230
                self.startup_tx = None;
            }
            return PackedPayload { len, stream_failed, next: None };
        }
        let Some(qp) = qp else { return PackedPayload { len, stream_failed, next: None } };
        // A payload above EMSS is a path MTU probe. If it is lost its bytes are retransmitted in
        // segments of EMSS, so FPDUs of that size are packed, and a message may be cut here.
        let framing = self.framing;
        let emss_len = framing.fpdu_len_max(self.tcb.emss());
        // Marker phase of the next byte, if sent FPDUs have markers.
        let start = if framing.has_markers() { framing.phase(self.tcb.write_seq()) } else { None };
        let is_probe = payload.len() > emss_len + 3;
        let next = loop {
            let Some(next) = qp.stream.next_tx() else { break None };
            // RFC 5044 section 4.5: an FPDU fits the segment; appendix A.1: it begins there, or
            // behind others that are complete.
            // req: MPA-009, MPA-013, MPA-014, MPA-015, MPA-099, MPA-108, MPA-110, MPA-122
            let capacity = payload.len() - len;
            let phase = start.map(|start| markers::advance_phase(start, len));
            let mut ulpdu_max = Framing::ulpdu_max(capacity, phase);
            // RFC 5044 section 5.1: without room for a whole FPDU TCP cuts the first of a segment.
            // A Terminate that replaces a shorter message may not fit the capacity given for that.
            // req: MPA-121
            let may_cut =
                (len == 0 && !stream_failed) || (is_probe && ulpdu_max >= MULPDU_RANGE.start);
            if !may_cut && next.ulpdu_len > ulpdu_max as u64 {
                break Some(next);
            }
            if is_probe && capacity >= emss_len + framing.capacity_min() {
                ulpdu_max = Framing::ulpdu_max(emss_len, phase);
            }
            // RFC 5044 section 4.1: length, ULPDU, padding, CRC; section 4.3: markers in between.
            let fpdu = &mut payload[len..];
            let ulpdu = &mut fpdu[LENGTH_LEN..LENGTH_LEN + ulpdu_max];
            match qp.stream.build_next(next, &verbs.memory, ulpdu) {
                // req: MPA-098
                Ok(ulpdu_len) => len += framing.finalize(fpdu, ulpdu_len, phase),
                // RFC 5040 section 5.4: a fault ends the stream with a Terminate, which is pending
                // now, and built in the next iteration.
                Err(BuildError::Request) => {
                    stream_failed = true;
                    verbs.counters.terminates_out += 1;
                    qp.enter_error(verbs, EndReason::LocalError);
                    continue;
                }
                Err(BuildError::Response(terminate)) => {
                    stream_failed = true;
                    qp.terminate_with(verbs, *terminate);
                    continue;
                }
            }
            verbs.counters.fpdus_out += 1;
            // RFC 5044 appendix A.1: the ends of the next Writes share the segment.
            if start.is_none() && !is_probe {
                len += pack_writes(qp, verbs, framing, &mut payload[len..]);
            }
        };
        qp.complete_sends(verbs);
        // With markers the length depends on the position in the stream.
        let is_known = !stream_failed && !framing.has_markers();
        let next = is_known.then(|| next.map_or(TxDemand::Nothing, unmarked_demand));
        PackedPayload { len, stream_failed, next }
    }
}

/// Packs the last FPDUs of RDMA Writes: [`pack_last`].
// Not inlined, so that its loop keeps more in registers; nor is `pack_sends`.
#[inline(never)]
fn pack_writes<M: Memory, C>(
    qp: &mut Qp,
    verbs: &mut Verbs<M, C>,
    framing: Framing,
    payload: &mut [u8],
) -> usize {
    pack_last(LastOf::Writes, qp, verbs, framing, payload)
}

/// Packs the last FPDUs of Sends: [`pack_last`].
#[inline(never)]
fn pack_sends<M: Memory, C>(
    qp: &mut Qp,
    verbs: &mut Verbs<M, C>,
    framing: Framing,
    payload: &mut [u8],
) -> usize {
    pack_last(LastOf::Sends, qp, verbs, framing, payload)
}

/// Packs the last FPDUs of messages of this kind, without markers, into `payload`, until the next
/// FPDU is another or does not fit. Returns the bytes used.
// req: MPA-009, MPA-013, MPA-014, MPA-015, MPA-099, MPA-108, MPA-110, MPA-122
#[inline(always)]
fn pack_last<M: Memory, C>(
    kind: LastOf,
    qp: &mut Qp,
    verbs: &mut Verbs<M, C>,
    framing: Framing,
    payload: &mut [u8],
) -> usize {
    let (mut free, mut len) = (&mut *payload, 0);
    let built = qp.stream.build_last_segments(kind, &verbs.memory, |ulpdu_len| {
        let ulpdu = begin_fpdu(&mut free, ulpdu_len)?;
        len += fpdu_len(ulpdu_len);
        Some(ulpdu)
    });
    if built.page_fault {
        // The last FPDU that was begun stays behind.
        len = len_of_first(built.count, payload);
    }
    // Not one by one: a load waits until narrower stores to the same bytes are in the cache.
    framing.write_crcs(&mut payload[..len]);
    verbs.counters.fpdus_out += built.count;
    len
}
