//! Connection setup: active open, passive open, passive open from a SYN cookie, and reuse of a
//! four-tuple in TIME-WAIT (RFC 6191).

use std::sync::Arc;

use super::Tcb;
use super::challenge::AckRateLimit;
use super::congestion::Congestion;
use super::connection_state::State;
use super::control_block::SegmentCounts;
use super::ecn::EcnState;
use super::header_prediction::FastPath;
use super::lazy::Lazy;
use super::pmtu::PathMtu;
use super::rare_counts::RareCounts;
use super::recovery::ca_state::{Recovery, RoundFlight};
use super::recovery::rack::Rack;
use super::recovery::tlp::Tlp;
use super::rtt::{Rtt, RttCache};
use super::rx::autotune::{RcvRound, RoundEnd};
use super::rx::window::{DsackQueue, Peer, RcvLimits, RcvVars};
use super::settings::Config;
use super::timer::{RareTimers, Timers};
use super::timestamps::{CoarseInstant, Timestamps};
use super::tx::pacing::PacingCredit;
use super::tx::send::{Local, Pending, SndVars};
use super::upper_layer::IssAndTsOffset;
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, NEVER};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Flags, FourTuple, HeaderTemplate, Segment};

/// Lower bound of the segment size. With a smaller MSS a peer could make us send little but
/// headers.
const MIN_MSS: u16 = 64;

/// Segment size for a peer without MSS option (RFC 9293 section 3.7.1): the packet that every host
/// accepts, less 40 bytes of headers over IPv4, 60 over IPv6.
pub(crate) const fn default_mss(tuple: &FourTuple) -> u16 {
    if tuple.remote.is_ipv6() { 1280 - 60 } else { 576 - 40 }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Creates a connection by active open: a SYN is due (RFC 9293 section 3.10.1).
    #[must_use]
    pub fn connect(
        now: Instant,
        cfg: &Arc<Config>,
        template: HeaderTemplate,
        iss_ts: IssAndTsOffset,
    ) -> Self {
        let mut tcb = Self::new(now, cfg, template, iss_ts, State::SynSent);
        tcb.update_fast_path();
        tcb
    }

    /// Creates a connection by passive open from `syn`, received by a listener: a SYN-ACK is due
    /// (RFC 9293 section 3.10.7.2). Payload in the SYN is ignored; the peer retransmits it.
    #[must_use]
    pub fn accept(
        now: Instant,
        cfg: &Arc<Config>,
        template: HeaderTemplate,
        syn: &Segment,
        iss_ts: IssAndTsOffset,
    ) -> Self {
        let mut tcb = Self::new(now, cfg, template, iss_ts, State::SynReceived);
        tcb.passive = true;
        tcb.negotiate(now, syn);
        tcb.update_fast_path();
        tcb
    }

    /// Creates a connection from a SYN cookie, without other state. `syn`: the SYN as recovered
    /// from the cookie; `iss_ts`: ISS and timestamp offset of the SYN-ACK; `sent_at`: the time it
    /// was sent, if known. The segment that returned the cookie is to be processed next.
    #[must_use]
    pub fn from_cookie(
        now: Instant,
        cfg: &Arc<Config>,
        template: HeaderTemplate,
        syn: &Segment,
        iss_ts: IssAndTsOffset,
        sent_at: Option<Instant>,
    ) -> Self {
        let mut tcb = Self::accept(now, cfg, template, syn, iss_ts);
        tcb.pending.syn = false;
        tcb.snd.nxt = tcb.local.iss + 1;
        match sent_at {
            Some(sent_at) => tcb.rcv_round.start(sent_at, Seq(0)),
            // The RTT of the handshake is unknown: as if the SYN-ACK had been retransmitted once.
            None => tcb.retries = 1,
        }
        tcb.update_fast_path();
        tcb
    }

    /// Gives the connection other settings: `cfg` differs in keepalive and user timeout alone.
    pub fn set_config(&mut self, cfg: Arc<Config>) {
        self.cfg = cfg;
        if self.state.is_synchronized() {
            let idle = self.cfg.keepalive_ns;
            self.rare.keepalive = idle.map_or(NEVER, |idle| self.last_rx_at + idle);
        }
        self.update_fast_path();
    }

    fn new(
        now: Instant,
        cfg: &Arc<Config>,
        template: HeaderTemplate,
        iss_ts: IssAndTsOffset,
        state: State,
    ) -> Self {
        let IssAndTsOffset { iss, ts_offset } = iss_ts;
        let mss = cfg.mss.min(cfg.send_mss).max(MIN_MSS);
        Self {
            scoreboard: Lazy::new(),
            cfg: Arc::clone(cfg),
            timers: Timers::OFF,
            last_rx_at: now,
            rcv: RcvVars::new(cfg),
            snd: SndVars::new(iss, mss),
            ts: Timestamps { offset: ts_offset, recent: 0, recent_stamp: Timestamps::coarse(now) },
            rtt_cache: RttCache::UNKNOWN,
            segment_counts: SegmentCounts::default(),
            slow_path_in: 0,
            rcv_round_end: RoundEnd(0),
            progress_at: CoarseInstant::of(now),
            last_tx_at: CoarseInstant::of(now),
            pacing_credit: PacingCredit::NONE,
            emss: mss,
            ts_on: cfg.timestamps,
            fast_path: FastPath::default(),
            cc: Congestion::new(cfg.congestion, u32::from(mss)),
            template,
            events: 0,
            state,
            sack: cfg.sack,
            scaling: true,
            sws_override: false,
            persist_backoff: 0,
            unanswered: 0,
            retries: 0,
            rearmed: false,
            passive: false,
            paced: false,
            close_pending: false,
            receive_shut: false,
            peer_group: 0,
            local: Local { iss, fin_seq: None },
            peer: Peer { irs: Seq(0), fin_seq: None, fin_received: false, syn_in_time_wait: false },
            rcv_limits: RcvLimits::new(cfg),
            pending: Pending { syn: true, ..Pending::default() },
            tlp: Tlp::new(),
            round_flight: RoundFlight::new(iss),
            last_retransmit_at: CoarseInstant::of(now),
            rare: RareTimers::OFF,
            recovery: Recovery::new(iss),
            rack: Rack::new(),
            rtt: Rtt::new(cfg),
            assembler: Lazy::new(),
            dsack_queue: DsackQueue::default(),
            rcv_round: RcvRound::new(),
            pmtu: PathMtu::new(&cfg.path_mtu, mss, false),
            ecn: EcnState::new(cfg),
            ack_rate_limit: AckRateLimit::new(now),
            ts_advanced_at: now,
            window_wanted: 0,
            counted: (0, 0),
            stats: RareCounts::default(),
        }
    }

    /// Applies the options, ECN flags and window of the peer's SYN or SYN-ACK.
    #[doc(alias = "window scale")]
    pub(super) fn negotiate(&mut self, now: Instant, syn: &Segment) {
        self.rcv_limits.init(&mut self.rcv, syn.seq, &self.cfg);
        self.peer.irs = syn.seq;
        // RFC 9293 section 3.7.1: the lesser MSS.
        let peer_mss = syn.options.mss.unwrap_or(default_mss(&syn.tuple)).max(MIN_MSS);
        self.snd.mss = self.snd.mss.min(peer_mss);
        // RFC 2018 section 2: SACK if both permit it.
        self.sack &= syn.options.sack_permitted;
        // RFC 7323 section 2.2: both scale their windows, or none.
        match syn.options.wscale {
            Some(shift) => self.snd.wscale = shift,
            None => {
                self.scaling = false;
                self.rcv_limits.disable_scaling(&mut self.rcv, &self.cfg);
            }
        }
        // RFC 7323 section 3.2: timestamps if both offer them; TSval becomes TS.Recent.
        self.ts_on &= syn.options.ts.is_some();
        if let (true, Some((val, _))) = (self.ts_on, syn.options.ts) {
            self.ts.recent = val;
            self.ts.recent_stamp = Timestamps::coarse(now);
        }
        if !self.sack && !self.ts_on {
            self.rtt.keep_rto_floor();
        }
        // RFC 3168 section 6.1.1: ECN by the flags of the SYN.
        self.ecn.negotiate(self.cfg.ecn, syn.flags);
        self.init_pmtu();
        self.cc = Congestion::new(self.cfg.congestion, u32::from(self.emss));
        // The window of a SYN is never scaled (RFC 7323 section 2.2).
        self.snd.wnd = u32::from(syn.window);
        self.snd.max_wnd = self.snd.wnd;
        self.snd.wl1 = syn.seq;
    }
    /// True if the SYN `seg` may replace this connection by a new one: in TIME-WAIT, if no old
    /// segment can be mistaken for one of the new connection (RFC 6191 section 2); or in
    /// SYN-RECEIVED, which returns to LISTEN for another SYN in the window (RFC 9293 section
    /// 3.10.7.4, fourth check).
    #[inline]
    #[must_use]
    pub fn may_recycle(&self, seg: &Segment) -> bool {
        seg.flags.has(Flags::SYN) && self.may_recycle_slow(seg)
    }

    #[cold]
    fn may_recycle_slow(&self, syn: &Segment) -> bool {
        if syn.flags.any(Flags::ACK | Flags::RST) {
            return false;
        }
        let is_next = syn.seq > self.rcv.nxt;
        match (self.state, syn.options.ts) {
            (State::SynReceived, _) => {
                self.passive && syn.seq != self.peer.irs && self.is_acceptable(syn)
            }
            (State::TimeWait, Some((val, _))) if self.ts_on => {
                let newer = val.wrapping_sub(self.ts.recent).cast_signed();
                newer > 0 || (newer == 0 && is_next)
            }
            // The new connection will have timestamps, by which PAWS rejects old segments.
            (State::TimeWait, Some(_)) if self.cfg.timestamps => true,
            (State::TimeWait, _) => is_next,
            _ => false,
        }
    }

    /// Returns the initial sequence number for the next connection between the same ends: beyond
    /// all that this one has used and that its peer could still accept (RFC 9293 section 3.10.7.4,
    /// MAY-2).
    #[must_use]
    pub fn successor_seq(&self) -> Seq {
        self.snd.nxt + self.snd.max_wnd.max(0xffff)
    }
}
