//! The receive side's variables: sequence space, window offer, and when an ACK is due.

use arrayvec::ArrayVec;

use super::config::Config;
use super::timer::{NEVER, Timers};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::Block;

/// Most duplicate ACKs owed at a time to a peer without SACK.
const DUPLICATES_MAX: u8 = 16;
/// Most reports of octets received twice that wait for their ACKs.
const REPORTS_MAX: usize = 4;

/// Receive variables (RFC 9293 section 3.3.1), what is needed to offer the window, and when an ACK
/// is due: what every segment touches. What else there is to say of the window is in [`Limits`].
#[derive(Debug)]
pub(super) struct Receive {
    /// Next octet expected.
    pub(super) nxt: Seq,
    /// Right edge of the window as offered; never moves left.
    pub(super) edge: Seq,
    /// Acknowledgment number of the last segment sent (RFC 7323 `Last.ACK.sent`).
    pub(super) last_ack: Seq,
    /// What the window would be if offered in full; below zero if the upper layer keeps more than
    /// it may span.
    available: i32,
    /// Octets received in order and not acknowledged.
    unacked: u32,
    /// Growth from which the right edge moves (RFC 9293 section 3.8.6.2.2); at least 1.
    step: u16,
    /// Largest payload seen: what a full segment of the peer is.
    full: u16,
    /// Shift of the window field in segments sent.
    pub(super) wscale: u8,
    /// An ACK is due with the next frame of any kind.
    pub(super) due: bool,
    /// It is due in a frame without payload: it reports SACK blocks, or counts as a duplicate.
    pub(super) pure: bool,
    /// Duplicate ACKs owed to a peer without SACK.
    pub(super) duplicates: u8,
}

impl Receive {
    /// Before anything was received.
    pub(super) fn new(cfg: &Config) -> Self {
        Self {
            nxt: Seq(0),
            edge: Seq(0),
            last_ack: Seq(0),
            available: 0,
            unacked: 0,
            step: 1,
            full: 0,
            wscale: cfg.wscale(),
            due: false,
            pure: false,
            duplicates: 0,
        }
    }

    /// Octets the peer may send from `nxt` on.
    #[inline]
    pub(super) fn window(&self) -> u32 {
        self.edge - self.nxt
    }

    /// Where the right edge would be if the window was offered in full, less where it is.
    #[inline]
    fn growth(&self) -> i32 {
        (self.nxt + self.available.max(0).cast_unsigned()).distance(self.edge)
    }

    /// The window field of a segment about to leave, moving the edge; notes what it acknowledges.
    ///
    /// The edge moves by a segment or half the window at least. The field is rounded up, so that
    /// scaling does not take back what was offered, unless rounding has already given away as
    /// much as it ever may: a peer that sends single octets could push the edge on forever.
    #[inline]
    pub(super) fn offer(&mut self) -> u16 {
        let span = if self.growth() >= i32::from(self.step) {
            self.available.max(0).cast_unsigned()
        } else {
            self.window()
        };
        let unit = 1u32 << self.wscale;
        let mut field = span >> self.wscale;
        let rounded = i64::from(field + 1) << self.wscale;
        if field << self.wscale < span && rounded <= i64::from(self.available) + i64::from(unit) {
            field += 1;
        }
        let field = field.min(0xffff);
        self.edge = self.edge.max(self.nxt + (field << self.wscale));
        self.last_ack = self.nxt;
        field as u16
    }

    /// A segment arrived out of order, or twice.
    pub(super) fn out_of_order(&mut self) {
        self.due = true;
        self.pure = true;
        self.duplicates = (self.duplicates + 1).min(DUPLICATES_MAX);
    }

    /// The cumulative acknowledgment moved: earlier duplicates are no duplicates any more.
    #[inline]
    pub(super) fn moved(&mut self) {
        self.duplicates = self.duplicates.min(1);
    }

    /// An ACK left with a segment that carries payload.
    #[inline]
    pub(super) const fn carried(&mut self, timers: &mut Timers) {
        self.unacked = 0;
        timers.delayed = NEVER;
        self.due = self.pure;
    }

    /// A pure ACK left. To a peer without SACK the owed duplicates follow one by one; with SACK
    /// another one follows if there is `more` to report.
    pub(super) fn sent_pure(&mut self, timers: &mut Timers, sack: bool, more: bool) {
        self.unacked = 0;
        timers.delayed = NEVER;
        self.duplicates = if sack { 0 } else { self.duplicates.saturating_sub(1) };
        self.pure = self.duplicates > 0 || more;
        self.due = self.pure;
    }

    /// `octets` arrived in order: an ACK is due at two full segments, else within `delay_ns`.
    #[inline]
    pub(super) fn in_order(
        &mut self,
        now: Instant,
        timers: &mut Timers,
        octets: u32,
        delay_ns: u64,
    ) {
        self.full = self.full.max(u16::try_from(octets).unwrap_or(u16::MAX));
        self.unacked += octets;
        if self.unacked >= 2 * u32::from(self.full) {
            self.due = true;
        } else if timers.delayed == NEVER {
            timers.delayed = now + delay_ns;
        }
    }

    /// The last `len` octets in order were not taken after all.
    pub(super) fn decline(&mut self, len: u32) {
        self.nxt = self.nxt - len;
        self.unacked = self.unacked.saturating_sub(len);
    }

    /// Nothing is due any more.
    pub(super) const fn forget_acks(&mut self) {
        (self.due, self.pure, self.duplicates) = (false, false, 0);
    }
}

/// What the receive window may span. Touched when that changes, or the upper layer keeps octets.
#[derive(Debug)]
pub(super) struct Limits {
    /// Octets the window may span.
    limit: u32,
    /// What `limit` may grow to: what the window field can say, and what the configuration allows.
    limit_max: u32,
    /// Octets the upper layer took and has not consumed.
    held_up: u32,
}

impl Limits {
    /// Before anything was received.
    pub(super) fn new(cfg: &Config) -> Self {
        Self {
            limit: cfg.startup_window,
            limit_max: cfg.recv_window_max.max(cfg.recv_window).max(cfg.startup_window),
            held_up: 0,
        }
    }

    /// The peer's SYN came with sequence number `irs`; the window goes out unscaled first.
    pub(super) fn synchronise(&self, rcv: &mut Receive, irs: Seq, cfg: &Config) {
        rcv.nxt = irs + 1;
        rcv.last_ack = rcv.nxt;
        rcv.edge = rcv.nxt + self.limit.min(0xffff);
        self.settle(rcv, cfg);
    }

    /// The peer does not scale windows (RFC 7323 section 2.2).
    pub(super) fn forgo_scaling(&mut self, rcv: &mut Receive, cfg: &Config) {
        rcv.wscale = 0;
        self.limit_max = self.limit_max.min(0xffff);
        self.limit = self.limit.min(0xffff);
        self.settle(rcv, cfg);
    }

    /// Works out what follows for the window.
    fn settle(&self, rcv: &mut Receive, cfg: &Config) {
        let available = i64::from(self.limit) - i64::from(self.held_up);
        let bounds = (i64::from(i32::MIN), i64::from(i32::MAX));
        rcv.available = i32::try_from(available.clamp(bounds.0, bounds.1)).unwrap_or(0);
        rcv.step = u16::try_from(self.limit / 2).unwrap_or(u16::MAX).min(cfg.mss).max(1);
    }

    /// The window field of a SYN, which is never scaled.
    pub(super) fn syn_window(&self) -> u16 {
        u16::try_from(self.limit).unwrap_or(u16::MAX)
    }

    /// The upper layer keeps `octets`.
    pub(super) fn hold(&mut self, rcv: &mut Receive, octets: u32, cfg: &Config) {
        self.held_up = self.held_up.saturating_add(octets);
        self.settle(rcv, cfg);
    }

    /// The upper layer consumed `octets` it kept. True if the peer should hear of it now: little
    /// of the window was left, and it grew by something.
    pub(super) fn release(&mut self, rcv: &mut Receive, octets: u32, cfg: &Config) -> bool {
        self.held_up = self.held_up.saturating_sub(octets);
        self.reopens(rcv, cfg)
    }

    /// Raises the window's limit to `limit`, as far as it may grow. True if the peer should hear
    /// of it now.
    pub(super) fn open(&mut self, rcv: &mut Receive, limit: u32, cfg: &Config) -> bool {
        self.limit = self.limit.max(limit.min(self.limit_max));
        self.reopens(rcv, cfg)
    }

    /// Lowers the window's limit to `limit`; the edge stays where it is.
    pub(super) fn narrow(&mut self, rcv: &mut Receive, limit: u32, cfg: &Config) {
        self.limit = self.limit.min(limit);
        self.settle(rcv, cfg);
    }

    /// Octets the window may span at present.
    pub(super) const fn limit(&self) -> u32 {
        self.limit
    }

    /// What the limit may grow to.
    pub(super) const fn limit_max(&self) -> u32 {
        self.limit_max
    }

    fn reopens(&self, rcv: &mut Receive, cfg: &Config) -> bool {
        self.settle(rcv, cfg);
        let half = self.limit / 2;
        let worth_while = half.min(2 * u32::from(cfg.mss)).cast_signed().max(1);
        rcv.window() < half && rcv.growth() >= worth_while
    }
}

/// The peer's SYNs and FIN.
#[derive(Debug)]
pub(super) struct Peer {
    /// Initial receive sequence number.
    pub(super) irs: Seq,
    /// Where the FIN is, once seen.
    pub(super) fin: Option<Seq>,
    /// The FIN was taken: `nxt` lies beyond it.
    pub(super) finished: bool,
    /// In TIME-WAIT it has sent a SYN that this connection did not give way to.
    pub(super) calls_anew: bool,
}

/// Octets received twice (RFC 2883): each ACK reports one, the oldest first. In memory of their
/// own, which is given back once the connection is idle.
#[derive(Debug, Default)]
pub(super) struct Reports {
    blocks: Option<Box<ArrayVec<Block, REPORTS_MAX>>>,
}

impl Reports {
    pub(super) fn add(&mut self, block: Block) {
        // Beyond the bound the sender hears of the first ones only.
        let _ = self.blocks.get_or_insert_default().try_push(block);
    }

    /// True if there is something to report.
    pub(super) fn any(&self) -> bool {
        self.blocks.as_ref().is_some_and(|blocks| !blocks.is_empty())
    }

    /// What the next ACK reports.
    pub(super) fn take(&mut self) -> Option<Block> {
        self.blocks.as_mut()?.pop_at(0)
    }

    /// Gives the memory back if nothing is in it.
    pub(super) fn release_memory(&mut self) {
        if !self.any() {
            self.blocks = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Limits, Receive};
    use crate::tcp::config::Config;
    use crate::tcp::timer::Timers;
    use crate::time::Instant;
    use crate::wire::seq::Seq;

    fn receive(limit: u32) -> (Receive, Limits, Config) {
        let cfg = Config {
            recv_window: limit,
            recv_window_max: limit,
            startup_window: limit,
            ..Config::default()
        };
        let (mut rcv, limits) = (Receive::new(&cfg), Limits::new(&cfg));
        limits.synchronise(&mut rcv, Seq(0xffff_fff0), &cfg);
        rcv.offer();
        (rcv, limits, cfg)
    }

    #[test]
    fn holding_shrinks_the_offer_and_never_takes_it_back() {
        let (mut rcv, mut limits, cfg) = receive(256 * 1024);
        let full = rcv.window();
        assert!(full >= 256 * 1024);
        let edge = rcv.edge;
        rcv.nxt += 100_001;
        limits.hold(&mut rcv, 100_001, &cfg);
        let field = rcv.offer();
        assert!(rcv.edge >= edge && rcv.edge <= edge + 8);
        assert!(u32::from(field) << rcv.wscale >= full - 100_001);
        assert!(!limits.release(&mut rcv, 1, &cfg), "an octet is no news");
        rcv.nxt += 100_000;
        limits.hold(&mut rcv, 100_000, &cfg);
        rcv.offer();
        assert!(limits.release(&mut rcv, 200_000, &cfg));
        rcv.offer();
        assert!(rcv.window() >= 256 * 1024);
    }

    #[test]
    fn rounding_cannot_push_the_edge_on_forever() {
        let (mut rcv, mut limits, cfg) = receive(256 * 1024);
        for _ in 0..300_000 {
            if rcv.window() == 0 {
                break;
            }
            rcv.nxt += 1;
            limits.hold(&mut rcv, 1, &cfg);
            rcv.offer();
            assert!(rcv.window() + limits.held_up <= 256 * 1024 + 8);
        }
        assert_eq!(rcv.window(), 0);
    }

    #[test]
    fn a_narrowed_window_takes_nothing_back() {
        let cfg = Config { startup_window: 64 * 1024, recv_window: 64 * 1024, ..Config::default() };
        let (mut rcv, mut limits) = (Receive::new(&cfg), Limits::new(&cfg));
        limits.synchronise(&mut rcv, Seq(0xffff_fff0), &cfg);
        limits.open(&mut rcv, 1 << 20, &cfg);
        rcv.offer();
        let (edge, unit) = (rcv.edge, 1 << rcv.wscale);
        limits.narrow(&mut rcv, 64 * 1024, &cfg);
        while rcv.nxt + 1001 + 64 * 1024 <= edge {
            rcv.nxt += 1001;
            let field = u32::from(rcv.offer()) << rcv.wscale;
            assert!((edge..edge + unit).contains(&rcv.edge));
            assert!(rcv.nxt + field + unit > edge, "no more than rounding");
        }
        rcv.nxt += 3000;
        rcv.offer();
        assert!(rcv.edge > edge && rcv.window() >= 64 * 1024 && rcv.window() < 64 * 1024 + unit);
    }

    #[test]
    fn the_edge_moves_in_steps() {
        let (mut rcv, _, _) = receive(64 * 1024);
        let edge = rcv.edge;
        rcv.nxt += 1000;
        rcv.offer();
        assert_eq!(rcv.edge, edge);
        rcv.nxt += 1000;
        rcv.offer();
        assert!(rcv.edge >= edge + 1998);
    }

    #[test]
    fn two_full_segments_or_the_timer() {
        let cfg = Config::default();
        let (mut rcv, _, _) = receive(64 * 1024);
        let mut timers = Timers::OFF;
        rcv.in_order(Instant::ZERO, &mut timers, 1000, cfg.delayed_ack_ns);
        assert!(!rcv.due);
        assert_eq!(timers.delayed, Instant::ZERO + cfg.delayed_ack_ns);
        rcv.in_order(Instant::ZERO, &mut timers, 1000, cfg.delayed_ack_ns);
        assert!(rcv.due);
        rcv.carried(&mut timers);
        assert!(!rcv.due);
    }

    #[test]
    fn duplicates_are_owed_one_by_one_without_sack() {
        let (mut rcv, _, _) = receive(64 * 1024);
        let mut timers = Timers::OFF;
        for _ in 0..100 {
            rcv.out_of_order();
        }
        for _ in 0..15 {
            rcv.sent_pure(&mut timers, false, false);
            assert!(rcv.due && rcv.pure);
        }
        rcv.sent_pure(&mut timers, false, false);
        assert!(!rcv.due);
        rcv.out_of_order();
        rcv.out_of_order();
        rcv.moved();
        rcv.sent_pure(&mut timers, false, false);
        assert!(!rcv.due, "a new cumulative ACK makes them no duplicates");
    }
}
