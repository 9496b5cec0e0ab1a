//! The short way in: the only frame of a burst, with an ACK or one whole FPDU, is processed in one
//! step, without the search for a train.

use crate::connection::Connection;
use crate::connection::context::{Context, Env, Rx};
use crate::connection::phase::Phase;
use crate::device::RxFrame;
use crate::mpa::fpdu;
use crate::mpa::stream_bytes::StreamBytes;
use crate::rdmap::stream::LastSinks;
use crate::time::Instant;
use crate::verbs::receive::UlpduOutcome;

impl<E: Env> Connection<E> {
    /// Processes a frame if it is a plain segment of this connection, without payload or with one
    /// whole FPDU: as [`Connection::process_plain`] does. Otherwise does nothing and returns false.
    #[inline(never)]
    pub(crate) fn receive_short(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        frame: &Rx<E>,
    ) -> bool {
        let is_at_fpdu = match &self.phase {
            Phase::Rdma { deframer } => self.startup.may_send() && deframer.is_at_unmarked_fpdu(),
            _ => false,
        };
        let Some(qp) = self.qp.filter(|_| is_at_fpdu).and_then(|qp| cx.qps.get_mut(qp)) else {
            return false;
        };
        // RFC 5044 section 6: the FPDU is whole, and its CRC is correct.
        let crc = self.framing.has_crc();
        let mut ulpdu = None;
        let is_taken = self.tcb.handle_only_plain(now, frame, |segment| {
            if segment.payload_len() == 0 {
                return true;
            }
            // A plain segment lies in the head of its frame.
            let bytes = segment.payload_start.into()..segment.payload_end.into();
            let bytes = frame.head().get(bytes).unwrap_or_default();
            if !fpdu::is_whole(bytes) {
                return false;
            }
            ulpdu = fpdu::parse(bytes, crc).ok().flatten().map(|(ulpdu, _)| ulpdu);
            ulpdu.is_some()
        });
        if let Some(ulpdu) = ulpdu.filter(|_| is_taken) {
            let mut sinks = LastSinks::NONE;
            let outcome = qp.on_ulpdu_in_run(&mut cx.verbs, ulpdu, &mut sinks);
            if outcome != UlpduOutcome::Continue {
                self.on_stream_ended(cx, now, outcome, StreamBytes::from(&[][..]));
            }
        }
        is_taken
    }
}
