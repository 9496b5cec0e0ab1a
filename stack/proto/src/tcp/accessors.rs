//! What a connection tells of itself. Nothing here changes it but the count of bytes.

use super::send::Fin;
use super::{State, Stats, Tcb, Traffic};
use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{FourTuple, TIMESTAMPS_LEN};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// State.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// True once the connection is gone and no RST is left to send: it may be dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed && !self.pending.reset
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (bytes_in, bytes_out) = self.bytes();
        let Traffic { segments_in, segments_out } = self.traffic;
        Stats { segments_in, segments_out, bytes_in, bytes_out, ..self.stats.get() }
    }

    /// Bytes handed up and sent, by how far the sequence numbers have gone since they were
    /// counted; SYN and FIN are none.
    fn bytes(&self) -> (u64, u64) {
        let total = |counted: u64, position: Seq, first: Seq| {
            let more = position.distance(first + low_half(counted));
            counted + u64::try_from(more).unwrap_or(0)
        };
        let taken = if self.peer.fin_received { self.peer.fin_seq } else { None };
        let arrived = taken.unwrap_or(self.rcv.nxt);
        let sent = self.local.fin_seq.unwrap_or(self.snd.nxt);
        let (bytes_in, bytes_out) = self.counted;
        (total(bytes_in, arrived, self.peer.irs + 1), total(bytes_out, sent, self.local.iss + 1))
    }

    /// Counts bytes up to here. To be called once in a round trip, so that sequence numbers do
    /// not go half-way round in between.
    pub(super) fn count_bytes(&mut self) {
        self.counted = self.bytes();
    }

    /// Both ends.
    #[must_use]
    pub fn tuple(&self) -> FourTuple {
        self.template.tuple()
    }

    /// True if both ends are those of `tuple`.
    #[inline]
    #[must_use]
    pub fn matches(&self, tuple: &FourTuple) -> bool {
        self.template.matches(tuple)
    }

    /// EMSS: most payload bytes of a data segment, options taken off.
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
        self.template.base_len() + if self.ts_on { TIMESTAMPS_LEN } else { 0 }
    }

    /// Lengths of link and network header of every frame, for
    /// [`crate::device::TxFrame::request_checksum`]; the TCP header of a data frame takes the
    /// rest of [`Tcb::header_len`].
    #[must_use]
    pub fn l2_l3_len(&self) -> (usize, usize) {
        self.template.l2_l3_len()
    }

    /// True while records are written and not acknowledged, sent or not.
    #[must_use]
    pub fn unsent_or_unacked(&self) -> bool {
        !self.scoreboard.is_empty()
    }

    /// Records written and not acknowledged, sent or not: each keeps a frame, or a copy of one.
    #[inline]
    #[must_use]
    pub fn records(&self) -> usize {
        self.scoreboard.len()
    }

    /// How many nanoseconds ago bytes were sent for the first time last, to 0.1 ms.
    #[must_use]
    pub fn since_last_tx(&self, now: Instant) -> u64 {
        self.last_tx_at.age(now)
    }

    /// True if everything written is acknowledged, and the FIN too if there is one.
    #[must_use]
    pub fn all_acked(&self) -> bool {
        self.scoreboard.is_empty() && matches!(self.snd.fin, Fin::None | Fin::Acked)
    }

    /// Pieces accepted out of order that wait for their turn.
    #[inline]
    #[must_use]
    pub fn ooo_segments(&self) -> usize {
        self.assembler.len()
    }

    /// Next sequence number expected from the peer.
    #[must_use]
    pub fn rcv_nxt(&self) -> Seq {
        self.rcv.nxt
    }

    /// Oldest sequence number not acknowledged.
    #[must_use]
    pub fn snd_una(&self) -> Seq {
        self.snd.una
    }

    /// Sequence number that the next new byte will have.
    #[must_use]
    pub fn write_seq(&self) -> Seq {
        self.scoreboard.end().unwrap_or(self.snd.nxt)
    }

    /// When the peer was last heard.
    #[must_use]
    pub fn last_rx_at(&self) -> Instant {
        self.last_rx_at
    }

    /// When the peer last acknowledged something, or something was sent with nothing outstanding;
    /// up to 66 us late.
    #[must_use]
    pub fn progress_at(&self, now: Instant) -> Instant {
        self.progress_at.instant(now)
    }

    /// Smoothed round-trip time in nanoseconds, 0 before the first measurement.
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

#[expect(clippy::cast_possible_truncation, reason = "the low half")]
const fn low_half(bytes: u64) -> u32 {
    bytes as u32
}
