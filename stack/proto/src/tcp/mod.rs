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
//! `ecn` what the network marked, `pacing` when it leaves; `output` decides and writes what leaves;
//! `deliver` hands payload up, `receive` offers the window and schedules ACKs, `growth` widens it;
//! `reassembly` keeps what arrived early, in memory of `held`; `state` is the transition table.
//!
//! Read before changing anything: RFC 9293, 5681, 6298, 6675, 7323, 2018, 2883, 3522, 5961, 8985,
//! 9937, 9438, 9406, 3168, 8257.

mod ack;
mod challenge;
mod close;
mod config;
mod congestion;
mod deliver;
mod ecn;
mod growth;
mod held;
mod input;
mod output;
mod pacing;
mod pmtu;
mod prr;
mod rack;
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

use core::ops::Range;
use std::sync::Arc;

pub use config::{Algorithm, Config, EcnMode, Stats};
pub use held::{Copied, Held, HoldPool};
pub use pmtu::{PathMtuConfig, Probing, TooBig};
pub use reassembly::InTurn;
pub use state::State;

use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{Flags, FourTuple, HeaderTemplate, Segment, TIMESTAMPS_LEN};
use challenge::Challenges;
use congestion::Congestion;
use deliver::Early;
use ecn::Ecn;
use growth::Round;
use pacing::Pacer;
use pmtu::PathMtu;
use rack::Rack;
use reassembly::Reassembly;
use receive::{AckState, Receive};
use recovery::{Recovery, Tail};
use rtt::Rtt;
use scoreboard::Scoreboard;
use send::{Fin, Send};
use state::Event;
use timer::{NEVER, Timers};

/// Smallest segment size believed: below it a peer would have us send headers only.
const MIN_MSS: u16 = 64;
/// Octets of payload that the timestamps option takes.
#[expect(clippy::cast_possible_truncation, reason = "12")]
const TIMESTAMPS_OCTETS: u32 = TIMESTAMPS_LEN as u32;

/// What a segment brought for the upper layer.
#[derive(Debug)]
#[must_use]
pub enum Delivered<R> {
    /// Nothing new: an ACK, a duplicate, or what is over the bound.
    Nothing,
    /// The next octets of the stream. They are acknowledged from now on: the caller consumes
    /// them, or keeps them and says so with [`Tcb::hold`].
    InOrder {
        /// The frame.
        frame: R,
        /// Where the new octets lie in it; never empty.
        octets: Range<usize>,
    },
    /// Octets ahead of their turn. The caller answers before anything else is asked of the
    /// connection: [`Tcb::hold_early`] if TCP is to keep them, [`Tcb::took_early`] if it has used
    /// them already, [`Tcb::reject_early`] if it can tell that they are garbage, or has no room.
    /// No octet is handed up again that was held or taken; what was rejected may come once more.
    ///
    /// Of a segment that spans several gaps only the first new part is handed up: a frame goes up
    /// once, and MPA's segments overlap in part only where the peer has cut them anew. The rest
    /// counts as not received.
    Early {
        /// The frame.
        frame: R,
        /// Sequence number of the first new octet.
        seq: Seq,
        /// Where the new octets lie in the frame; never empty.
        octets: Range<usize>,
    },
}

/// Where a connection begins: what must not be guessed by those who do not see its segments. The
/// caller's keyed hashes of the four-tuple; the only source of chance here.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Initial send sequence number (RFC 6528: keyed hash plus clock).
    pub iss: Seq,
    /// Added to the clock of the timestamps (RFC 7323 section 7.1). Of another key than `iss`, so
    /// that neither tells the other.
    pub ts_offset: u32,
}

impl Origin {
    /// TSval of a segment sent now: microseconds.
    #[expect(clippy::cast_possible_truncation, reason = "TSval is a 32-bit clock that wraps")]
    #[inline]
    #[must_use]
    pub const fn ts_clock(&self, now: Instant) -> u32 {
        (now.as_micros() as u32).wrapping_add(self.ts_offset)
    }
}

/// What the upper layer has to send next. See [`Tcb::next_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Nothing.
    Nothing,
    /// A record; its octets if it may be as long as it likes. It decides whether a small window
    /// will do.
    Record(u32),
}

/// What the connection wants to send next. See [`Tcb::next_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Transmit {
    /// Nothing now.
    Idle,
    /// A frame of headers only (SYN, SYN-ACK, ACK, FIN, probe, RST): [`Tcb::write_control`].
    Control,
    /// A copy of octets written before: [`Tcb::write_resend`].
    Resend {
        /// Payload octets of the frame.
        payload_len: usize,
    },
    /// A new record may be written: [`Tcb::write_fresh`], then [`Tcb::sent`].
    Fresh {
        /// Payload octets admitted: [`Tcb::emss`], less under a small window, or more if the path
        /// is to be probed. The record that was announced fits, unless no larger window is to be
        /// expected soon; a record made to fit is best. A longer one is accepted and will be cut.
        room: usize,
    },
}

/// A change the upper layer has to know of. Each is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The handshake is complete.
    Established,
    /// [`Tcb::emss`] changed after the handshake: the path takes less, or more.
    Emss,
    /// The peer's FIN arrived, and everything before it was handed up.
    PeerClosed,
    /// The peer reset the connection.
    Reset,
    /// The peer no longer answers.
    TimedOut,
    /// Segments have gone unanswered for some time, and are sent on (RFC 9293 section 3.8.3, R1):
    /// the way to the peer is to be looked at.
    Doubtful,
    /// All is done, and the connection only waits for stray segments (TIME-WAIT); also each time
    /// that this wait begins anew.
    TimeWait,
    /// The receive window holds the peer up, or soon will: [`Tcb::window_wanted`],
    /// [`Tcb::grow_window`].
    Window,
    /// The connection is gone; always the last notice.
    Closed,
}

impl Notice {
    const ALL: [Self; 9] = [
        Self::Established,
        Self::Emss,
        Self::PeerClosed,
        Self::Reset,
        Self::TimedOut,
        Self::Doubtful,
        Self::TimeWait,
        Self::Window,
        Self::Closed,
    ];

    const fn bit(self) -> u16 {
        1 << self as u8
    }
}

/// Timestamps (RFC 7323).
#[derive(Debug)]
struct Timestamps {
    /// Negotiated, or offered in our SYN.
    on: bool,
    /// Added to the clock, so that it says nothing about this host.
    offset: u32,
    /// The peer's latest acceptable TSval.
    recent: u32,
    /// When it was taken, by [`Timestamps::coarse`].
    recent_at: u32,
    /// When our clock last skipped a part of a silence.
    woken_at: Instant,
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

/// What the next call is to see to.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Nothing,
    /// What was handed up early waits for its answer.
    Answer(Early),
    /// `next_transmit` announced it, and a `write_` call carries it out.
    Control(output::Control),
    /// See `Control`.
    Resend(output::Resend),
}

/// One TCP connection. `R` are received frames, `T` sent frames kept for retransmission.
///
/// The memory held is bounded by the configuration: `max_held_frames` received pieces, in memory
/// that a [`HoldPool`] lends while there is something to hold, and `max_records` sent ones.
/// Nothing is allocated per packet; the queue of records grows to its working size once, and is
/// given back when the connection has been idle for a while.
#[derive(Debug)]
pub struct Tcb<R: RxFrame, T: Retained> {
    state: State,
    rcv: Receive,
    ack: AckState,
    ts: Timestamps,
    /// SACK negotiated, or offered in our SYN.
    sack: bool,
    /// Window scaling negotiated, or offered in our SYN.
    scaling: bool,
    /// Payload octets of a full segment.
    emss: u32,
    pmtu: PathMtu,
    snd: Send,
    timers: Timers,
    board: Scoreboard<T>,
    recovery: Recovery,
    rack: Rack,
    tail: Tail,
    cc: Congestion,
    ecn: Ecn,
    pacer: Pacer,
    rtt: Rtt,
    reassembly: Reassembly<R>,
    round: Round,
    due: Due,
    plan: Plan,
    /// The congestion window held something back since it last grew.
    cwnd_limited: bool,
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
    /// A close was asked for before the handshake was complete.
    close_pending: bool,
    /// The upper layer takes no more octets.
    receive_shut: bool,
    notices: u16,
    challenges: Challenges,
    /// When the peer was last heard.
    heard_at: Instant,
    /// When the send side last made progress, or became busy.
    progress_at: Instant,
    /// When payload was last sent.
    sent_at: Instant,
    template: HeaderTemplate,
    stats: Stats,
    cfg: Arc<Config>,
}

/// Segment size of a peer that does not tell its own (RFC 9293 section 3.7.1): what every host
/// takes, less 40 octets of headers over IPv4, 60 over IPv6.
pub(crate) const fn default_mss(tuple: &FourTuple) -> u16 {
    if tuple.remote.is_ipv6() { 1280 - 60 } else { 576 - 40 }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Opens a connection: a SYN is due (RFC 9293 section 3.10.1).
    #[must_use]
    pub fn connect(
        now: Instant,
        cfg: &Arc<Config>,
        template: HeaderTemplate,
        origin: Origin,
    ) -> Self {
        Self::new(now, cfg, template, origin, State::SynSent)
    }

    /// Takes up the SYN `syn`, which came to a listener: a SYN-ACK is due (RFC 9293 section
    /// 3.10.7.2). Payload in the SYN is ignored; the peer sends it again.
    #[must_use]
    pub fn accept(
        now: Instant,
        cfg: &Arc<Config>,
        template: HeaderTemplate,
        syn: &Segment,
        origin: Origin,
    ) -> Self {
        let mut tcb = Self::new(now, cfg, template, origin, State::SynReceived);
        tcb.passive = true;
        tcb.negotiate(now, syn);
        tcb
    }

    /// Takes up a connection of which nothing was kept but what a SYN cookie brought back: `syn` is
    /// the SYN as remembered, `origin` where the SYN-ACK began. The segment that brought it is to
    /// be handed in next.
    #[must_use]
    pub fn from_cookie(
        now: Instant,
        cfg: &Arc<Config>,
        template: HeaderTemplate,
        syn: &Segment,
        origin: Origin,
    ) -> Self {
        let mut tcb = Self::accept(now, cfg, template, syn, origin);
        tcb.due.syn = false;
        tcb.snd.nxt = tcb.snd.iss + 1;
        // How long the SYN-ACK was under way is not known.
        tcb.retries = 1;
        tcb
    }

    fn new(
        now: Instant,
        cfg: &Arc<Config>,
        template: HeaderTemplate,
        origin: Origin,
        state: State,
    ) -> Self {
        let Origin { iss, ts_offset } = origin;
        let mss = cfg.mss.max(MIN_MSS);
        Self {
            state,
            rcv: Receive::new(cfg),
            ack: AckState::new(),
            ts: Timestamps {
                on: cfg.timestamps,
                offset: ts_offset,
                recent: 0,
                recent_at: Timestamps::coarse(now),
                woken_at: now,
            },
            sack: cfg.sack,
            scaling: true,
            emss: u32::from(mss),
            pmtu: PathMtu::new(&cfg.path_mtu, mss, false),
            snd: Send::new(iss, mss),
            timers: Timers::OFF,
            board: Scoreboard::new(),
            recovery: Recovery::new(iss),
            rack: Rack::new(),
            tail: Tail::new(),
            cc: Congestion::new(cfg.congestion, u32::from(mss)),
            ecn: Ecn::new(cfg),
            pacer: Pacer::new(),
            rtt: Rtt::new(cfg),
            reassembly: Reassembly::new(),
            round: Round::new(),
            due: Due { syn: true, ..Due::default() },
            plan: Plan::Nothing,
            cwnd_limited: false,
            override_silly: false,
            persist_backoff: 0,
            unanswered: 0,
            retries: 0,
            rearmed: false,
            passive: false,
            close_pending: false,
            receive_shut: false,
            notices: 0,
            challenges: Challenges::default(),
            heard_at: now,
            progress_at: now,
            sent_at: now,
            template,
            stats: Stats::default(),
            cfg: Arc::clone(cfg),
        }
    }

    /// Takes over what the peer's SYN or SYN-ACK says.
    fn negotiate(&mut self, now: Instant, syn: &Segment) {
        self.rcv.synchronise(syn.seq);
        let peer_mss = syn.options.mss.unwrap_or(default_mss(&syn.tuple)).max(MIN_MSS);
        self.snd.mss = self.snd.mss.min(peer_mss);
        self.sack &= syn.options.sack_permitted;
        match syn.options.wscale {
            Some(shift) => self.snd.wscale = shift,
            None => {
                self.scaling = false;
                self.rcv.forgo_scaling();
            }
        }
        self.ts.on &= syn.options.ts.is_some();
        if let (true, Some((val, _))) = (self.ts.on, syn.options.ts) {
            self.ts.recent = val;
            self.ts.recent_at = Timestamps::coarse(now);
        }
        self.ecn.negotiate(self.cfg.ecn, syn.flags);
        self.begin_path();
        self.cc = Congestion::new(self.cfg.congestion, self.emss);
        // The window of a SYN is never scaled (RFC 7323 section 2.2).
        self.snd.wnd = u32::from(syn.window);
        self.snd.max_wnd = self.snd.wnd;
        self.snd.wl1 = syn.seq;
        self.snd.wl2 = if syn.flags.has(Flags::ACK) { syn.ack } else { self.snd.iss };
    }

    // Commands.

    /// The upper layer keeps `octets` of what it was handed: the window offer shrinks as they
    /// arrive, the edge already offered stays.
    pub fn hold(&mut self, octets: u32) {
        self.rcv.hold(octets);
    }

    /// The upper layer consumed `octets` that it had kept. If that reopens a window which had
    /// become small, an ACK is due.
    pub fn release(&mut self, octets: u32) {
        let reopens = self.rcv.release(octets);
        self.announce_window(reopens);
    }

    /// Opens the receive window from its start-up size to the full one: the connection was
    /// accepted.
    pub fn open_window(&mut self) {
        let reopens = self.rcv.open(self.cfg.recv_window);
        self.announce_window(reopens);
    }

    fn announce_window(&mut self, reopens: bool) {
        if reopens && self.state.is_synchronised() {
            self.ack.due = true;
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
    pub fn poll_notice(&mut self) -> Option<Notice> {
        if self.notices == 0 {
            return None;
        }
        let notice = Notice::ALL.into_iter().find(|notice| self.notices & notice.bit() != 0)?;
        self.notices &= !notice.bit();
        Some(notice)
    }

    /// True once the peer's FIN was received and everything before it handed up.
    #[must_use]
    pub fn peer_finished(&self) -> bool {
        self.rcv.finished
    }

    /// When [`Tcb::handle_timeout`] is to be called next. May lie early, never late.
    #[inline]
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let earliest = self.timers.earliest().min(self.ack.delayed);
        (earliest != NEVER).then_some(earliest)
    }

    // Getters.

    /// State.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// True once the connection is gone and no RST is left to send: it may be dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed && !self.due.reset
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Both ends.
    #[must_use]
    pub fn tuple(&self) -> FourTuple {
        self.template.tuple()
    }

    /// True if both ends are those of `tuple`.
    #[inline]
    #[must_use]
    pub fn is_between(&self, tuple: &FourTuple) -> bool {
        self.template.is_between(tuple)
    }

    /// EMSS: most payload octets of a data segment, options taken off.
    #[inline]
    #[must_use]
    pub fn emss(&self) -> usize {
        self.emss as usize
    }

    /// Octets before the payload in a data frame: Ethernet, IP, TCP, options. Fixed once
    /// established.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.template.base_len() + if self.ts.on { TIMESTAMPS_LEN } else { 0 }
    }

    /// Lengths of link and network header of every frame, for
    /// [`crate::device::TxFrame::request_checksum`]; the TCP header of a data frame takes the
    /// rest of [`Tcb::header_len`].
    #[must_use]
    pub fn layer_lens(&self) -> (usize, usize) {
        self.template.layer_lens()
    }

    /// True while records are written and not acknowledged, sent or not.
    #[must_use]
    pub fn unsent_or_unacked(&self) -> bool {
        !self.board.is_empty()
    }

    /// True if everything written is acknowledged, and the FIN too if there is one.
    #[must_use]
    pub fn all_acked(&self) -> bool {
        self.board.is_empty() && matches!(self.snd.fin, Fin::None | Fin::Acked)
    }

    /// Pieces accepted out of order that wait for their turn.
    #[inline]
    #[must_use]
    pub fn held_pieces(&self) -> usize {
        self.reassembly.len()
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

    /// Sequence number that the next new octet will have.
    #[must_use]
    pub fn written_nxt(&self) -> Seq {
        self.board.end().unwrap_or(self.snd.nxt)
    }

    /// Smoothed round-trip time in nanoseconds, 0 before the first measurement.
    #[must_use]
    pub fn srtt_ns(&self) -> u64 {
        self.rtt.srtt()
    }

    /// Congestion window in octets.
    #[must_use]
    pub fn cwnd(&self) -> u32 {
        self.cc.window()
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
    }
}
