//! How connections begin: opened, taken up, or brought back by a cookie.

use std::sync::Arc;

use super::calm::Calm;
use super::challenge::Challenges;
use super::congestion::Congestion;
use super::ecn::Ecn;
use super::growth::{Mark, Round};
use super::pacing::Credit;
use super::pmtu::PathMtu;
use super::rack::Rack;
use super::rare_counts::RareCounts;
use super::reassembly::Reassembly;
use super::receive::{Limits, Peer, Receive, Reports};
use super::recovery::{Recovery, RoundFlight, Tail};
use super::rtt::{Rtt, Timing};
use super::scoreboard::Scoreboard;
use super::send::{Own, Send};
use super::state::State;
use super::timer::{Moment, RareTimers, Timers};
use super::{Config, Due, Origin, Plan, Tcb, Timestamps, Traffic};
use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{FourTuple, HeaderTemplate, Segment};

/// Smallest segment size believed: below it a peer would have us send headers only.
const MIN_MSS: u16 = 64;

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
        let mut tcb = Self::new(now, cfg, template, origin, State::SynSent);
        tcb.refresh();
        tcb
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
        tcb.refresh();
        tcb
    }

    /// Takes up a connection of which nothing was kept but what a SYN cookie brought back: `syn` is
    /// the SYN as remembered, `origin` where the SYN-ACK began, `sent_at` when it left, if known.
    /// The segment that brought it is to be handed in next.
    #[must_use]
    pub fn from_cookie(
        now: Instant,
        cfg: &Arc<Config>,
        template: HeaderTemplate,
        syn: &Segment,
        origin: Origin,
        sent_at: Option<Instant>,
    ) -> Self {
        let mut tcb = Self::accept(now, cfg, template, syn, origin);
        tcb.due.syn = false;
        tcb.snd.nxt = tcb.own.iss + 1;
        match sent_at {
            Some(sent_at) => tcb.round.begin(sent_at, Seq(0)),
            // Nothing is known of the path: as if the SYN-ACK had been lost once.
            None => tcb.retries = 1,
        }
        tcb.refresh();
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
        let mss = cfg.mss.min(cfg.send_mss).max(MIN_MSS);
        Self {
            board: Scoreboard::new(),
            cfg: Arc::clone(cfg),
            timers: Timers::OFF,
            heard_at: now,
            rcv: Receive::new(cfg),
            snd: Send::new(iss, mss),
            ts: Timestamps { offset: ts_offset, recent: 0, recent_at: Timestamps::coarse(now) },
            timing: Timing::UNKNOWN,
            traffic: Traffic::default(),
            round_mark: Mark(0),
            progress_at: Moment::of(now),
            sent_at: Moment::of(now),
            credit: Credit::NONE,
            emss: mss,
            ts_on: cfg.timestamps,
            calm: Calm::default(),
            cc: Congestion::new(cfg.congestion, u32::from(mss)),
            template,
            notices: 0,
            state,
            sack: cfg.sack,
            scaling: true,
            override_silly: false,
            persist_backoff: 0,
            unanswered: 0,
            retries: 0,
            rearmed: false,
            passive: false,
            paced: false,
            close_pending: false,
            receive_shut: false,
            own: Own { iss, fin_seq: None },
            peer: Peer { irs: Seq(0), fin: None, finished: false, calls_anew: false },
            limits: Limits::new(cfg),
            due: Due { syn: true, ..Due::default() },
            plan: Plan::Nothing,
            tail: Tail::new(),
            round_flight: RoundFlight::new(iss),
            resent_at: Moment::of(now),
            rare: RareTimers::OFF,
            recovery: Recovery::new(iss),
            rack: Rack::new(),
            rtt: Rtt::new(cfg),
            reassembly: Reassembly::new(),
            reports: Reports::default(),
            round: Round::new(),
            pmtu: PathMtu::new(&cfg.path_mtu, mss, false),
            ecn: Ecn::new(cfg),
            challenges: Challenges::new(now),
            woken_at: now,
            window_wanted: 0,
            counted: (0, 0),
            stats: RareCounts::default(),
        }
    }

    /// Takes over what the peer's SYN or SYN-ACK says.
    pub(super) fn negotiate(&mut self, now: Instant, syn: &Segment) {
        self.limits.synchronise(&mut self.rcv, syn.seq, &self.cfg);
        self.peer.irs = syn.seq;
        let peer_mss = syn.options.mss.unwrap_or(default_mss(&syn.tuple)).max(MIN_MSS);
        self.snd.mss = self.snd.mss.min(peer_mss);
        self.sack &= syn.options.sack_permitted;
        match syn.options.wscale {
            Some(shift) => self.snd.wscale = shift,
            None => {
                self.scaling = false;
                self.limits.forgo_scaling(&mut self.rcv, &self.cfg);
            }
        }
        self.ts_on &= syn.options.ts.is_some();
        if let (true, Some((val, _))) = (self.ts_on, syn.options.ts) {
            self.ts.recent = val;
            self.ts.recent_at = Timestamps::coarse(now);
        }
        if !self.sack && !self.ts_on {
            self.rtt.keep_floor();
        }
        self.ecn.negotiate(self.cfg.ecn, syn.flags);
        self.begin_path();
        self.cc = Congestion::new(self.cfg.congestion, u32::from(self.emss));
        // The window of a SYN is never scaled (RFC 7323 section 2.2).
        self.snd.wnd = u32::from(syn.window);
        self.snd.max_wnd = self.snd.wnd;
        self.snd.wl1 = syn.seq;
    }
}
