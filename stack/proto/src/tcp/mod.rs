//! One TCP connection, made for MPA: the send side carries records, the receive side hands up
//! frames.
//!
//! [`Tcb`] does no input or output, reads no clock and draws no random number. The engine above
//! feeds it and asks it, per connection and pass, in this order:
//!
//! 1. [`Tcb::handle_segment`] for each received segment; after [`Delivered::InOrder`],
//!    [`Tcb::next_contiguous`] until `None`; after [`Delivered::OutOfOrder`], the answer; then
//!    [`Tcb::release_ooo`], and [`Tcb::poll_event`] until `None`.
//! 2. [`Tcb::handle_timeout`], if [`Tcb::deadline`] has passed and the receive queue is drained.
//! 3. [`Tcb::next_transmit`] until [`Transmit::Idle`] (or a budget's end), writing what it says.
//!    Called after a whole burst was handled, it asks for one ACK however long the burst was.
//!
//! How the parts divide: `input` takes segments apart in the order of RFC 9293 section 3.10.7;
//! `ack` is what an acknowledgment means to the send side, `scoreboard` its records; `repair` finds
//! and repairs losses with `rack`, `tail` and `prr`; `congestion` says how much may be under way,
//! `ecn` what the network marked, `pacing` when it leaves; `plan` decides what leaves next and
//! `output` writes it, `pmtu` finds the path's size; `deliver` hands payload up, `receive` offers
//! the window and schedules ACKs, `growth` widens it; `assembler` keeps what arrived early, in
//! memory of `held`; `sent_frame` is what keeps sent bytes; `state` is the transition table,
//! `accessors` what can be asked.
//!
//! Read before changing anything: RFC 9293, 5681, 6298, 6675, 7323, 2018, 2883, 3522, 5961, 8985,
//! 9937, 9438, 9406, 3168, 8257.

mod accessors;
mod ack;
mod assembler;
mod challenge;
mod close;
mod config;
mod congestion;
mod deliver;
mod ecn;
mod events;
mod fast_path;
mod input;
mod loss_recovery;
mod ooo_queue;
mod open;
mod output;
mod pacing;
mod pmtu;
mod prr;
mod rack;
mod rare_counts;
mod rcv_autotune;
mod receive;
mod recovery_state;
mod rtt;
mod scoreboard;
mod send;
mod sent_frame;
mod state;
mod timeout;
mod timer;
mod tlp;
mod tx_schedule;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

pub use assembler::Contiguous;
pub use config::{Algorithm, Config, EcnMode, Stats};
pub use events::{Delivered, Event, IssAndTsOffset, Transmit, TxDemand};
pub use ooo_queue::{OooCopy, OooPool, OooSegment};
pub(crate) use open::default_mss;
pub use pmtu::{PathMtuConfig, Probing, TooBig};
pub use sent_frame::CopyPool;
pub use state::State;

use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{HeaderTemplate, TIMESTAMPS_LEN};
use assembler::LazyAssembler;
use challenge::AckRateLimit;
use congestion::Congestion;
use deliver::OfferedOoo;
use ecn::Ecn;
use fast_path::FastPath;
use pacing::PacingCredit;
use pmtu::PathMtu;
use rack::Rack;
use rare_counts::RareCounts;
use rcv_autotune::{RcvRound, RoundEnd};
use receive::{DsackQueue, Peer, RcvLimits, RcvVars};
use recovery_state::{Recovery, RoundFlight, Tlp};
use rtt::{Rtt, RttCache};
use scoreboard::LazyScoreboard;
use send::{Local, SndVars};
use state::StateEvent;
use timer::{CoarseInstant, NEVER, RareTimers, Timers};

/// Bytes of payload that the timestamps option takes.
#[expect(clippy::cast_possible_truncation, reason = "12")]
const TIMESTAMPS_BYTES: u16 = TIMESTAMPS_LEN as u16;

/// Timestamps (RFC 7323).
#[derive(Debug)]
struct Timestamps {
    /// Added to the clock, so that it says nothing about this host.
    offset: u32,
    /// The peer's latest acceptable TSval.
    recent: u32,
    /// When it was taken, by [`Timestamps::coarse`].
    recent_stamp: u32,
}

impl Timestamps {
    /// Units of 2^30 nanoseconds, of which 32 bits last for a century.
    #[expect(clippy::cast_possible_truncation, reason = "a century")]
    #[inline]
    const fn coarse(now: Instant) -> u32 {
        (now.as_nanos() >> 30) as u32
    }

    /// The TSval of a segment sent now: microseconds.
    #[expect(clippy::cast_possible_truncation, reason = "TSval is a 32-bit clock that wraps")]
    #[inline]
    const fn tsval(&self, now: Instant) -> u32 {
        (now.as_micros() as u32).wrapping_add(self.offset)
    }
}

/// Segments in and out; wraps.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    segments_in: u32,
    segments_out: u32,
}

/// What is to be sent without payload, apart from ACK and FIN.
#[derive(Debug, Default)]
struct Pending {
    /// SYN or SYN-ACK.
    syn: bool,
    /// RST that ends the connection.
    reset: bool,
    /// RST with this sequence number, for a segment that makes no sense; state is kept.
    stray_reset: Option<Seq>,
    /// A segment below the peer's window, which it answers with an ACK.
    probe: bool,
    /// The tail-loss probe.
    tlp: bool,
}

impl Pending {
    const fn any(&self) -> bool {
        self.syn || self.reset || self.stray_reset.is_some() || self.probe || self.tlp
    }
}

/// What the next call is to see to.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Nothing,
    /// What was handed up early waits for its answer.
    OooAnswer(OfferedOoo),
    /// `next_transmit` announced it, and a `write_` call carries it out.
    Control(tx_schedule::Control),
    /// See `Control`.
    Retransmit(tx_schedule::Retransmit),
}

/// One TCP connection. `R` are received frames, `T` sent frames kept for retransmission.
///
/// The memory held is bounded by the configuration: `max_ooo_segments` received pieces, in memory
/// that a [`OooPool`] lends while there is something to hold, and `max_records` sent ones.
/// Nothing is allocated per packet; the queue of records grows to its working size once, and is
/// given back when the connection has been idle for a while.
///
/// In this order in memory. What the segments of a calm connection touch, in order, pure ACK and
/// sent, comes first: [`HOT_LEN`] bytes, three cache lines if the whole begins with one; see
/// `calm`. The fields behind that need no order but that of their alignment.
#[derive(Debug)]
#[repr(C)]
pub struct Tcb<R: RxFrame, T: Retained> {
    scoreboard: LazyScoreboard<T>,
    cfg: Arc<Config>,
    timers: Timers,
    /// When the peer was last heard.
    last_rx_at: Instant,
    rcv: RcvVars,
    snd: SndVars,
    ts: Timestamps,
    rtt_cache: RttCache,
    traffic: Traffic,
    rcv_round_end: RoundEnd,
    /// When the send side last made progress, or became busy.
    progress_at: CoarseInstant,
    /// When payload was last sent.
    last_tx_at: CoarseInstant,
    /// What pacing lets go.
    pacing_credit: PacingCredit,
    /// Payload bytes of a full segment.
    emss: u16,
    /// Timestamps negotiated, or offered in our SYN.
    ts_on: bool,
    /// Which segments go the short way.
    fast_path: FastPath,
    /// The window, which is its first part, is the last of the hot state.
    cc: Congestion,

    template: HeaderTemplate,
    events: u16,
    state: State,
    /// SACK negotiated, or offered in our SYN.
    sack: bool,
    /// Window scaling negotiated, or offered in our SYN.
    scaling: bool,
    /// The persist timer fired: a small segment may go (RFC 9293 section 3.8.6.2.1).
    sws_override: bool,
    /// Doublings of the persist interval.
    persist_backoff: u8,
    /// Probes or timeouts since the peer was last heard.
    unanswered: u8,
    /// Retransmission timeouts since the last progress.
    retries: u8,
    /// A timer was found late and armed again; the next time it fires however late.
    rearmed: bool,
    /// It began with the peer's SYN, not with ours.
    passive: bool,
    /// The next burst waits for its time.
    paced: bool,
    /// A close was asked for before the handshake was complete.
    close_pending: bool,
    /// The upper layer takes no more bytes.
    receive_shut: bool,
    local: Local,
    peer: Peer,
    rcv_limits: RcvLimits,
    pending: Pending,
    plan: Plan,
    tlp: Tlp,
    round_flight: RoundFlight,
    /// When a record was last sent again.
    last_retransmit_at: CoarseInstant,
    /// What the receive window should span, by the last round.
    window_wanted: u32,
    rare: RareTimers,
    recovery: Recovery,
    rack: Rack,
    rtt: Rtt,
    assembler: LazyAssembler<R>,
    dsack_queue: DsackQueue,
    rcv_round: RcvRound,
    /// When our clock of the timestamps last skipped a part of a silence.
    ts_advanced_at: Instant,
    pmtu: PathMtu,
    ecn: Ecn,
    ack_rate_limit: AckRateLimit,
    /// Bytes handed up and sent, up to date once in a round trip.
    counted: (u64, u64),
    stats: RareCounts,
}

/// Bytes at the start of a [`Tcb`] that hold all its state that segments of a calm connection
/// touch, the addresses of [`HeaderTemplate`] left out: three cache lines.
pub const HOT_LEN: usize = 192;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    // Commands.

    /// The upper layer keeps `bytes` of what it was handed: the window offer shrinks as they
    /// arrive, the edge already offered stays.
    pub fn add_unconsumed(&mut self, bytes: u32) {
        self.rcv_limits.add_unconsumed(&mut self.rcv, bytes, &self.cfg);
    }

    /// The upper layer consumed `bytes` that it had kept. If that reopens a window which had
    /// become small, an ACK is due.
    pub fn consume(&mut self, bytes: u32) {
        let reopens = self.rcv_limits.consume(&mut self.rcv, bytes, &self.cfg);
        self.announce_window(reopens);
    }

    /// Opens the receive window from its start-up size to the full one: the connection was
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

    /// Sends to another MAC from now on.
    pub fn set_remote_mac(&mut self, mac: [u8; 6]) {
        self.template.set_remote_mac(mac);
    }

    /// Where its segments go at present.
    #[must_use]
    pub const fn remote_mac(&self) -> [u8; 6] {
        self.template.remote_mac()
    }

    // Results.

    /// The next notice, if any.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.has_events() { self.next_event() } else { None }
    }

    /// True if there may be a notice, or the connection is gone: else neither
    /// [`Tcb::poll_event`] nor [`Tcb::is_closed`] has anything to say.
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

    /// True once the peer's FIN was received and everything before it handed up.
    #[must_use]
    pub fn peer_finished(&self) -> bool {
        self.peer.fin_received
    }

    /// When [`Tcb::handle_timeout`] is to be called next. May lie early, never late.
    #[inline]
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let earliest = self.timers.earliest();
        (earliest != NEVER).then_some(earliest)
    }

    // Internals shared by the parts.

    /// Moves along the transition table; false if the event means nothing here.
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
