//! Trains of received segments: found among the frames of a burst, processed by TCP as one segment,
//! and delivered frame by frame.

use core::ops::Range;
use std::vec::Drain;

use arrayvec::ArrayVec;

use super::BURST_LEN;
use crate::cm::connection::{Connection, Phase};
use crate::cm::context::Context;
use crate::cm::env::{Env, Rx};
use crate::ddp::memory::Memory;
use crate::device::{Device, RxFrame};
use crate::engine::Engine;
use crate::mpa::fpdu;
use crate::mpa::stream_bytes::StreamBytes;
use crate::tcp::TrainPayload;
use crate::time::Instant;
use crate::verbs::receive::UlpduOutcome;
use crate::verbs::wc::Completions;
use crate::wire::tcp::{Segment, TrainHead};

/// Payload of the segments of a train.
struct Train {
    payload: TrainPayload,
    /// Offset of the payload in every frame.
    start: usize,
    /// End of the payload in each frame.
    ends: ArrayVec<usize, BURST_LEN>,
}

impl Train {
    /// Finds the train that begins with `segment`, in a frame with this `head`; `following` are the
    /// next frames. `None` if the next frame does not continue it.
    #[inline(always)]
    fn find<const L3: usize, R: RxFrame>(
        head: &TrainHead<'_, L3>,
        segment: &Segment,
        following: &[R],
    ) -> Option<Self> {
        let Range { start, end } = segment.payload;
        let mut train = Self {
            payload: TrainPayload::single(segment.payload_len()),
            start,
            ends: ArrayVec::new_const(),
        };
        train.ends.push(end);
        let mut seq = segment.seq + segment.payload_len();
        for frame in following {
            let Some(bytes) = head.payload_of_next(frame, seq) else { break };
            if train.ends.try_push(bytes.end).is_err() {
                break;
            }
            let len = u32::try_from(bytes.len()).unwrap_or(0);
            train.payload.push(len);
            seq += len;
        }
        (train.ends.len() > 1).then_some(train)
    }
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Processes the train that begins with `segment` in `frame`, of which `following` has the
    /// rest. Gives the frame back if there is none, or the train cannot be processed as a whole.
    #[inline(always)]
    pub(super) fn on_train<const L3: usize>(
        &mut self,
        now: Instant,
        segment: &Segment,
        frame: D::Rx,
        following: &mut Drain<'_, D::Rx>,
    ) -> Result<(), D::Rx> {
        let mode = self.cx.capabilities.checksum;
        let Some(index) = self.connections.find(&segment.tuple) else { return Err(frame) };
        let Some((conn, cx)) = self.at(index) else { return Err(frame) };
        if !matches!(conn.phase, Phase::Rdma { .. }) || !conn.tcb.may_start_train(segment) {
            return Err(frame);
        }
        let train = TrainHead::<L3>::new(frame.head(), segment, mode)
            .and_then(|head| Train::find(&head, segment, following.as_slice()));
        let Some(train) = train.filter(|train| conn.tcb.handle_train(now, segment, &train.payload))
        else {
            return Err(frame);
        };
        conn.deliver_train(cx, now, &train, frame, following);
        conn.make_ready(&mut cx.schedule);
        if conn.tcb.has_events() || !cx.deferred.is_empty() {
            self.handle_tcp_events(now, index);
        }
        Ok(())
    }
}

impl<E: Env> Connection<E> {
    /// Delivers the payload of a train: that of `first`, and of the next frames of `following`.
    #[inline(always)]
    fn deliver_train(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        train: &Train,
        first: Rx<E>,
        following: &mut Drain<'_, Rx<E>>,
    ) {
        let mut rest = train.payload.len;
        let mut ends = train.ends.iter();
        let mut next = Some(first);
        while let Some(frame) = next
            && let Some(&end) = ends.next()
        {
            let mut bytes = train.start..end;
            rest -= u32::try_from(bytes.len()).unwrap_or(0);
            // The first frame may consist of several parts.
            let whole = frame.head().get(bytes.clone()).unwrap_or_default();
            let (used, outcome) = self.on_whole_fpdus(cx, whole);
            bytes.start += used;
            if outcome != UlpduOutcome::Continue {
                let rest = StreamBytes::of_frame(&frame, bytes);
                self.on_stream_ended(cx, now, outcome, rest);
            } else if !bytes.is_empty() && !self.on_stream_bytes(cx, now, &frame, bytes, rest) {
                // Bytes were declined, and with them those of the other frames.
                following.by_ref().take(ends.len()).for_each(drop);
                break;
            }
            next = if ends.len() > 0 { following.next() } else { None };
        }
        self.deliver_contiguous(cx, now);
    }

    /// Processes the complete FPDUs at the start of `bytes`, the next of the stream. Returns the
    /// number of bytes consumed, and the outcome of the last FPDU. If the stream goes on, the other
    /// bytes are to be passed to [`Connection::on_stream_bytes`].
    #[inline(always)]
    fn on_whole_fpdus(&mut self, cx: &mut Context<E>, bytes: &[u8]) -> (usize, UlpduOutcome) {
        let (mut used, mut outcome) = (0, UlpduOutcome::Continue);
        let Context { qps, verbs, .. } = cx;
        let Phase::Rdma { deframer } = &self.phase else { return (used, outcome) };
        if !self.tx_allowed || !deframer.is_at_unmarked_fpdu() {
            return (used, outcome);
        }
        let Some(qp) = self.qp.and_then(|qp| qps.get_mut(qp)) else { return (used, outcome) };
        let crc = self.framing.has_crc();
        while outcome == UlpduOutcome::Continue
            && let Ok(Some((ulpdu, len))) = fpdu::parse(&bytes[used..], crc)
        {
            used += len;
            outcome = qp.on_ulpdu(verbs, ulpdu);
        }
        (used, outcome)
    }
}
