//! Transmit path: ready connections in round-robin order, retransmissions before new FPDUs. FPDUs
//! are built only when the window admits them.

use crate::ddp::memory::Memory;
use crate::device::{ChecksumMode, Device, TxClass, TxFrame};
use crate::engine::Engine;
use crate::engine::connection::{Connection, Phase};
use crate::engine::graceful_close::finish_close;
use crate::engine::queue_pairs::QueuePairs;
use crate::engine::rx::note_cq_overrun;
use crate::engine::tx_reclaim;
use crate::mpa::fpdu::{self, LENGTH_LEN, MULPDU_RANGE};
use crate::mpa::framing::Framing;
use crate::mpa::markers;
use crate::rdmap::stream::BuildError;
use crate::tcp::{self, Transmit, TxDemand};
use crate::time::Instant;
use crate::verbs::cm::EndReason;
use crate::verbs::wc::{Completions, CqId};

/// Segments that a connection sends per pass, at most.
const TX_QUANTUM_SEGMENTS: usize = 16;

/// Result of a connection's transmit quantum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxResult {
    /// Nothing more to send now.
    Done { sent: bool },
    /// The quantum was used up, or no frame could be allocated: `starved` if no segment with stream
    /// bytes was sent for lack of a frame.
    Again { sent: bool, starved: bool },
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Lets each connection on the ready list transmit one quantum. If frames or the transmit queue
    /// ran out, the next pass begins with the first connection that was starved.
    pub(super) fn transmit_ready(&mut self, now: Instant) -> bool {
        let mut worked = false;
        let mut starved = None;
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            let Some(conn) = self.connections.get_mut(index) else { continue };
            conn.in_ready_list = false;
            if !conn.next_hop.resolved && conn.tcb.state() != tcp::State::Closed {
                self.arm_timer(index);
                continue;
            }
            if conn.next_hop.needs_refresh(now, self.neighbors.epoch()) {
                self.refresh_next_hop(now, index);
            }
            match self.transmit(now, index) {
                TxResult::Done { sent } => worked |= sent,
                TxResult::Again { sent, starved: went_without } => {
                    worked |= sent;
                    if went_without {
                        starved.get_or_insert(index);
                    }
                    self.make_ready(index);
                }
            }
            self.handle_tcp_events_and_arm(now, index);
        }
        self.reclaim_if_needed(now);
        if let Some(first) = starved
            && let Some(at) = self.ready.iter().position(|&index| index == first)
        {
            self.ready.rotate_left(at);
        }
        worked
    }

    fn transmit(&mut self, now: Instant, index: u32) -> TxResult {
        let (mut sent, mut starved) = (false, true);
        // With the data pool empty no ACK can be piggybacked on data, and the peer's progress may
        // depend on it: a pure ACK is sent.
        let mut drained = false;
        // Demand computed after the record just built, reused by the next iteration.
        let mut known = None;
        let offload =
            ChecksumOffload { is_on: self.capabilities.checksum == ChecksumMode::Offload };
        // The connection holds its share of frames: it continues when one of them is acknowledged.
        let mut held_back = false;
        // Frames may become scarce within one quantum. Checked once, if there are bytes to send.
        let mut is_scarce = None;
        for _ in 0..TX_QUANTUM_SEGMENTS {
            let Self {
                connections,
                device,
                verbs,
                overrun_cqs: overrun,
                fpdu_pool: assembly,
                tx_reclaim: reclaim,
                ..
            } = self;
            let Some(conn) = connections.get_mut(index) else { return TxResult::Done { sent } };
            debug_assert!(known.is_none_or(|known| known == tx_demand(conn, verbs)), "{known:?}");
            let mut ready = known.take().unwrap_or_else(|| tx_demand(conn, verbs));
            if conn.closing && ready == TxDemand::Nothing {
                finish_close(conn, verbs, assembly);
            }
            if ready != TxDemand::Nothing
                && *is_scarce.get_or_insert_with(|| {
                    device.data_avail_count() < tx_reclaim::LOW_WATER_FRAMES + TX_QUANTUM_SEGMENTS
                })
            {
                held_back |=
                    tx_reclaim::exceeds_share(device.data_avail_count(), conn.tcb.records());
            }
            if drained || held_back {
                ready = TxDemand::Nothing;
            }
            let (pool, room) = match conn.tcb.next_transmit(now, ready) {
                Transmit::Idle if drained => return TxResult::Again { sent, starved },
                Transmit::Idle => return TxResult::Done { sent },
                Transmit::Control => (TxClass::Control, 0),
                Transmit::Retransmit { .. } => (TxClass::Retransmit, 0),
                // A minimal FPDU is built whole even if TCP has to cut it; no FPDU packed behind
                // another is.
                Transmit::NewData { capacity: room } => match ready {
                    TxDemand::Record(len) if len as usize <= room => (TxClass::Data, room),
                    // req: MPA-102, MPA-109, MPA-121
                    _ => (TxClass::Data, room.max(conn.framing.capacity_min())),
                },
            };
            let frame = if device.tx_free_count() > 0 { device.allocate(pool) } else { None };
            let Some(mut frame) = frame else {
                verbs.counters.frame_shortages += 1;
                if device.tx_free_count() > 0 && pool != TxClass::Control {
                    reclaim.on_alloc_failed(conn.tcb.records());
                }
                if pool == TxClass::Data && !drained {
                    drained = true;
                    continue;
                }
                return TxResult::Again { sent, starved };
            };
            let buf = frame.buf_mut();
            let len = match pool {
                TxClass::Control => conn.tcb.write_control(now, buf),
                TxClass::Retransmit => conn.tcb.write_retransmit(now, buf),
                TxClass::Data => {
                    let at = conn.tcb.header_len();
                    let filled = pack_payload(conn, verbs, overrun, &mut buf[at..at + room]);
                    let payload_len = filled.len;
                    if payload_len == 0 {
                        if filled.stream_failed {
                            self.begin_close(now, index);
                        }
                        continue;
                    }
                    let next = self::tx_demand(conn, verbs);
                    let push = next == TxDemand::Nothing;
                    let len = conn.tcb.write_new_data(now, buf, payload_len, push);
                    frame.set_len(len);
                    offload.request(conn, &mut frame, len - payload_len);
                    let retained = frame.retain();
                    if conn.tcb.on_sent(now, retained, payload_len) {
                        device.transmit(frame);
                        verbs.counters.frames_out += 1;
                    }
                    (sent, starved) = (true, false);
                    if filled.stream_failed {
                        self.begin_close(now, index);
                    } else if next == TxDemand::Nothing || !conn.framing.has_markers() {
                        // With markers the length depends on the position in the stream.
                        known = Some(next);
                    }
                    continue;
                }
            };
            frame.set_len(len);
            let header_len = if pool == TxClass::Control { len } else { conn.tcb.header_len() };
            offload.request(conn, &mut frame, header_len);
            device.transmit(frame);
            verbs.counters.frames_out += 1;
            sent = true;
            starved &= pool == TxClass::Control;
        }
        TxResult::Again { sent, starved: false }
    }
}

/// Returns the length of the next new record to be sent, if any.
pub(super) fn tx_demand<R, T, M, C>(conn: &Connection<R, T>, verbs: &QueuePairs<M, C>) -> TxDemand
where
    R: crate::device::RxFrame,
    T: crate::device::Retained,
    M: Memory,
    C: Completions,
{
    if let Some(startup_tx) = &conn.startup_tx {
        return TxDemand::Record(u32::try_from(startup_tx.len()).unwrap_or(u32::MAX));
    }
    let Some(qp) = conn.qp.and_then(|qp| verbs.get(qp)) else { return TxDemand::Nothing };
    let is_ready = match conn.phase {
        Phase::Rdma { .. } => conn.tx_allowed && qp.stream.can_build(),
        // A pending Terminate is still sent.
        Phase::DrainTerminate { .. } | Phase::Closed => qp.stream.is_terminate_pending(),
        _ => false,
    };
    if !is_ready {
        return TxDemand::Nothing;
    }
    let ulpdu_len = qp.stream.next_ulpdu_len().min(MULPDU_RANGE.end as u64 - 1);
    if conn.framing.has_markers() {
        return TxDemand::Record(marked_len_of(ulpdu_len, conn));
    }
    TxDemand::Record(fpdu_len_of(ulpdu_len))
}

/// As [`fpdu_len_of`], with the markers that fall into the FPDU.
#[cold]
fn marked_len_of<R, T>(ulpdu_len: u64, conn: &Connection<R, T>) -> u32
where
    R: crate::device::RxFrame,
    T: crate::device::Retained,
{
    let ulpdu_len = usize::try_from(ulpdu_len).unwrap_or(MULPDU_RANGE.end);
    let len = conn.framing.wire_len(ulpdu_len, conn.tcb.write_seq());
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[expect(clippy::cast_possible_truncation, reason = "a ULPDU is below 64 KiB")]
#[inline]
const fn fpdu_len_of(ulpdu_len: u64) -> u32 {
    fpdu::fpdu_len(ulpdu_len as usize) as u32
}

/// Result of [`pack_payload`].
#[derive(Clone, Copy)]
struct PackedPayload {
    /// Length of the payload in bytes.
    len: usize,
    /// The stream ended over a fault found while building.
    stream_failed: bool,
}

/// Fills the payload of a new segment: startup bytes, or as many complete FPDUs as fit. A message
/// that would be cut begins in a segment of its own.
fn pack_payload<R, T, M, C>(
    conn: &mut Connection<R, T>,
    verbs: &mut QueuePairs<M, C>,
    overrun: &mut Vec<CqId>,
    payload: &mut [u8],
) -> PackedPayload
where
    R: crate::device::RxFrame,
    T: crate::device::Retained,
    M: Memory,
    C: Completions,
{
    let mut ended = false;
    if let Some(startup_tx) = &mut conn.startup_tx {
        let len = startup_tx.take(payload);
        if startup_tx.len() == 0 {
            conn.startup_tx = None;
        }
        return PackedPayload { len, stream_failed: ended };
    }
    let Some(index) = conn.qp else { return PackedPayload { len: 0, stream_failed: ended } };
    // A payload above EMSS is a path MTU probe. If it is lost its bytes are retransmitted in
    // segments of EMSS, so FPDUs of that size are packed, and a message may be cut here.
    let framing = conn.framing;
    let whole = framing.fpdu_len_max(conn.tcb.emss());
    // Marker phase of the next byte, if sent FPDUs have markers.
    let start = if framing.has_markers() { framing.phase(conn.tcb.write_seq()) } else { None };
    let is_probe = payload.len() > whole + 3;
    let mut used = 0;
    while let (Some(qp), memory) = verbs.qp_and_memory(index) {
        if !qp.stream.can_build() {
            break;
        }
        // req: MPA-009, MPA-013, MPA-014, MPA-015, MPA-099, MPA-108, MPA-110, MPA-122
        let room = payload.len() - used;
        let phase = start.map(|start| markers::advance_phase(start, used));
        let mut ulpdu_max = Framing::ulpdu_max(room, phase);
        // A Terminate that replaces a shorter message may not fit the capacity given for that.
        // req: MPA-121
        let may_cut = (used == 0 && !ended) || (is_probe && ulpdu_max >= MULPDU_RANGE.start);
        if !may_cut && qp.stream.next_ulpdu_len() > ulpdu_max as u64 {
            break;
        }
        if is_probe && room >= whole + framing.capacity_min() {
            ulpdu_max = Framing::ulpdu_max(whole, phase);
        }
        let fpdu = &mut payload[used..];
        match qp.stream.build(memory, &mut fpdu[LENGTH_LEN..LENGTH_LEN + ulpdu_max]) {
            Ok(len) => used += framing.finalize(fpdu, len, phase),
            // The Terminate is pending now, and built in the next iteration.
            Err(BuildError::Request) => {
                ended = true;
                verbs.counters.terminates_out += 1;
                verbs.enter_error(index, EndReason::LocalError);
                continue;
            }
            Err(BuildError::Response(terminate)) => {
                ended = true;
                verbs.terminate_with(index, *terminate);
                continue;
            }
        }
        verbs.counters.fpdus_out += 1;
    }
    if !verbs.complete_sends(index)
        && let Some(qp) = verbs.get(index)
    {
        note_cq_overrun(overrun, qp.init.send_cq);
    }
    PackedPayload { len: used, stream_failed: ended }
}

/// Checksum offload to the port, if on.
#[derive(Clone, Copy)]
struct ChecksumOffload {
    is_on: bool,
}

impl ChecksumOffload {
    fn request<R, T, F>(self, conn: &Connection<R, T>, frame: &mut F, header_len: usize)
    where
        R: crate::device::RxFrame,
        T: crate::device::Retained,
        F: TxFrame,
    {
        if self.is_on {
            let (l2, l3) = conn.tcb.l2_l3_len();
            frame.request_checksum(l2, l3, header_len - l2 - l3);
        }
    }
}
