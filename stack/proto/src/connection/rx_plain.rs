//! Plain segments (predicted ones) and trains of them: nearly all frames. We compare a frame with
//! the headers that the peer of a connection sends. The next frames of the burst that continue it
//! form a train with it. TCP processes a train as one segment; MPA receives it frame by frame.

use core::ops::Range;

use arrayvec::ArrayVec;

use crate::connection::Connection;
use crate::connection::context::{Context, Env, Retained, Rx};
use crate::connection::phase::Phase;
use crate::connection::schedule::BURST_LEN;
use crate::connection::segment_frame::PortFrame;
use crate::device::RxFrame;
use crate::mpa::fpdu;
use crate::mpa::stream_bytes::StreamBytes;
use crate::rdmap::stream::LastSinks;
use crate::tcp::{Tcb, TrainPayload};
use crate::time::Instant;
use crate::verbs::receive::UlpduOutcome;
use crate::wire::tcp::{Flags, PlainSegment, Segment};

/// Ends of the payload in the frames of a train after the first.
type Ends = ArrayVec<u16, BURST_LEN>;

/// Returns the payload of the train that begins with `first`, `len_max` bytes at most; the next
/// frame is the last of `burst`. Prediction alone refuses the frame behind the train, so a frame is
/// parsed at most once here, and once as the first of its own train.
#[inline(always)]
fn find_train<E: Env>(
    tcb: &Tcb<Rx<E>, Retained<E>>,
    first: &PlainSegment,
    burst: &[Rx<E>],
    len_max: u32,
    ends: &mut Ends,
) -> TrainPayload {
    let mut payload = TrainPayload::single(first.payload_len());
    let mut seq = first.header.seq + payload.len;
    for frame in burst.iter().rev() {
        let Some(next) = tcb.parse_plain(frame) else { break };
        let len = next.payload_len();
        if len == 0
            || len > len_max - payload.len
            || !next.header.continues(&first.header, seq)
            || ends.is_full()
        {
            break;
        }
        ends.push(next.payload_end);
        payload.push(len);
        seq += len;
    }
    payload
}

impl<E: Env> Connection<E> {
    /// Processes a frame, and the train that begins with it, of which `burst` has the rest. Gives
    /// the frame back if it is no plain segment of this connection, or if the engine has to admit
    /// it.
    #[inline(always)]
    pub(crate) fn process_plain(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        frame: Rx<E>,
        burst: &mut Vec<Rx<E>>,
    ) -> Result<(), Rx<E>> {
        if !matches!(self.phase, Phase::Rdma { .. }) {
            return Err(frame);
        }
        let Some(segment) = self.tcb.parse_plain(&frame) else { return Err(frame) };
        let mut ends = Ends::new_const();
        let find_train =
            |tcb: &_, len_max| find_train::<E>(tcb, &segment, burst, len_max, &mut ends);
        let payload =
            self.tcb.handle_plain(now, &segment.header, segment.payload_len(), find_train);
        let Some(payload) = payload else {
            return self.process_unpredicted(cx, now, &segment, frame);
        };
        if payload.len > 0 {
            self.deliver_train(cx, now, &segment, &payload, &ends, frame, burst);
        }
        Ok(())
    }

    /// Passes a plain segment that prediction refuses to the general path. It is of this connection
    /// and parsed already, with its checksums. Gives its frame back if the engine has to admit it.
    #[inline(never)]
    fn process_unpredicted(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        plain: &PlainSegment,
        frame: Rx<E>,
    ) -> Result<(), Rx<E>> {
        // RFC 9293 section 3.10.7.4, fourth: a SYN may open a new connection instead of this one.
        if !self.tcp_established || plain.header.flags.has(Flags::SYN) {
            return Err(frame);
        }
        let segment = Segment::from_plain(self.tcb.tuple(), plain);
        self.process_segment(cx, now, &segment, PortFrame(frame));
        Ok(())
    }

    /// Delivers the `payload` of a train: the payload of `first` in `frame`, then the payloads of
    /// the next frames from the end of `burst`, up to the `ends` there.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "the parts of a train")]
    fn deliver_train(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        first: &PlainSegment,
        payload: &TrainPayload,
        ends: &Ends,
        frame: Rx<E>,
        burst: &mut Vec<Rx<E>>,
    ) {
        let start = usize::from(first.payload_start);
        let mut rest = payload.len - first.payload_len();
        let mut sinks = LastSinks::NONE;
        let mut is_accepted =
            self.deliver_plain(cx, now, &frame, start..first.payload_end.into(), rest, &mut sinks);
        drop(frame);
        for &end in ends {
            let Some(frame) = burst.pop() else { break };
            // If bytes are declined, so are the bytes of all later frames.
            if is_accepted {
                rest -= u32::from(end - first.payload_start);
                is_accepted =
                    self.deliver_plain(cx, now, &frame, start..end.into(), rest, &mut sinks);
            }
        }
    }

    /// Delivers these `bytes` of `frame`, which `rest` bytes of the train follow. Returns false if
    /// they were declined, and the following ones with them.
    #[inline(always)]
    fn deliver_plain(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        frame: &Rx<E>,
        mut bytes: Range<usize>,
        rest: u32,
        sinks: &mut LastSinks,
    ) -> bool {
        let whole = frame.head().get(bytes.clone()).unwrap_or_default();
        let (used, outcome) = self.on_whole_fpdus(cx, whole, sinks);
        bytes.start += used;
        if outcome != UlpduOutcome::Continue {
            let rest = StreamBytes::of_frame(frame, bytes);
            self.on_stream_ended(cx, now, outcome, rest);
            return true;
        }
        if bytes.is_empty() {
            return true;
        }
        *sinks = LastSinks::NONE;
        self.on_stream_bytes(cx, now, frame, bytes, rest)
    }

    /// Processes the complete FPDUs at the start of `bytes`, the next of the stream. Returns the
    /// number of bytes consumed, and the outcome of the last FPDU. If the stream goes on, the other
    /// bytes are to be passed to [`Connection::on_stream_bytes`].
    #[inline(always)]
    fn on_whole_fpdus(
        &mut self,
        cx: &mut Context<E>,
        bytes: &[u8],
        sinks: &mut LastSinks,
    ) -> (usize, UlpduOutcome) {
        let (mut rest, mut outcome) = (bytes, UlpduOutcome::Continue);
        let Context { qps, verbs, .. } = cx;
        let Phase::Rdma { deframer } = &self.phase else { return (0, outcome) };
        if !self.startup.may_send() || !deframer.is_at_unmarked_fpdu() {
            return (0, outcome);
        }
        let Some(qp) = self.qp.and_then(|qp| qps.get_mut(qp)) else { return (0, outcome) };
        let crc = self.framing.has_crc();
        while outcome == UlpduOutcome::Continue
            && let Ok(Some((ulpdu, len))) = fpdu::parse(rest, crc)
        {
            rest = &rest[len..];
            outcome = qp.on_ulpdu_in_run(verbs, ulpdu, sinks);
        }
        (bytes.len() - rest.len(), outcome)
    }
}
