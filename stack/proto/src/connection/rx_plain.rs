//! Plain segments (predicted ones) and trains of them: nearly all frames. We compare a frame with
//! the headers that the peer of a connection sends. The next frames of the burst that continue it
//! form a train with it. TCP processes a train as one segment; MPA receives it frame by frame.

use arrayvec::ArrayVec;

use crate::connection::Connection;
use crate::connection::context::{Context, Env, Retained, Rx};
use crate::connection::phase::Phase;
use crate::connection::schedule::BURST_LEN;
use crate::connection::segment_frame::PortFrame;
use crate::ddp::memory::Memory;
use crate::device::RxFrame;
use crate::mpa::fpdu;
use crate::mpa::stream_bytes::StreamBytes;
use crate::rdmap::stream::LastSinks;
use crate::tcp::{Tcb, TrainPayload};
use crate::time::Instant;
use crate::verbs::queue_pair::Qp;
use crate::verbs::receive::UlpduOutcome;
use crate::verbs::resources::Verbs;
use crate::verbs::wc::Completions;
use crate::wire::tcp::{Flags, PlainSegment};

/// Ends of the payload in the frames of a train after the first.
type Ends = ArrayVec<u16, BURST_LEN>;

/// Returns the payload of the train that begins with `first`, `len_max` bytes at most; the next
/// frame is the last of `burst`. The segment behind the train, if it is a plain one of this
/// connection, is left in `behind`.
#[inline(always)]
fn find_train<E: Env>(
    tcb: &Tcb<Rx<E>, Retained<E>>,
    first: &PlainSegment,
    burst: &[Rx<E>],
    len_max: u32,
    ends: &mut Ends,
    behind: &mut Option<PlainSegment>,
) -> TrainPayload {
    let mut payload = TrainPayload::single(first.payload_len());
    let mut seq = first.header.seq + payload.len;
    for frame in burst.iter().rev() {
        let Some(next) = tcb.parse_plain(frame) else { break };
        let len = next.payload_len();
        if len == 0
            || next.has_other_options
            || len > len_max - payload.len
            || !next.header.continues(&first.header, seq)
            || ends.is_full()
        {
            *behind = Some(next);
            break;
        }
        ends.push(next.payload_end);
        payload.push(len);
        seq += len;
    }
    payload
}

/// Takes the complete FPDUs from the start of `bytes` and passes them to `qp`. Returns the outcome
/// of the last one.
#[inline(always)]
fn on_whole_fpdus<M: Memory, C: Completions>(
    qp: &mut Qp,
    verbs: &mut Verbs<M, C>,
    bytes: &mut &[u8],
    crc: bool,
    sinks: &mut LastSinks,
) -> UlpduOutcome {
    while let Ok(Some((ulpdu, len))) = fpdu::parse(bytes, crc) {
        *bytes = &bytes[len..];
        let outcome = qp.on_ulpdu_in_run(verbs, ulpdu, sinks);
        if outcome != UlpduOutcome::Continue {
            return outcome;
        }
    }
    UlpduOutcome::Continue
}

impl<E: Env> Connection<E> {
    /// Processes a frame, and the train that begins with it, of which `burst` has the rest; then
    /// the next train, if its first segment was parsed in search of the end of this one. Gives the
    /// frame back if it is no plain segment of this connection, or if the engine has to admit it.
    #[inline(always)]
    pub(crate) fn process_plain(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        mut frame: Rx<E>,
        burst: &mut Vec<Rx<E>>,
    ) -> Result<(), Rx<E>> {
        if !matches!(self.phase, Phase::Rdma { .. }) {
            return Err(frame);
        }
        let Some(mut segment) = self.tcb.parse_plain(&frame) else { return Err(frame) };
        loop {
            let (mut ends, mut behind) = (Ends::new_const(), None);
            let find_train = |tcb: &_, len_max| {
                find_train::<E>(tcb, &segment, burst, len_max, &mut ends, &mut behind)
            };
            let payload = if segment.has_other_options {
                None
            } else {
                self.tcb.handle_plain(now, &segment.header, segment.payload_len(), find_train)
            };
            let Some(payload) = payload else {
                return self.process_unpredicted(cx, now, &segment, frame);
            };
            if payload.len > 0 {
                self.deliver_train(cx, now, &segment, &payload, &ends, frame, burst);
            }
            let Some(next) = behind else { return Ok(()) };
            // Events are handled first, in the order of the wire.
            if self.tcb.has_events()
                || !cx.deferred.is_empty()
                || !matches!(self.phase, Phase::Rdma { .. })
            {
                return Ok(());
            }
            let Some(next_frame) = burst.pop() else { return Ok(()) };
            (segment, frame) = (next, next_frame);
        }
    }

    /// Passes a segment that prediction refuses to the general path, such as an ACK with SACK
    /// blocks. It is of this connection and parsed already, with its checksums. Gives its frame
    /// back if the engine has to admit it, or if an option is malformed.
    #[inline(never)]
    fn process_unpredicted(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        plain: &PlainSegment,
        frame: Rx<E>,
    ) -> Result<(), Rx<E>> {
        // Trains before it are to be answered, whatever becomes of it.
        self.make_ready(&mut cx.schedule);
        // RFC 9293 section 3.10.7.4, fourth: a SYN may open a new connection instead of this one.
        if !self.tcp_established || plain.header.flags.has(Flags::SYN) {
            return Err(frame);
        }
        let Ok(segment) = self.tcb.parse_options(plain, frame.head()) else { return Err(frame) };
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
        let (start, crc) = (first.payload_start, self.framing.has_crc());
        let (mut rest, mut sinks) = (payload.len, LastSinks::NONE);
        let (mut frame, mut end, mut ends) = (frame, first.payload_end, ends.iter());
        let mut following = || {
            let end = *ends.next()?;
            Some((burst.pop()?, end))
        };
        loop {
            // Complete FPDUs: the queue pair is looked up once for all frames that have no more.
            let Context { qps, verbs, .. } = &mut *cx;
            let is_at_fpdu = match &self.phase {
                Phase::Rdma { deframer } => {
                    self.startup.may_send() && deframer.is_at_unmarked_fpdu()
                }
                _ => false,
            };
            let mut qp = self.qp.filter(|_| is_at_fpdu).and_then(|qp| qps.get_mut(qp));
            let (bytes, outcome) = loop {
                rest -= u32::from(end - start);
                let mut bytes = start.into()..end.into();
                let mut outcome = UlpduOutcome::Continue;
                if let Some(qp) = &mut qp {
                    // A plain segment lies in the head of its frame.
                    let mut rest = frame.head().get(bytes.clone()).unwrap_or_default();
                    outcome = on_whole_fpdus(qp, verbs, &mut rest, crc, &mut sinks);
                    bytes.start = bytes.end - rest.len();
                }
                if outcome != UlpduOutcome::Continue || !bytes.is_empty() {
                    break (bytes, outcome);
                }
                let Some(next) = following() else { return };
                (frame, end) = next;
            };
            // Anything else, or the end of the stream.
            let is_accepted = if outcome == UlpduOutcome::Continue {
                sinks = LastSinks::NONE;
                self.on_stream_bytes(cx, now, &frame, bytes, rest)
            } else {
                self.on_stream_ended(cx, now, outcome, StreamBytes::of_frame(&frame, bytes));
                true
            };
            if !is_accepted {
                // If bytes are declined, so are the bytes of all later frames.
                while following().is_some() {}
                return;
            }
            let Some(next) = following() else { return };
            (frame, end) = next;
        }
    }
}
