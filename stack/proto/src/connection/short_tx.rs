//! The short way out: a Write or Send that waits alone and fits a segment is sent in one step,
//! without the turns and quanta of [`Connection::transmit`].

use crate::connection::Connection;
use crate::connection::context::{Context, Env};
use crate::connection::phase::Phase;
use crate::connection::tx::{TX_QUANTUM_SEGMENTS, TxPort};
use crate::connection::tx_reclaim::LOW_WATER_FRAMES;
use crate::device::{Device, TxClass, TxFrame};
use crate::mpa::fpdu::{self, LENGTH_LEN, MULPDU_RANGE};
use crate::time::Instant;

impl<E: Env> Connection<E> {
    /// Sends the message that waits, if it is alone, may be sent now and fits a segment: as
    /// [`Connection::transmit`] does, which then has nothing left to send. Otherwise sends nothing
    /// and returns false; [`Connection::transmit`] then does the same as if it had not been called.
    #[inline(never)]
    pub(crate) fn send_short(&mut self, cx: &mut Context<E>, now: Instant) -> bool {
        let Context { qps, verbs, device, capabilities, net, .. } = cx;
        let Some(qp) = self.qp.and_then(|qp| qps.get_mut(qp)) else { return false };
        let Some(message) = qp.stream.short_message() else { return false };
        // FPDUs alone, without markers, on a connection that is in order.
        let sends_fpdus = matches!(self.phase, Phase::Rdma { .. }) && self.startup.may_send();
        if !sends_fpdus
            || self.framing.has_markers()
            || self.startup_tx.is_some()
            || self.closing.is_some()
            || !self.next_hop.is_resolved()
            || self.next_hop.needs_refresh(now, net.neighbor_epoch())
            || device.data_avail_count() < LOW_WATER_FRAMES + TX_QUANTUM_SEGMENTS
            || device.tx_free_count() == 0
        {
            return false;
        }
        // RFC 5044 section 4.5: one FPDU takes the message whole.
        // req: MPA-045, MPA-046
        let len = fpdu::fpdu_len(message.ulpdu_len());
        if len > self.tcb.emss() || message.ulpdu_len() >= MULPDU_RANGE.end {
            return false;
        }
        // RFC 9293 section 3.8: windows, congestion control and pacing admit the segment.
        #[expect(clippy::cast_possible_truncation, reason = "EMSS has 16 bits")]
        let Some(plan) = self.tcb.plan_whole_record(now, len as u32) else { return false };
        let Some(mut frame) = device.allocate(TxClass::Data) else { return false };
        // RFC 5044 section 4.1: length, ULPDU, padding, CRC.
        let at = self.tcb.header_len();
        let fpdu = &mut frame.buf_mut()[at..at + len];
        fpdu::write_length_and_pad(fpdu, message.ulpdu_len());
        let ulpdu = &mut fpdu[LENGTH_LEN..LENGTH_LEN + message.ulpdu_len()];
        if !qp.stream.build_short(message, &verbs.memory, ulpdu) {
            return false;
        }
        self.framing.write_crc(fpdu);
        verbs.counters.fpdus_out += 1;
        qp.complete_send(verbs);
        // RFC 9293 section 3.9.1.2: PSH, as no data follows.
        let mut port = TxPort::new(device, &mut verbs.counters, capabilities);
        port.complete(&mut frame, at + len, || self.tcb.checksum_request(at));
        self.tcb.send_whole_record(now, plan, &mut frame, len, true);
        port.hand_over(frame, 1);
        true
    }
}
