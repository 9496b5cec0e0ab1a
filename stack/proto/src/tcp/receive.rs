//! The receive side's variables: sequence space, window offer, and when an ACK is due.

use arrayvec::ArrayVec;

use super::config::Config;
use super::timer::{NEVER, Timers};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::SackBlock;

/// Most duplicate ACKs owed at a time to a peer without SACK.
const DUP_ACKS_OWED_MAX: u8 = 16;
/// Most reports of bytes received twice that wait for their ACKs.
const DSACK_QUEUE_MAX: usize = 4;

/// Receive variables (RFC 9293 section 3.3.1), what is needed to offer the window, and when an ACK
/// is due: what every segment touches. What else there is to say of the window is in [`RcvLimits`].
#[derive(Debug)]
pub(super) struct RcvVars {
    /// Next byte expected.
    pub(super) nxt: Seq,
    /// Right edge of the window as offered; never moves left.
    pub(super) adv: Seq,
    /// Acknowledgment number of the last segment sent (RFC 7323 `Last.ACK.sent`).
    pub(super) last_ack_sent: Seq,
    /// What the window would be if offered in full; below zero if the upper layer keeps more than
    /// it may span.
    available: i32,
    /// Bytes received in order and not acknowledged.
    unacked: u32,
    /// Growth from which the right edge moves (RFC 9293 section 3.8.6.2.2); at least 1.
    update_min: u16,
    /// Largest payload seen: what a full segment of the peer is.
    rcv_mss: u16,
    /// Shift of the window field in segments sent.
    pub(super) wscale: u8,
    /// An ACK is due with the next frame of any kind.
    pub(super) ack_now: bool,
    /// It is due in a frame without payload: it reports SACK blocks, or counts as a duplicate.
    pub(super) pure_ack: bool,
    /// Duplicate ACKs owed to a peer without SACK.
    pub(super) dup_acks_owed: u8,
}

impl RcvVars {
    /// Before anything was received.
    pub(super) fn new(cfg: &Config) -> Self {
        Self {
            nxt: Seq(0),
            adv: Seq(0),
            last_ack_sent: Seq(0),
            available: 0,
            unacked: 0,
            update_min: 1,
            rcv_mss: 0,
            wscale: cfg.wscale(),
            ack_now: false,
            pure_ack: false,
            dup_acks_owed: 0,
        }
    }

    /// Bytes the peer may send from `nxt` on.
    #[inline]
    pub(super) fn window(&self) -> u32 {
        self.adv - self.nxt
    }

    /// Where the right edge would be if the window was offered in full, less where it is.
    #[inline]
    fn adv_growth(&self) -> i32 {
        (self.nxt + self.available.max(0).cast_unsigned()).distance(self.adv)
    }

    /// The window field of a segment about to leave, moving the edge; notes what it acknowledges.
    ///
    /// The edge moves by a segment or half the window at least. The field is rounded up, so that
    /// scaling does not take back what was offered, unless rounding has already given away as
    /// much as it ever may: a peer that sends single bytes could push the edge on forever.
    #[inline]
    pub(super) fn select_window(&mut self) -> u16 {
        let span = if self.adv_growth() >= i32::from(self.update_min) {
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
        self.adv = self.adv.max(self.nxt + (field << self.wscale));
        self.last_ack_sent = self.nxt;
        field as u16
    }

    /// A segment arrived out of order, or twice.
    pub(super) fn on_out_of_order(&mut self) {
        self.ack_now = true;
        self.pure_ack = true;
        self.dup_acks_owed = (self.dup_acks_owed + 1).min(DUP_ACKS_OWED_MAX);
    }

    /// The cumulative acknowledgment moved: earlier duplicates are no duplicates any more.
    #[inline]
    pub(super) fn on_advance(&mut self) {
        self.dup_acks_owed = self.dup_acks_owed.min(1);
    }

    /// An ACK left with a segment that carries payload.
    #[inline]
    pub(super) const fn on_data_sent(&mut self, timers: &mut Timers) {
        self.unacked = 0;
        timers.delayed_ack = NEVER;
        self.ack_now = self.pure_ack;
    }

    /// A pure ACK left. To a peer without SACK the owed duplicates follow one by one; with SACK
    /// another one follows if there is `more` to report.
    pub(super) fn on_pure_ack_sent(&mut self, timers: &mut Timers, sack: bool, more: bool) {
        self.unacked = 0;
        timers.delayed_ack = NEVER;
        self.dup_acks_owed = if sack { 0 } else { self.dup_acks_owed.saturating_sub(1) };
        self.pure_ack = self.dup_acks_owed > 0 || more;
        self.ack_now = self.pure_ack;
    }

    /// `bytes` arrived in order: an ACK is due at two full segments, else within `delay_ns`.
    #[inline]
    pub(super) fn on_in_order(
        &mut self,
        now: Instant,
        timers: &mut Timers,
        bytes: u32,
        delay_ns: u64,
    ) {
        self.rcv_mss = self.rcv_mss.max(u16::try_from(bytes).unwrap_or(u16::MAX));
        self.unacked += bytes;
        if self.unacked >= 2 * u32::from(self.rcv_mss) {
            self.ack_now = true;
        } else if timers.delayed_ack == NEVER {
            timers.delayed_ack = now + delay_ns;
        }
    }

    /// The last `len` bytes in order were not taken after all.
    pub(super) fn decline(&mut self, len: u32) {
        self.nxt = self.nxt - len;
        self.unacked = self.unacked.saturating_sub(len);
    }

    /// Nothing is due any more.
    pub(super) const fn clear_acks(&mut self) {
        (self.ack_now, self.pure_ack, self.dup_acks_owed) = (false, false, 0);
    }
}

/// What the receive window may span. Touched when that changes, or the upper layer keeps bytes.
#[derive(Debug)]
pub(super) struct RcvLimits {
    /// Bytes the window may span.
    limit: u32,
    /// What `max_plpmtu` may grow to: what the window field can say, and what the configuration
    /// allows.
    limit_max: u32,
    /// Bytes the upper layer took and has not consumed.
    unconsumed: u32,
}

impl RcvLimits {
    /// Before anything was received.
    pub(super) fn new(cfg: &Config) -> Self {
        Self {
            limit: cfg.startup_window,
            limit_max: cfg.recv_window_max.max(cfg.recv_window).max(cfg.startup_window),
            unconsumed: 0,
        }
    }

    /// The peer's SYN came with sequence number `irs`; the window goes out unscaled first.
    pub(super) fn init(&self, rcv: &mut RcvVars, irs: Seq, cfg: &Config) {
        rcv.nxt = irs + 1;
        rcv.last_ack_sent = rcv.nxt;
        rcv.adv = rcv.nxt + self.limit.min(0xffff);
        self.apply(rcv, cfg);
    }

    /// The peer does not scale windows (RFC 7323 section 2.2).
    pub(super) fn disable_scaling(&mut self, rcv: &mut RcvVars, cfg: &Config) {
        rcv.wscale = 0;
        self.limit_max = self.limit_max.min(0xffff);
        self.limit = self.limit.min(0xffff);
        self.apply(rcv, cfg);
    }

    /// Works out what follows for the window.
    fn apply(&self, rcv: &mut RcvVars, cfg: &Config) {
        let available = i64::from(self.limit) - i64::from(self.unconsumed);
        let bounds = (i64::from(i32::MIN), i64::from(i32::MAX));
        rcv.available = i32::try_from(available.clamp(bounds.0, bounds.1)).unwrap_or(0);
        rcv.update_min = u16::try_from(self.limit / 2).unwrap_or(u16::MAX).min(cfg.mss).max(1);
    }

    /// The window field of a SYN, which is never scaled.
    pub(super) fn syn_window(&self) -> u16 {
        u16::try_from(self.limit).unwrap_or(u16::MAX)
    }

    /// The upper layer keeps `bytes`.
    pub(super) fn add_unconsumed(&mut self, rcv: &mut RcvVars, bytes: u32, cfg: &Config) {
        self.unconsumed = self.unconsumed.saturating_add(bytes);
        self.apply(rcv, cfg);
    }

    /// The upper layer consumed `bytes` it kept. True if the peer should hear of it now: little
    /// of the window was left, and it grew by something.
    pub(super) fn consume(&mut self, rcv: &mut RcvVars, bytes: u32, cfg: &Config) -> bool {
        self.unconsumed = self.unconsumed.saturating_sub(bytes);
        self.needs_update(rcv, cfg)
    }

    /// Raises the window's limit to `max_plpmtu`, as far as it may grow. True if the peer should
    /// hear of it now.
    pub(super) fn raise(&mut self, rcv: &mut RcvVars, limit: u32, cfg: &Config) -> bool {
        self.limit = self.limit.max(limit.min(self.limit_max));
        self.needs_update(rcv, cfg)
    }

    /// Lowers the window's limit to `max_plpmtu`; the edge stays where it is.
    pub(super) fn lower(&mut self, rcv: &mut RcvVars, limit: u32, cfg: &Config) {
        self.limit = self.limit.min(limit);
        self.apply(rcv, cfg);
    }

    /// Bytes the window may span at present.
    pub(super) const fn limit(&self) -> u32 {
        self.limit
    }

    /// What the limit may grow to.
    pub(super) const fn limit_max(&self) -> u32 {
        self.limit_max
    }

    fn needs_update(&self, rcv: &mut RcvVars, cfg: &Config) -> bool {
        self.apply(rcv, cfg);
        let half = self.limit / 2;
        let worth_while = half.min(2 * u32::from(cfg.mss)).cast_signed().max(1);
        rcv.window() < half && rcv.adv_growth() >= worth_while
    }
}

/// The peer's SYNs and FIN.
#[derive(Debug)]
pub(super) struct Peer {
    /// Initial receive sequence number.
    pub(super) irs: Seq,
    /// Where the FIN is, once seen.
    pub(super) fin_seq: Option<Seq>,
    /// The FIN was taken: `nxt` lies beyond it.
    pub(super) fin_received: bool,
    /// In TIME-WAIT it has sent a SYN that this connection did not give way to.
    pub(super) syn_in_time_wait: bool,
}

/// Bytes received twice (RFC 2883): each ACK reports one, the oldest first. In memory of their
/// own, which is given back once the connection is idle.
#[derive(Debug, Default)]
pub(super) struct DsackQueue {
    blocks: Option<Box<ArrayVec<SackBlock, DSACK_QUEUE_MAX>>>,
}

impl DsackQueue {
    pub(super) fn push(&mut self, block: SackBlock) {
        // Beyond the bound the sender hears of the first ones only.
        let _ = self.blocks.get_or_insert_default().try_push(block);
    }

    /// True if there is something to report.
    pub(super) fn has_pending(&self) -> bool {
        self.blocks.as_ref().is_some_and(|blocks| !blocks.is_empty())
    }

    /// What the next ACK reports.
    pub(super) fn pop(&mut self) -> Option<SackBlock> {
        self.blocks.as_mut()?.pop_at(0)
    }

    /// Gives the memory back if nothing is in it.
    pub(super) fn release_memory(&mut self) {
        if !self.has_pending() {
            self.blocks = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RcvLimits, RcvVars};
    use crate::tcp::config::Config;
    use crate::tcp::timer::Timers;
    use crate::time::Instant;
    use crate::wire::seq::Seq;

    fn receive(limit: u32) -> (RcvVars, RcvLimits, Config) {
        let cfg = Config {
            recv_window: limit,
            recv_window_max: limit,
            startup_window: limit,
            ..Config::default()
        };
        let (mut rcv, limits) = (RcvVars::new(&cfg), RcvLimits::new(&cfg));
        limits.init(&mut rcv, Seq(0xffff_fff0), &cfg);
        rcv.select_window();
        (rcv, limits, cfg)
    }

    #[test]
    fn unconsumed_data_shrinks_the_window_without_retracting_it() {
        let (mut rcv, mut limits, cfg) = receive(256 * 1024);
        let full = rcv.window();
        assert!(full >= 256 * 1024);
        let edge = rcv.adv;
        rcv.nxt += 100_001;
        limits.add_unconsumed(&mut rcv, 100_001, &cfg);
        let field = rcv.select_window();
        assert!(rcv.adv >= edge && rcv.adv <= edge + 8);
        assert!(u32::from(field) << rcv.wscale >= full - 100_001);
        assert!(!limits.consume(&mut rcv, 1, &cfg), "an octet is no news");
        rcv.nxt += 100_000;
        limits.add_unconsumed(&mut rcv, 100_000, &cfg);
        rcv.select_window();
        assert!(limits.consume(&mut rcv, 200_000, &cfg));
        rcv.select_window();
        assert!(rcv.window() >= 256 * 1024);
    }

    #[test]
    fn window_rounding_never_exceeds_the_limit() {
        let (mut rcv, mut limits, cfg) = receive(256 * 1024);
        for _ in 0..300_000 {
            if rcv.window() == 0 {
                break;
            }
            rcv.nxt += 1;
            limits.add_unconsumed(&mut rcv, 1, &cfg);
            rcv.select_window();
            assert!(rcv.window() + limits.unconsumed <= 256 * 1024 + 8);
        }
        assert_eq!(rcv.window(), 0);
    }

    #[test]
    fn lowered_limit_does_not_retract_the_window() {
        let cfg = Config { startup_window: 64 * 1024, recv_window: 64 * 1024, ..Config::default() };
        let (mut rcv, mut limits) = (RcvVars::new(&cfg), RcvLimits::new(&cfg));
        limits.init(&mut rcv, Seq(0xffff_fff0), &cfg);
        limits.raise(&mut rcv, 1 << 20, &cfg);
        rcv.select_window();
        let (edge, unit) = (rcv.adv, 1 << rcv.wscale);
        limits.lower(&mut rcv, 64 * 1024, &cfg);
        while rcv.nxt + 1001 + 64 * 1024 <= edge {
            rcv.nxt += 1001;
            let field = u32::from(rcv.select_window()) << rcv.wscale;
            assert!((edge..edge + unit).contains(&rcv.adv));
            assert!(rcv.nxt + field + unit > edge, "no more than rounding");
        }
        rcv.nxt += 3000;
        rcv.select_window();
        assert!(rcv.adv > edge && rcv.window() >= 64 * 1024 && rcv.window() < 64 * 1024 + unit);
    }

    #[test]
    fn window_update_waits_for_an_mss() {
        let (mut rcv, _, _) = receive(64 * 1024);
        let edge = rcv.adv;
        rcv.nxt += 1000;
        rcv.select_window();
        assert_eq!(rcv.adv, edge);
        rcv.nxt += 1000;
        rcv.select_window();
        assert!(rcv.adv >= edge + 1998);
    }

    #[test]
    fn ack_after_two_full_segments_or_delayed_ack_timer() {
        let cfg = Config::default();
        let (mut rcv, _, _) = receive(64 * 1024);
        let mut timers = Timers::OFF;
        rcv.on_in_order(Instant::ZERO, &mut timers, 1000, cfg.delayed_ack_ns);
        assert!(!rcv.ack_now);
        assert_eq!(timers.delayed_ack, Instant::ZERO + cfg.delayed_ack_ns);
        rcv.on_in_order(Instant::ZERO, &mut timers, 1000, cfg.delayed_ack_ns);
        assert!(rcv.ack_now);
        rcv.on_data_sent(&mut timers);
        assert!(!rcv.ack_now);
    }

    #[test]
    fn dup_acks_are_sent_one_by_one_without_sack() {
        let (mut rcv, _, _) = receive(64 * 1024);
        let mut timers = Timers::OFF;
        for _ in 0..100 {
            rcv.on_out_of_order();
        }
        for _ in 0..15 {
            rcv.on_pure_ack_sent(&mut timers, false, false);
            assert!(rcv.ack_now && rcv.pure_ack);
        }
        rcv.on_pure_ack_sent(&mut timers, false, false);
        assert!(!rcv.ack_now);
        rcv.on_out_of_order();
        rcv.on_out_of_order();
        rcv.on_advance();
        rcv.on_pure_ack_sent(&mut timers, false, false);
        assert!(!rcv.ack_now, "a new cumulative ACK makes them no duplicates");
    }
}
