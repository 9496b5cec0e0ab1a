//! Trains of new data: full segments sent one after another, whose headers differ in the sequence
//! number alone.

use crate::device::{ChecksumMode, Retained, RxFrame};
use crate::tcp::Tcb;
use crate::time::Instant;
use crate::wire::seq::Seq;

/// Train of segments with equally long payloads. It is ended by [`Tcb::end_train`].
#[derive(Debug)]
#[must_use]
pub struct DataTrain {
    /// Sequence number of the next segment.
    seq: Seq,
    payload_len: u32,
    /// Window field of all segments.
    window: u16,
    header_len: usize,
    /// Offset of the TCP header.
    l4: usize,
    sent: u32,
}

impl DataTrain {
    /// Returns the length of the headers, in bytes.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        self.header_len
    }

    /// Returns the number of segments sent.
    #[must_use]
    pub const fn sent(&self) -> u32 {
        self.sent
    }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// After [`Transmit::NewData`](crate::tcp::Transmit::NewData) with a capacity of EMSS: returns
    /// how many full segments may be sent now, by the peer's window, the congestion window and
    /// pacing; 0 off the fast path.
    #[inline]
    #[must_use]
    pub fn train_len_max(&self) -> usize {
        if !self.fast_path.is_tx_eligible() {
            return 0;
        }
        let emss = u32::from(self.emss);
        let room = self.cc.cwnd().saturating_sub(self.snd.flight()).min(self.snd.usable());
        let segments = (room / emss).min(self.pacing_credit.segments(emss));
        let records = usize::from(self.cfg.max_records).saturating_sub(self.scoreboard.len());
        records.min(segments as usize)
    }

    /// Begins a train of segments with `payload_len` bytes, at most [`Tcb::emss`], and writes the
    /// headers of the first to `buf`. To be followed by [`Tcb::emit_in_train`] and
    /// [`Tcb::on_sent_in_train`] for at most [`Tcb::train_len_max`] segments, then by
    /// [`Tcb::end_train`].
    ///
    /// # Panics
    /// If `buf` is shorter than the headers.
    pub fn begin_train(&mut self, now: Instant, buf: &mut [u8], payload_len: usize) -> DataTrain {
        self.begin_train_of(now, buf, payload_len, 1)
    }

    /// As [`Tcb::begin_train`], of exactly `count` segments that the port cuts from one frame,
    /// whose headers it writes to `buf`. [`Tcb::emit_in_train`] is not to be called.
    ///
    /// # Panics
    /// If `buf` is shorter than the headers, or the IP packet longer than 65,535 bytes.
    pub fn begin_tso_train(
        &mut self,
        now: Instant,
        buf: &mut [u8],
        payload_len: usize,
        count: usize,
    ) -> DataTrain {
        let train = self.begin_train_of(now, buf, payload_len, count);
        self.template.emit_segmentation_sum(&mut buf[train.l4..]);
        train
    }

    /// Writes the headers of a packet with `count` payloads.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a payload is below 64 KiB")]
    fn begin_train_of(
        &mut self,
        now: Instant,
        buf: &mut [u8],
        payload_len: usize,
        count: usize,
    ) -> DataTrain {
        debug_assert!(0 < payload_len && payload_len <= self.emss());
        let header = self.train_header(now);
        let mode = self.cfg.checksum;
        let header_len = self.template.emit_plain_headers(buf, &header, count * payload_len, mode);
        let (l2, l3) = self.template.l2_l3_len();
        let payload_len = payload_len as u32;
        let window = header.window;
        DataTrain { seq: self.snd.nxt, payload_len, window, header_len, l4: l2 + l3, sent: 0 }
    }

    /// Completes the headers of the next segment in `frame`, which has those of the first, and the
    /// payload of this one: sequence number and checksum.
    #[inline]
    pub fn emit_in_train(&self, train: &DataTrain, frame: &mut [u8]) {
        let segment = &mut frame[train.l4..];
        segment[4..8].copy_from_slice(&train.seq.0.to_be_bytes());
        if self.cfg.checksum != ChecksumMode::NotNeeded {
            self.template.emit_checksum(segment, self.cfg.checksum);
        }
    }

    /// Adds the segment to the scoreboard: `retained` is its frame, with the payload at
    /// `header_len`.
    #[inline]
    pub fn on_sent_in_train(
        &mut self,
        now: Instant,
        train: &mut DataTrain,
        retained: T,
        header_len: usize,
    ) {
        #[expect(clippy::cast_possible_truncation, reason = "headers are shorter than 256 bytes")]
        let offset = header_len as u32;
        self.scoreboard.push(now, train.seq, train.payload_len, offset, retained, true);
        train.seq += train.payload_len;
        train.sent += 1;
    }

    /// Ends a train: commits the segments sent, and all that they acknowledge. A train of which
    /// nothing was sent has no effect.
    #[expect(clippy::needless_pass_by_value, reason = "a train ends once")]
    pub fn end_train(&mut self, now: Instant, train: DataTrain) {
        if train.sent > 0 {
            self.on_train_sent_fast(now, train.sent * train.payload_len, train.window);
            let counts = &mut self.segment_counts;
            counts.segments_out = counts.segments_out.wrapping_add(train.sent);
        }
    }
}
