//! A TCP connection for MPA: the send side carries records, the receive side delivers frames.
//!
//! [`Tcb`] does no input or output, reads no clock and draws no random number. The engine drives
//! each connection, per pass, in this order:
//!
//! 1. [`Tcb::handle_segment`] for each received segment; after [`Delivered::InOrder`],
//!    [`Tcb::next_contiguous`] until `None`; after [`Delivered::OutOfOrder`], the disposition; then
//!    [`Tcb::release_ooo`], and [`Tcb::poll_event`] until `None`.
//! 2. [`Tcb::handle_timeout`], if [`Tcb::deadline`] has passed and the receive queue is drained.
//! 3. [`Tcb::next_transmit`] until [`Transmit::Idle`] (or the end of a budget); each result is
//!    carried out before the next call. Called after a whole burst was processed, it requests one
//!    ACK however long the burst was.
//!
//! Modules:
//!
//! - `state`: connection states and their transition table (RFC 9293 section 3.3.2).
//! - `open`, `close`: active and passive open, SYN cookies, close, abort, TIME-WAIT recycling
//!   (RFC 9293 section 3.10, RFC 6191).
//! - `rx::input`: checks of received segments in the order of RFC 9293 section 3.10.7; PAWS
//!   (RFC 7323), blind attacks (RFC 5961).
//! - `rx::fast_path`: header prediction for connections without loss.
//! - `rx::deliver`: delivery of in-order and out-of-order data, FIN of the peer.
//! - `rx::assembler`, `rx::ooo_queue`: ranges received out of order, SACK blocks (RFC 2018); the
//!   memory that holds their segments.
//! - `rx::window`: receive window, delayed ACKs, D-SACK reports (RFC 9293 section 3.8.6, RFC 2883).
//! - `rx::autotune`: receive window autotuning (dynamic right-sizing).
//! - `rx::ack`: ACK processing without loss; RTT samples and timers (RFC 9293 section 3.10.7.4,
//!   RFC 6298).
//! - `challenge`: rate limit of challenge ACKs and other replies (RFC 5961 section 7).
//! - `recovery::ack`, `recovery::state`: ACK processing with loss, fast recovery, undo
//!   (RFC 6675, RFC 6582, RFC 3522, RFC 5682).
//! - `recovery::scoreboard`, `recovery::sent_frame`: SACK scoreboard of the records sent (RFC
//!   6675); frames, or copies of them, kept for retransmission.
//! - `recovery::rack`, `recovery::tlp`: RACK loss detection and tail-loss probe (RFC 8985).
//! - `recovery::prr`: proportional rate reduction (RFC 9937).
//! - `tx::schedule`, `tx::output`: selection of the next segment to send (RFC 9293
//!   section 3.8.6.2.1); construction of its frame.
//! - `tx::pacing`: pacing of the congestion window over the round trip.
//! - `tx::send`: send sequence variables (RFC 9293 section 3.3.1).
//! - `congestion`: NewReno, CUBIC, DCTCP, HyStart++ (RFC 5681, RFC 9438, RFC 8257, RFC 9406).
//! - `ecn`: Explicit Congestion Notification (RFC 3168).
//! - `rtt`: RTT estimator, RTO and probe timeout (RFC 6298).
//! - `timer`, `timeout`: timers, and the actions on their expiry.
//! - `pmtu`: path MTU discovery (RFC 8899, RFC 1191, RFC 8201).
//! - `accessors`, `events`, `config`, `rare_counts`: read-only accessors, results and events,
//!   settings and counters.
//!
//! Read before changing anything: RFC 9293, 5681, 6298, 6675, 7323, 2018, 2883, 3522, 5961, 8985,
//! 9937, 9438, 9406, 3168, 8257.

mod accessors;
mod challenge;
mod close;
mod config;
mod congestion;
mod ecn;
mod events;
mod open;
mod pmtu;
mod rare_counts;
mod recovery;
mod rtt;
mod rx;
mod state;
mod timeout;
mod timer;
mod tx;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

pub use config::{Algorithm, Config, EcnMode, Stats};
pub use events::{Delivered, Event, IssAndTsOffset, Transmit, TxDemand};
pub(crate) use open::default_mss;
pub use pmtu::{PathMtuConfig, Probing, TooBig};
pub use recovery::sent_frame::CopyPool;
pub use rx::assembler::Contiguous;
pub use rx::ooo_queue::{OooCopy, OooPool, OooSegment};
pub use state::State;

use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{HeaderTemplate, TIMESTAMPS_LEN};
use challenge::AckRateLimit;
use congestion::Congestion;
use ecn::Ecn;
use pmtu::PathMtu;
use rare_counts::RareCounts;
use recovery::rack::Rack;
use recovery::scoreboard::LazyScoreboard;
use recovery::state::{Recovery, RoundFlight, Tlp};
use rtt::{Rtt, RttCache};
use rx::assembler::LazyAssembler;
use rx::autotune::{RcvRound, RoundEnd};
use rx::deliver::OfferedOoo;
use rx::fast_path::FastPath;
use rx::window::{DsackQueue, Peer, RcvLimits, RcvVars};
use state::StateEvent;
use timer::{CoarseInstant, NEVER, RareTimers, Timers};
use tx::pacing::PacingCredit;
use tx::send::{Local, SndVars};

/// Length of the timestamps option, bytes.
#[expect(clippy::cast_possible_truncation, reason = "12")]
const TIMESTAMPS_BYTES: u16 = TIMESTAMPS_LEN as u16;

/// Timestamps option state (RFC 7323).
#[derive(Debug)]
struct Timestamps {
    /// Added to the clock, so that TSval reveals nothing about this host.
    offset: u32,
    /// TS.Recent: latest acceptable TSval of the peer.
    recent: u32,
    /// Time when TS.Recent was updated, by [`Timestamps::coarse`].
    recent_stamp: u32,
}

impl Timestamps {
    /// Returns `now` in units of 2^30 nanoseconds, of which 32 bits last for a century.
    #[expect(clippy::cast_possible_truncation, reason = "a century")]
    #[inline]
    const fn coarse(now: Instant) -> u32 {
        (now.as_nanos() >> 30) as u32
    }

    /// Returns TSval of a segment sent at `now`: microseconds.
    #[expect(clippy::cast_possible_truncation, reason = "TSval is a 32-bit clock that wraps")]
    #[inline]
    const fn tsval(&self, now: Instant) -> u32 {
        (now.as_micros() as u32).wrapping_add(self.offset)
    }
}

/// Segments received and sent; the counts wrap.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    segments_in: u32,
    segments_out: u32,
}

/// Segments without payload to be sent, apart from ACK and FIN.
#[derive(Debug, Default)]
struct Pending {
    /// SYN or SYN-ACK.
    syn: bool,
    /// RST that ends the connection.
    reset: bool,
    /// RST with this sequence number, in reply to an unacceptable acknowledgment; state is kept.
    stray_reset: Option<Seq>,
    /// Zero-window or keepalive probe: a segment below the peer's window, which the peer answers
    /// with an ACK.
    probe: bool,
    /// Tail-loss probe.
    tlp: bool,
}

impl Pending {
    const fn any(&self) -> bool {
        self.syn || self.reset || self.stray_reset.is_some() || self.probe || self.tlp
    }
}

/// Decision that the next call on the connection has to carry out.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Nothing,
    /// An out-of-order segment was offered to the upper layer; its disposition is pending.
    OooAnswer(OfferedOoo),
    /// Announced by `next_transmit`, to be written by the matching `write_` function.
    Control(tx::schedule::Control),
    /// See `Control`.
    Retransmit(tx::schedule::Retransmit),
}

/// Transmission control block of one connection. `R`: received frames; `T`: sent frames kept for
/// retransmission.
///
/// Memory is bounded by the configuration: at most `max_ooo_segments` received segments, in memory
/// taken from an [`OooPool`] while there are any, and at most `max_records` sent records. Nothing
/// is allocated per packet. The scoreboard grows to its working size once, and is released when the
/// connection has been idle for a while.
///
/// `repr(C)`: the order of the fields is that in memory. The state touched on the fast path, by
/// in-order data, pure ACKs and new data sent, comes first: [`HOT_LEN`] bytes, three cache lines if
/// the `Tcb` starts at one; see `fast_path`. The fields after it are ordered for alignment only.
#[derive(Debug)]
#[repr(C)]
pub struct Tcb<R: RxFrame, T: Retained> {
    scoreboard: LazyScoreboard<T>,
    cfg: Arc<Config>,
    timers: Timers,
    /// Time of the last acceptable segment from the peer.
    last_rx_at: Instant,
    rcv: RcvVars,
    snd: SndVars,
    ts: Timestamps,
    rtt_cache: RttCache,
    traffic: Traffic,
    rcv_round_end: RoundEnd,
    /// Time when SND.UNA last advanced, or when something was sent with nothing outstanding.
    progress_at: CoarseInstant,
    /// Time when new data was last sent.
    last_tx_at: CoarseInstant,
    /// Bytes that pacing admits before its next check.
    pacing_credit: PacingCredit,
    /// EMSS: most payload bytes of a data segment, TCP options deducted.
    emss: u16,
    /// Timestamps negotiated, or offered in our SYN.
    ts_on: bool,
    /// Eligibility of segments for the fast path.
    fast_path: FastPath,
    /// Congestion control. Its first part, the window, ends the hot state.
    cc: Congestion,

    template: HeaderTemplate,
    events: u16,
    state: State,
    /// SACK negotiated, or offered in our SYN.
    sack: bool,
    /// Window scaling negotiated, or offered in our SYN.
    scaling: bool,
    /// The persist timer fired: a segment smaller than EMSS may be sent (RFC 9293
    /// section 3.8.6.2.1).
    sws_override: bool,
    /// Number of doublings of the persist interval.
    persist_backoff: u8,
    /// Consecutive probes and retransmission timeouts without an acceptable segment from the peer.
    unanswered: u8,
    /// Consecutive retransmission timeouts without progress.
    retries: u8,
    /// An expired timer was re-armed because of its overrun; the next expiry fires whatever the
    /// overrun.
    rearmed: bool,
    /// Passive open: the connection began with the peer's SYN.
    passive: bool,
    /// The next burst waits for the pacing timer.
    paced: bool,
    /// Close was called before the handshake was complete.
    close_pending: bool,
    /// The upper layer takes no more data.
    receive_shut: bool,
    local: Local,
    peer: Peer,
    rcv_limits: RcvLimits,
    pending: Pending,
    plan: Plan,
    tlp: Tlp,
    round_flight: RoundFlight,
    /// Time of the last retransmission.
    last_retransmit_at: CoarseInstant,
    /// Receive window that would not limit the peer, computed in the last autotuning round.
    window_wanted: u32,
    rare: RareTimers,
    recovery: Recovery,
    rack: Rack,
    rtt: Rtt,
    assembler: LazyAssembler<R>,
    dsack_queue: DsackQueue,
    rcv_round: RcvRound,
    /// Time when our timestamp clock last skipped idle time.
    ts_advanced_at: Instant,
    pmtu: PathMtu,
    ecn: Ecn,
    ack_rate_limit: AckRateLimit,
    /// Bytes delivered in order and bytes sent, updated once per round trip.
    counted: (u64, u64),
    stats: RareCounts,
}

/// Length of the hot state: the bytes at the start of a [`Tcb`] that hold everything the fast path
/// touches, apart from the addresses of [`HeaderTemplate`]. Three cache lines.
pub const HOT_LEN: usize = 192;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    // Commands.

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

    /// Raises the receive window from its start-up size to the full one: the connection was
    /// accepted.
    pub fn open_window(&mut self) {
        let reopens = self.rcv_limits.raise(&mut self.rcv, self.cfg.recv_window, &self.cfg);
        self.announce_window(reopens);
    }

    fn announce_window(&mut self, reopens: bool) {
        if reopens && self.state.is_synchronised() {
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

    // Results.

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
    fn transition(&mut self, event: StateEvent) -> bool {
        let Some(next) = self.state.after(event) else { return false };
        self.state = next;
        true
    }

    fn raise_event(&mut self, event: Event) {
        self.events |= event.bit();
        self.fast_path.set_events();
    }
}
