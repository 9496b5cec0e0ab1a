//! Read-only accessors of a connection. Only `count_bytes` changes state: the byte counts.

use super::config::Stats;
use super::state::State;
use super::tcb::{SegmentCounts, Tcb};
use super::tx::send::Fin;
use crate::device::{ChecksumRequest, Device, Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{FourTuple, TIMESTAMPS_LEN};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Connection state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// True once the state is CLOSED and no RST is left to send: the connection may be dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed && !self.pending.reset
    }

    /// Has the port load the records of unacknowledged segments, as far as they are outside the
    /// TCB.
    pub(crate) fn prefetch_scoreboard<D: Device>(&self) {
        self.scoreboard.prefetch::<D>();
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (bytes_in, bytes_out) = self.bytes();
        let SegmentCounts { segments_in, segments_out } = self.segment_counts;
        let slow_path_in = self.slow_path_in;
        Stats { segments_in, slow_path_in, segments_out, bytes_in, bytes_out, ..self.stats.get() }
    }

    /// Payload bytes delivered in order and sent, SYN and FIN not counted: the counts so far plus
    /// the advance of the sequence numbers since.
    #[expect(clippy::cast_possible_truncation, reason = "sequence numbers are modulo 2^32")]
    fn bytes(&self) -> (u64, u64) {
        let total = |counted: u64, position: Seq, first: Seq| {
            let more = position.distance(first + counted as u32);
            counted + u64::try_from(more).unwrap_or(0)
        };
        let fin_seq = if self.peer.fin_received { self.peer.fin_seq } else { None };
        let arrived = fin_seq.unwrap_or(self.rcv.nxt);
        let sent = self.local.fin_seq.unwrap_or(self.snd.nxt);
        let (bytes_in, bytes_out) = self.counted;
        (total(bytes_in, arrived, self.peer.irs + 1), total(bytes_out, sent, self.local.iss + 1))
    }

    /// Updates the byte counts. To be called once per round trip, so that the sequence numbers do
    /// not advance by half their space in between.
    pub(super) fn count_bytes(&mut self) {
        self.counted = self.bytes();
    }

    /// Four-tuple.
    #[must_use]
    pub fn tuple(&self) -> FourTuple {
        self.template.tuple()
    }

    /// True if the four-tuple is `tuple`.
    #[inline]
    #[must_use]
    pub fn matches(&self, tuple: &FourTuple) -> bool {
        self.template.matches(tuple)
    }

    /// EMSS: most payload bytes of a data segment, TCP options deducted.
    #[inline]
    #[must_use]
    pub fn emss(&self) -> usize {
        usize::from(self.emss)
    }

    /// Bytes before the payload in a data frame: Ethernet, IP, TCP, options. Fixed once
    /// established.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.template.base_len() + if self.ts_on { TIMESTAMPS_LEN.into() } else { 0 }
    }

    /// Returns the request of checksums for a frame with headers of `header_len` bytes: that of a
    /// data frame is [`Tcb::header_len`].
    #[must_use]
    pub fn checksum_request(&self, header_len: usize) -> ChecksumRequest {
        self.template.checksum_request(header_len, self.cfg.checksum)
    }

    /// True while there are records written and not acknowledged, sent or not.
    #[must_use]
    pub fn unsent_or_unacked(&self) -> bool {
        !self.scoreboard.is_empty()
    }

    /// Number of records written and not acknowledged, sent or not. Each holds a frame, or a copy
    /// of its bytes.
    #[inline]
    #[must_use]
    pub fn records(&self) -> usize {
        self.scoreboard.len()
    }

    /// Nanoseconds since new data was last sent, accurate to 0.1 ms.
    #[must_use]
    pub fn since_last_tx(&self, now: Instant) -> u64 {
        self.last_tx_at.age(now)
    }

    /// True if everything written is acknowledged, and the FIN if there is one.
    #[must_use]
    pub fn all_acked(&self) -> bool {
        self.scoreboard.is_empty() && matches!(self.snd.fin, Fin::None | Fin::Acked)
    }

    /// Number of out-of-order segments accepted and not yet delivered.
    #[inline]
    #[must_use]
    pub fn ooo_segments(&self) -> usize {
        self.assembler.len()
    }

    /// RCV.NXT: next sequence number expected from the peer.
    #[must_use]
    pub fn rcv_nxt(&self) -> Seq {
        self.rcv.nxt
    }

    /// SND.UNA: oldest sequence number not acknowledged.
    #[must_use]
    pub fn snd_una(&self) -> Seq {
        self.snd.una
    }

    /// Sequence number of the next byte to be written.
    #[must_use]
    pub fn write_seq(&self) -> Seq {
        self.scoreboard.end().unwrap_or(self.snd.nxt)
    }

    /// Time of the last acceptable segment from the peer.
    #[must_use]
    pub fn last_rx_at(&self) -> Instant {
        self.last_rx_at
    }

    /// Time when SND.UNA last advanced, or when something was sent with nothing outstanding; up to
    /// 66 us late.
    #[must_use]
    pub fn progress_at(&self, now: Instant) -> Instant {
        self.progress_at.instant(now)
    }

    /// Smoothed round-trip time in nanoseconds, 0 before the first sample.
    #[must_use]
    pub fn srtt_ns(&self) -> u64 {
        self.rtt.srtt()
    }

    /// Congestion window in bytes.
    #[must_use]
    pub fn cwnd(&self) -> u32 {
        self.cc.cwnd()
    }
}
