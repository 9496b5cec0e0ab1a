//! Trains of segments sent. If a message fills several segments, one short loop builds all but the
//! last. Their common work is done once: source range, headers, windows, timers.

use crate::connection::Connection;
use crate::connection::context::{Context, Env};
use crate::connection::tx::TxPort;
use crate::connection::tx_tso::{self, TsoTrain};
use crate::device::{Device, TxFrame};
use crate::mpa::fpdu::{LENGTH_LEN, fpdu_len, mulpdu};
use crate::time::Instant;
use crate::verbs::resources::Verbs;
use crate::wire::ddp::UNTAGGED_LEN;
use crate::wire::tcp::MAX_HEADER_LEN;

/// Bytes copied to the start of each frame: more than all headers take without options other than
/// timestamps. A constant length takes a few moves.
const HEADERS_LEN: usize = 128;

const _: () = assert!(MAX_HEADER_LEN - 40 + 12 + LENGTH_LEN + UNTAGGED_LEN <= HEADERS_LEN);

impl<E: Env> Connection<E> {
    /// Sends full segments of the message that is next, at most `count_max`, each with one FPDU.
    /// Returns their number: 0 if the next segment is none of these.
    ///
    /// To be called after [`Transmit::NewData`](crate::tcp::Transmit::NewData), with a full segment
    /// admitted.
    #[inline(never)]
    pub(super) fn send_train(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        count_max: usize,
    ) -> usize {
        let Context { qps, verbs, device, capabilities, .. } = cx;
        let emss = self.tcb.emss();
        let ulpdu_len = mulpdu(emss);
        let fpdu_len = fpdu_len(ulpdu_len);
        // RFC 5044 section 5.1: with a small EMSS TCP cuts FPDUs; with markers their lengths
        // differ.
        if self.framing.has_markers() || self.startup_tx.is_some() || fpdu_len > emss {
            return 0;
        }
        let Some(qp) = self.qp.and_then(|qp| qps.get_mut(qp)) else { return 0 };
        // As many segments as the port has descriptors, and as windows and pacing admit.
        let count_max = count_max.min(device.tx_free_count()).min(self.tcb.train_len_max());
        if count_max < 2 {
            return 0;
        }
        let Verbs { memory, counters, .. } = verbs;
        let Some(mut segments) = qp.stream.segment_train(memory, ulpdu_len, count_max) else {
            return 0;
        };
        // One packet for all, if the port cuts it.
        let cut_max = tx_tso::segments_max(capabilities.tso_segments_max, fpdu_len);
        let mut port = TxPort::new(device, counters, capabilities);
        // A frame that it returns to this host is not cut.
        if cut_max > 1 && self.tcb.remote_mac() != capabilities.mac {
            let tcb = &mut self.tcb;
            let tso = TsoTrain { tcb, framing: self.framing, memory, port, ulpdu_len };
            let Ok(sent) = tso.send(now, &mut segments, cut_max) else {
                // The segments are built again, each with headers of its own.
                capabilities.tso_segments_max = 0;
                return 0;
            };
            if sent > 0 {
                qp.stream.end_train(&segments);
                counters.fpdus_out += sent as u64;
            }
            return sent;
        }
        // Before the headers are made: they count as sent with all that they acknowledge.
        let mut next = port.allocate_data();
        if next.is_none() {
            return 0;
        }
        let mut headers = [0; HEADERS_LEN];
        let mut train = self.tcb.begin_train(now, &mut headers, fpdu_len);
        let header_len = train.header_len();
        let ddp_at = header_len + LENGTH_LEN;
        #[expect(clippy::cast_possible_truncation, reason = "a ULPDU is below 64 KiB")]
        headers[header_len..ddp_at].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
        let ddp_header = segments.header();
        headers[ddp_at..ddp_at + ddp_header.len()].copy_from_slice(ddp_header);
        // RFC 5044 section 4.1: each segment is headers, length, ULPDU and CRC. They differ in
        // sequence number, checksums, offset and payload.
        while let Some(mut frame) = next {
            let buf = &mut frame.buf_mut()[..header_len + fpdu_len];
            *buf.first_chunk_mut().expect("an FPDU of at least 128 bytes follows") = headers;
            let fpdu = &mut buf[header_len..];
            // An FPDU of this length has no padding.
            let ulpdu = &mut fpdu[LENGTH_LEN..LENGTH_LEN + ulpdu_len];
            if segments.emit_next(memory, ulpdu).is_err() {
                // The next attempt, of a single segment, ends the stream.
                break;
            }
            self.framing.write_crc(fpdu);
            self.tcb.emit_in_train(&train, buf);
            let len = header_len + fpdu_len;
            port.send(&mut self.tcb, frame, len, header_len, |tcb, frame| {
                tcb.on_sent_in_train(now, &mut train, frame.retain(), header_len);
                true
            });
            let is_last = segments.remaining() == 0;
            next = if is_last { None } else { port.allocate_data() };
        }
        // RFC 9293 section 3.4: SND.NXT and timers advance once for all.
        let sent = train.sent();
        self.tcb.end_train(now, train);
        qp.stream.end_train(&segments);
        counters.fpdus_out += u64::from(sent);
        sent as usize
    }
}
