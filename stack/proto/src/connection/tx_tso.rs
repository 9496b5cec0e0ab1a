//! Trains that the port cuts into segments (TCP segmentation offload): one packet with the FPDUs of
//! all segments, and one set of headers.
//!
//! Every segment has one FPDU, as without offload, so a receiver finds each FPDU whole in a
//! segment. Each lies in a frame of its own, which is retained for retransmission like any other;
//! only the first has headers.

use crate::connection::tx::{TX_QUANTUM_SEGMENTS, TxPort};
use crate::ddp::memory::Memory;
use crate::device::{Device, RxFrame, SegmentationRequest, TxFrame};
use crate::mpa::fpdu::{LENGTH_LEN, fpdu_len};
use crate::mpa::framing::Framing;
use crate::rdmap::segment_train::SegmentTrain;
use crate::tcp::Tcb;
use crate::time::Instant;
use crate::wire::ddp::UNTAGGED_LEN;
use crate::wire::tcp::MAX_HEADER_LEN;

/// Most bytes of payload in one IP packet (RFC 791 section 3.1).
const PAYLOAD_LEN_MAX: usize = u16::MAX as usize - MAX_HEADER_LEN;

/// The driver has refused the frame: the port is to cut no other.
pub(super) struct Refused;

/// Returns the most segments with FPDUs of this length that one packet carries to a port that cuts
/// it into `segments_max` at most; less than 2 if the port is not to cut frames.
pub(super) fn segments_max(segments_max: u16, fpdu_len: usize) -> usize {
    usize::from(segments_max).min(PAYLOAD_LEN_MAX / fpdu_len).min(TX_QUANTUM_SEGMENTS)
}

/// Sender of a train in one packet.
pub(super) struct TsoTrain<'a, R: RxFrame, D: Device, M: Memory> {
    pub(super) tcb: &'a mut Tcb<R, D::Retained>,
    pub(super) framing: Framing,
    pub(super) memory: &'a M,
    pub(super) port: TxPort<'a, D>,
    pub(super) ulpdu_len: usize,
}

impl<R: RxFrame, D: Device, M: Memory> TsoTrain<'_, R, D, M> {
    /// Sends the segments, at most `count_max` ([`segments_max`]). Returns their number: 0 if there
    /// are no frames for two, or one cannot be read.
    ///
    /// # Errors
    /// [`Refused`], with nothing sent.
    pub(super) fn send(
        self,
        now: Instant,
        segments: &mut SegmentTrain,
        count_max: usize,
    ) -> Result<usize, Refused> {
        let Self { tcb, framing, memory, mut port, ulpdu_len } = self;
        let fpdu_len = fpdu_len(ulpdu_len);
        let wanted = segments.remaining().min(count_max);
        // The headers of the first have the length of all, so all are allocated first.
        let mut frames = [const { None::<D::Tx> }; TX_QUANTUM_SEGMENTS];
        let allocated = frames.iter_mut().take(wanted).map_while(|frame| {
            *frame = Some(port.allocate_data()?);
            Some(())
        });
        let count = allocated.count();
        if count < 2 {
            return Ok(0);
        }
        // One set of headers for all: the port counts up the sequence numbers (RFC 9293 section
        // 3.1).
        let mut headers = [0; MAX_HEADER_LEN];
        let mut train = tcb.begin_tso_train(now, &mut headers, fpdu_len, count);
        let header_len = train.header_len();
        let checksum = tcb.checksum_request(header_len);
        let request = SegmentationRequest { checksum, payload_len: fpdu_len };
        // RFC 5041 section 4: the DDP headers differ in offset alone, which `emit_next` writes.
        let mut ddp_header = [0; UNTAGGED_LEN];
        let ddp_header = &mut ddp_header[..segments.header().len()];
        ddp_header.copy_from_slice(segments.header());
        let mut retained = [const { None }; TX_QUANTUM_SEGMENTS];
        for (index, frame) in frames.iter_mut().flatten().enumerate() {
            let at = if index == 0 { header_len } else { 0 };
            let buf = &mut frame.buf_mut()[..at + fpdu_len];
            buf[..at].copy_from_slice(&headers[..at]);
            // RFC 5044 section 4.1: length, ULPDU, CRC. An FPDU of this length has no padding.
            let fpdu = &mut buf[at..];
            #[expect(clippy::cast_possible_truncation, reason = "a ULPDU is below 64 KiB")]
            fpdu[..LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
            let ulpdu = &mut fpdu[LENGTH_LEN..LENGTH_LEN + ulpdu_len];
            ulpdu[..ddp_header.len()].copy_from_slice(ddp_header);
            if segments.emit_next(memory, ulpdu).is_err() {
                // Built one by one, as far as they can be read.
                return Ok(0);
            }
            framing.write_crc(fpdu);
            frame.set_len(at + fpdu_len);
            // Each segment is a record of its own, kept until it is acknowledged.
            if index > 0 {
                retained[index] = Some(frame.retain());
            }
        }
        // The first frame leads the chain; each is retained as a segment of its own.
        let mut frames = frames.into_iter().flatten();
        if let Some(mut first) = frames.next() {
            first.append(frames);
            if !port.request_segmentation(&mut first, &request) {
                return Err(Refused);
            }
            tcb.on_sent_in_train(now, &mut train, first.retain(), header_len);
            for payload in retained.into_iter().flatten() {
                tcb.on_sent_in_train(now, &mut train, payload, 0);
            }
            port.hand_over(first, count as u64);
        }
        tcb.end_train(now, train);
        Ok(count)
    }
}
