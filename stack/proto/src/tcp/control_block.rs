//! Transmission control block: the state of a connection (RFC 9293 section 3.3.1), and its
//! accessors.

use std::sync::Arc;

use super::challenge::AckRateLimit;
use super::congestion::Congestion;
use super::connection_state::{State, StateEvent};
use super::ecn::EcnState;
use super::header_prediction::FastPath;
use super::lazy::Lazy;
use super::pmtu::PathMtu;
use super::rare_counts::RareCounts;
use super::recovery::ca_state::{Recovery, RoundFlight};
use super::recovery::rack::Rack;
use super::recovery::scoreboard::Scoreboard;
use super::recovery::tlp::Tlp;
use super::rtt::{Rtt, RttCache};
use super::rx::assembler::Assembler;
use super::rx::autotune::{RcvRound, RoundEnd};
use super::rx::window::{DsackQueue, Peer, RcvLimits, RcvVars};
use super::settings::{Config, Stats};
use super::timer::{RareTimers, Timers};
use super::timestamps::{CoarseInstant, Timestamps};
use super::tx::pacing::PacingCredit;
use super::tx::send::{Fin, Local, Pending, SndVars};
use super::upper_layer::Event;
use crate::device::{ChecksumRequest, Device, Retained, RxFrame};
use crate::time::{Instant, NEVER};
use crate::wire::ip::IpFields;
use crate::wire::seq::Seq;
use crate::wire::tcp::{FourTuple, HeaderTemplate, TIMESTAMPS_LEN};

/// Segments received and sent; the counts wrap.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentCounts {
    pub(super) segments_in: u32,
    pub(super) segments_out: u32,
}

/// Transmission control block of one connection. `R`: received frames; `T`: sent frames kept for
/// retransmission.
///
/// Memory is bounded by the configuration: at most `max_ooo_segments` received segments, in memory
/// taken from an [`OooPool`](super::OooPool) while there are any, and at most `max_records` sent
/// records. Nothing is allocated per packet. The scoreboard grows to its working size once, and is
/// released when the connection has been idle for a while.
///
/// `repr(C)`: the order of the fields is that in memory. The state touched on the fast path, by
/// in-order data, pure ACKs and new data sent, comes first: [`HOT_LEN`] bytes, three cache lines if
/// the `Tcb` starts at one; see `header_prediction`. The fields after it are ordered for
/// alignment only.
#[derive(Debug)]
#[repr(C)]
pub struct Tcb<R: RxFrame, T: Retained> {
    pub(super) scoreboard: Lazy<Scoreboard<T>>,
    pub(super) cfg: Arc<Config>,
    pub(super) timers: Timers,
    /// Time of the last acceptable segment from the peer.
    pub(super) last_rx_at: Instant,
    pub(super) rcv: RcvVars,
    pub(super) snd: SndVars,
    pub(super) ts: Timestamps,
    pub(super) rtt_cache: RttCache,
    pub(super) segment_counts: SegmentCounts,
    pub(super) rcv_round_end: RoundEnd,
    /// Time when SND.UNA last advanced, or when something was sent with nothing outstanding.
    pub(super) progress_at: CoarseInstant,
    /// Time when new data was last sent.
    pub(super) last_tx_at: CoarseInstant,
    /// Bytes that pacing admits before its next check.
    pub(super) pacing_credit: PacingCredit,
    /// EMSS: most payload bytes of a data segment, TCP options deducted.
    pub(super) emss: u16,
    /// Timestamps negotiated, or offered in our SYN.
    pub(super) ts_on: bool,
    /// Eligibility of segments for the fast path.
    pub(super) fast_path: FastPath,
    /// Congestion control. Its first part, the window, ends the hot state.
    pub(super) cc: Congestion,

    pub(super) template: HeaderTemplate,
    /// Segments received that the fast path did not process; the count wraps.
    pub(super) slow_path_in: u32,
    pub(super) events: u16,
    pub(super) state: State,
    /// SACK negotiated, or offered in our SYN.
    pub(super) sack: bool,
    /// Window scaling negotiated, or offered in our SYN.
    pub(super) scaling: bool,
    /// The persist timer fired: a segment smaller than EMSS may be sent (RFC 9293
    /// section 3.8.6.2.1).
    pub(super) sws_override: bool,
    /// Number of doublings of the persist interval.
    pub(super) persist_backoff: u8,
    /// Consecutive probes and retransmission timeouts without an acceptable segment from the peer.
    pub(super) unanswered: u8,
    /// Consecutive retransmission timeouts without progress.
    pub(super) retries: u8,
    /// An expired timer was re-armed because of its overrun; the next expiry fires whatever the
    /// overrun.
    pub(super) rearmed: bool,
    /// Passive open: the connection began with the peer's SYN.
    pub(super) passive: bool,
    /// The next burst waits for the pacing timer.
    pub(super) paced: bool,
    /// Close was called before the handshake was complete.
    pub(super) close_pending: bool,
    /// The upper layer takes no more data.
    pub(super) receive_shut: bool,
    /// Group of the peer, for its share of memory.
    pub(super) peer_group: u8,
    pub(super) local: Local,
    pub(super) peer: Peer,
    pub(super) rcv_limits: RcvLimits,
    pub(super) pending: Pending,
    pub(super) tlp: Tlp,
    pub(super) round_flight: RoundFlight,
    /// Time of the last retransmission.
    pub(super) last_retransmit_at: CoarseInstant,
    /// Receive window that would not limit the peer, computed in the last autotuning round.
    pub(super) window_wanted: u32,
    pub(super) rare: RareTimers,
    pub(super) recovery: Recovery,
    pub(super) rack: Rack,
    pub(super) rtt: Rtt,
    pub(super) assembler: Lazy<Assembler<R>>,
    pub(super) dsack_queue: DsackQueue,
    pub(super) rcv_round: RcvRound,
    /// Time when our timestamp clock last skipped idle time.
    pub(super) ts_advanced_at: Instant,
    pub(super) pmtu: PathMtu,
    pub(super) ecn: EcnState,
    pub(super) ack_rate_limit: AckRateLimit,
    /// Bytes delivered in order and bytes sent, updated once per round trip.
    pub(super) counted: (u64, u64),
    pub(super) stats: RareCounts,
}

/// Length of the hot state: the bytes at the start of a [`Tcb`] that hold everything the fast path
/// touches, apart from the addresses of [`HeaderTemplate`]. Three cache lines.
pub const HOT_LEN: usize = 192;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    // Commands.

    /// Notes the group of its peer, by a hash of the address: its connections share a part of the
    /// memory for out-of-order data and partial FPDUs. To be called before anything is received.
    pub const fn set_peer_group(&mut self, group: u8) {
        self.peer_group = group;
    }

    /// Returns the group of its peer.
    #[must_use]
    pub const fn peer_group(&self) -> u8 {
        self.peer_group
    }

    /// Notes that the upper layer keeps `bytes` of the delivered data. The receive window offered
    /// shrinks by them; the right edge already advertised is not retracted.
    pub fn add_unconsumed(&mut self, bytes: u32) {
        self.rcv_limits.add_unconsumed(&mut self.rcv, bytes, &self.cfg);
    }

    /// Notes that the upper layer consumed `bytes` that it had kept. An ACK is due if this reopens
    /// a window that had become small.
    pub fn consume(&mut self, bytes: u32) {
        let reopens = self.rcv_limits.consume(&mut self.rcv, bytes, &self.cfg);
        self.announce_window(reopens);
    }

    /// Raises the receive window from its startup size to the full one: the connection was
    /// accepted.
    pub fn open_window(&mut self) {
        let reopens = self.rcv_limits.raise(&mut self.rcv, self.cfg.recv_window, &self.cfg);
        self.announce_window(reopens);
    }

    pub(super) fn announce_window(&mut self, reopens: bool) {
        if reopens && self.state.is_synchronized() {
            self.rcv.ack_now = true;
        }
    }

    /// Sets the destination MAC address of all further frames.
    pub fn set_remote_mac(&mut self, mac: [u8; 6]) {
        self.template.set_remote_mac(mac);
    }

    /// Returns the destination MAC address.
    #[must_use]
    pub const fn remote_mac(&self) -> [u8; 6] {
        self.template.remote_mac()
    }

    /// Sets DSCP and time to live of all further frames.
    pub fn set_ip_fields(&mut self, fields: IpFields) {
        self.template.set_ip_fields(fields);
    }

    /// Takes the settings of another connection, which it follows: those of TCP and of the IP
    /// header.
    pub fn inherit_settings(&mut self, other: &Self) {
        self.set_config(Arc::clone(&other.cfg));
        self.template.set_ip_fields(other.template.ip_fields());
    }

    // Results.

    /// True if the connection began with the peer's SYN.
    #[must_use]
    pub const fn is_passive(&self) -> bool {
        self.passive
    }

    /// Returns the next event, if any.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.has_events() { self.next_event() } else { None }
    }

    /// True if there may be an event, or the state is CLOSED. If false, [`Tcb::poll_event`] returns
    /// `None` and [`Tcb::is_closed`] returns false.
    #[inline]
    #[must_use]
    pub const fn has_events(&self) -> bool {
        self.fast_path.has_events()
    }

    #[cold]
    fn next_event(&mut self) -> Option<Event> {
        let event = Event::ALL.into_iter().find(|event| self.events & event.bit() != 0)?;
        self.events &= !event.bit();
        self.update_fast_path();
        Some(event)
    }

    /// True once the peer's FIN was received and everything before it was delivered.
    #[must_use]
    pub fn peer_finished(&self) -> bool {
        self.peer.fin_received
    }

    /// Returns the time at which [`Tcb::handle_timeout`] is to be called next. May be early, never
    /// late.
    #[inline]
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let earliest = self.timers.earliest();
        (earliest != NEVER).then_some(earliest)
    }

    // Internals shared by the modules.

    /// Changes the state by the transition table. Returns false if the table has no entry for
    /// `event`.
    #[must_use]
    pub(super) fn transition(&mut self, event: StateEvent) -> bool {
        let Some(next) = self.state.after(event) else { return false };
        self.state = next;
        true
    }

    /// Changes the state by an event that its caller knows to apply in it.
    pub(super) fn apply(&mut self, event: StateEvent) {
        let before = self.state;
        let applies = self.transition(event);
        debug_assert!(applies, "{event:?} in {before:?}");
    }

    /// Notes an event for [`Tcb::poll_event`].
    pub(super) fn raise_event(&mut self, event: Event) {
        self.events |= event.bit();
        self.fast_path.set_events();
    }

    // Accessors.

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
        if let Some(scoreboard) = self.scoreboard.as_ref() {
            D::prefetch(scoreboard);
        }
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
        self.assembler.as_ref().map_or(0, Assembler::len)
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
