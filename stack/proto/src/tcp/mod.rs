//! One TCP connection, made for MPA: the send side carries records, the receive side hands up
//! frames.
//!
//! [`Tcb`] does no input or output, reads no clock and draws no random number. The engine above
//! feeds it and asks it, per connection and pass, in this order:
//!
//! 1. [`Tcb::handle_segment`] for each received segment; after [`Delivered::InOrder`],
//!    [`Tcb::next_held`] until `None`; after [`Delivered::Early`], the answer; then
//!    [`Tcb::settle_held`], and [`Tcb::poll_notice`] until `None`.
//! 2. [`Tcb::handle_timeout`], if [`Tcb::deadline`] has passed and the receive queue is drained.
//! 3. [`Tcb::next_transmit`] until [`Transmit::Idle`] (or a budget's end), writing what it says.
//!    Called after a whole burst was handled, it asks for one ACK however long the burst was.
//!
//! How the parts divide: `input` takes segments apart in the order of RFC 9293 section 3.10.7;
//! `ack` is what an acknowledgment means to the send side, `scoreboard` its records; `repair` finds
//! and repairs losses with `rack`, `tail` and `prr`; `congestion` says how much may be under way,
//! `ecn` what the network marked, `pacing` when it leaves; `plan` decides what leaves next and
//! `output` writes it, `pmtu` finds the path's size; `deliver` hands payload up, `receive` offers
//! the window and schedules ACKs, `growth` widens it; `reassembly` keeps what arrived early, in
//! memory of `held`; `kept` is what keeps sent octets; `state` is the transition table, `facts`
//! what can be asked.
//!
//! Read before changing anything: RFC 9293, 5681, 6298, 6675, 7323, 2018, 2883, 3522, 5961, 8985,
//! 9937, 9438, 9406, 3168, 8257.

mod ack;
mod calm;
mod challenge;
mod close;
mod config;
mod congestion;
mod deliver;
mod ecn;
mod facts;
mod growth;
mod held;
mod input;
mod interface;
mod kept;
mod open;
mod output;
mod pacing;
mod plan;
mod pmtu;
mod prr;
mod rack;
mod rare_counts;
mod reassembly;
mod receive;
mod recovery;
mod repair;
mod rtt;
mod scoreboard;
mod send;
mod state;
mod tail;
mod timeout;
mod timer;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

pub use config::{Algorithm, Config, EcnMode, Stats};
pub use held::{Copied, Held, HoldPool};
pub use interface::{Delivered, Notice, Origin, Ready, Transmit};
pub use kept::CopyPool;
pub(crate) use open::default_mss;
pub use pmtu::{PathMtuConfig, Probing, TooBig};
pub use reassembly::InTurn;
pub use state::State;

use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{HeaderTemplate, TIMESTAMPS_LEN};
use calm::Calm;
use challenge::Challenges;
use congestion::Congestion;
use deliver::Early;
use ecn::Ecn;
use growth::{Mark, Round};
use pacing::Credit;
use pmtu::PathMtu;
use rack::Rack;
use rare_counts::RareCounts;
use reassembly::Reassembly;
use receive::{Limits, Peer, Receive, Reports};
use recovery::{Recovery, RoundFlight, Tail};
use rtt::{Rtt, Timing};
use scoreboard::Scoreboard;
use send::{Own, Send};
use state::Event;
use timer::{Moment, NEVER, RareTimers, Timers};

/// Octets of payload that the timestamps option takes.
#[expect(clippy::cast_possible_truncation, reason = "12")]
const TIMESTAMPS_OCTETS: u16 = TIMESTAMPS_LEN as u16;

/// Timestamps (RFC 7323).
#[derive(Debug)]
struct Timestamps {
    /// Added to the clock, so that it says nothing about this host.
    offset: u32,
    /// The peer's latest acceptable TSval.
    recent: u32,
    /// When it was taken, by [`Timestamps::coarse`].
    recent_at: u32,
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
    const fn value(&self, now: Instant) -> u32 {
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
struct Due {
    /// SYN or SYN-ACK.
    syn: bool,
    /// RST that ends the connection.
    reset: bool,
    /// RST with this sequence number, for a segment that makes no sense; state is kept.
    stray_reset: Option<Seq>,
    /// A segment below the peer's window, which it answers with an ACK.
    probe: bool,
    /// The tail-loss probe.
    tail: bool,
}

impl Due {
    const fn any(&self) -> bool {
        self.syn || self.reset || self.stray_reset.is_some() || self.probe || self.tail
    }
}

/// What the next call is to see to.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Nothing,
    /// What was handed up early waits for its answer.
    Answer(Early),
    /// `next_transmit` announced it, and a `write_` call carries it out.
    Control(plan::Control),
    /// See `Control`.
    Resend(plan::Resend),
}

/// One TCP connection. `R` are received frames, `T` sent frames kept for retransmission.
///
/// The memory held is bounded by the configuration: `max_held_frames` received pieces, in memory
/// that a [`HoldPool`] lends while there is something to hold, and `max_records` sent ones.
/// Nothing is allocated per packet; the queue of records grows to its working size once, and is
/// given back when the connection has been idle for a while.
///
/// In this order in memory. What the segments of a calm connection touch, in order, pure ACK and
/// sent, comes first: [`HOT_LEN`] octets, three cache lines if the whole begins with one; see
/// `calm`. The fields behind that need no order but that of their alignment.
#[derive(Debug)]
#[repr(C)]
pub struct Tcb<R: RxFrame, T: Retained> {
    board: Scoreboard<T>,
    cfg: Arc<Config>,
    timers: Timers,
    /// When the peer was last heard.
    heard_at: Instant,
    rcv: Receive,
    snd: Send,
    ts: Timestamps,
    timing: Timing,
    traffic: Traffic,
    round_mark: Mark,
    /// When the send side last made progress, or became busy.
    progress_at: Moment,
    /// When payload was last sent.
    sent_at: Moment,
    /// What pacing lets go.
    credit: Credit,
    /// Payload octets of a full segment.
    emss: u16,
    /// Timestamps negotiated, or offered in our SYN.
    ts_on: bool,
    /// Which segments go the short way.
    calm: Calm,
    /// The window, which is its first part, is the last of the hot state.
    cc: Congestion,

    template: HeaderTemplate,
    notices: u16,
    state: State,
    /// SACK negotiated, or offered in our SYN.
    sack: bool,
    /// Window scaling negotiated, or offered in our SYN.
    scaling: bool,
    /// The persist timer fired: a small segment may go (RFC 9293 section 3.8.6.2.1).
    override_silly: bool,
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
    /// The upper layer takes no more octets.
    receive_shut: bool,
    own: Own,
    peer: Peer,
    limits: Limits,
    due: Due,
    plan: Plan,
    tail: Tail,
    round_flight: RoundFlight,
    /// When a record was last sent again.
    resent_at: Moment,
    /// What the receive window should span, by the last round.
    window_wanted: u32,
    rare: RareTimers,
    recovery: Recovery,
    rack: Rack,
    rtt: Rtt,
    reassembly: Reassembly<R>,
    reports: Reports,
    round: Round,
    /// When our clock of the timestamps last skipped a part of a silence.
    woken_at: Instant,
    pmtu: PathMtu,
    ecn: Ecn,
    challenges: Challenges,
    /// Octets handed up and sent, up to date once in a round trip.
    counted: (u64, u64),
    stats: RareCounts,
}

/// Octets at the start of a [`Tcb`] that hold all its state that segments of a calm connection
/// touch, the addresses of [`HeaderTemplate`] left out: three cache lines.
pub const HOT_LEN: usize = 192;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    // Commands.

    /// The upper layer keeps `octets` of what it was handed: the window offer shrinks as they
    /// arrive, the edge already offered stays.
    pub fn hold(&mut self, octets: u32) {
        self.limits.hold(&mut self.rcv, octets, &self.cfg);
    }

    /// The upper layer consumed `octets` that it had kept. If that reopens a window which had
    /// become small, an ACK is due.
    pub fn release(&mut self, octets: u32) {
        let reopens = self.limits.release(&mut self.rcv, octets, &self.cfg);
        self.announce_window(reopens);
    }

    /// Opens the receive window from its start-up size to the full one: the connection was
    /// accepted.
    pub fn open_window(&mut self) {
        let reopens = self.limits.open(&mut self.rcv, self.cfg.recv_window, &self.cfg);
        self.announce_window(reopens);
    }

    fn announce_window(&mut self, reopens: bool) {
        if reopens && self.state.is_synchronised() {
            self.rcv.due = true;
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
    pub fn poll_notice(&mut self) -> Option<Notice> {
        if self.has_news() { self.next_notice() } else { None }
    }

    /// True if there may be a notice, or the connection is gone: else neither
    /// [`Tcb::poll_notice`] nor [`Tcb::is_closed`] has anything to say.
    #[inline]
    #[must_use]
    pub const fn has_news(&self) -> bool {
        self.calm.has_news()
    }

    #[cold]
    fn next_notice(&mut self) -> Option<Notice> {
        let notice = Notice::ALL.into_iter().find(|notice| self.notices & notice.bit() != 0)?;
        self.notices &= !notice.bit();
        self.refresh();
        Some(notice)
    }

    /// True once the peer's FIN was received and everything before it handed up.
    #[must_use]
    pub fn peer_finished(&self) -> bool {
        self.peer.finished
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
    fn step(&mut self, event: Event) -> bool {
        let Some(next) = self.state.after(event) else { return false };
        self.state = next;
        true
    }

    fn notify(&mut self, notice: Notice) {
        self.notices |= notice.bit();
        self.calm.tell();
    }
}
