//! The receive side's variables: sequence space, window offer, and when an ACK is due.

use arrayvec::ArrayVec;

use super::config::Config;
use super::timer::NEVER;
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::Block;

/// Most duplicate ACKs owed at a time to a peer without SACK.
const DUPLICATES_MAX: u8 = 16;
/// Most reports of octets received twice that wait for their ACKs.
const REPORTS_MAX: usize = 4;

/// Receive variables (RFC 9293 section 3.3.1) and the window offer.
#[derive(Debug)]
pub(super) struct Receive {
    /// Next octet expected.
    pub(super) nxt: Seq,
    /// Right edge of the window as offered; never moves left.
    pub(super) edge: Seq,
    /// Acknowledgment number of the last segment sent (RFC 7323 `Last.ACK.sent`).
    pub(super) last_ack: Seq,
    /// Initial receive sequence number.
    pub(super) irs: Seq,
    /// Shift of the window field in segments sent.
    pub(super) wscale: u8,
    /// Octets the window may span.
    limit: u32,
    /// What `limit` may grow to: what the window field can say, and what the configuration allows.
    limit_max: u32,
    /// Octets the upper layer took and has not consumed.
    held_up: u32,
    /// Growth from which the right edge moves (RFC 9293 section 3.8.6.2.2).
    step: u16,
    /// Largest payload seen: what a full segment of the peer is.
    full: u16,
    /// Where the peer's FIN is, once seen.
    pub(super) fin: Option<Seq>,
    /// The FIN was taken: `nxt` lies beyond it.
    pub(super) finished: bool,
    /// Octets received in order and not acknowledged.
    unacked: u32,
}

impl Receive {
    /// Before anything was received.
    pub(super) fn new(cfg: &Config) -> Self {
        Self {
            nxt: Seq(0),
            edge: Seq(0),
            last_ack: Seq(0),
            irs: Seq(0),
            wscale: cfg.wscale(),
            limit: cfg.startup_window,
            limit_max: cfg.recv_window_max.max(cfg.recv_window).max(cfg.startup_window),
            held_up: 0,
            step: cfg.mss,
            full: 0,
            fin: None,
            finished: false,
            unacked: 0,
        }
    }

    /// The peer's SYN came with sequence number `irs`; the window goes out unscaled first.
    pub(super) fn synchronise(&mut self, irs: Seq) {
        self.irs = irs;
        self.nxt = irs + 1;
        self.last_ack = self.nxt;
        self.edge = self.nxt + self.limit.min(0xffff);
    }

    /// The peer does not scale windows (RFC 7323 section 2.2).
    pub(super) fn forgo_scaling(&mut self) {
        self.wscale = 0;
        self.limit_max = self.limit_max.min(0xffff);
        self.limit = self.limit.min(0xffff);
    }

    /// Octets the peer may send from `nxt` on.
    #[inline]
    pub(super) fn window(&self) -> u32 {
        self.edge - self.nxt
    }

    /// What the window would be if offered in full.
    #[inline]
    fn available(&self) -> u32 {
        self.limit.saturating_sub(self.held_up)
    }

    /// The window field of a SYN, which is never scaled.
    pub(super) fn syn_window(&self) -> u16 {
        u16::try_from(self.limit).unwrap_or(u16::MAX)
    }

    /// The window field of a segment about to leave, moving the edge; notes what it acknowledges.
    ///
    /// The edge moves by a segment or half the window at least. The field is rounded up, so that
    /// scaling does not take back what was offered, unless rounding has already given away as
    /// much as it ever may: a peer that sends single octets could push the edge on forever.
    #[inline]
    pub(super) fn offer(&mut self) -> u16 {
        let available = self.available();
        let want = (self.nxt + available).distance(self.edge);
        let step = u32::from(self.step).min(self.limit / 2);
        let span = if want >= step.cast_signed().max(1) { available } else { self.edge - self.nxt };
        let unit = 1u32 << self.wscale;
        let mut field = span >> self.wscale;
        if field << self.wscale < span
            && self.held_up.saturating_add((field + 1) << self.wscale) <= self.limit + unit
        {
            field += 1;
        }
        let field = field.min(0xffff);
        self.edge = self.edge.max(self.nxt + (field << self.wscale));
        self.last_ack = self.nxt;
        field as u16
    }

    /// The upper layer keeps `octets`.
    pub(super) fn hold(&mut self, octets: u32) {
        self.held_up = self.held_up.saturating_add(octets);
    }

    /// The upper layer consumed `octets` it kept. True if the peer should hear of it now: little
    /// of the window was left, and it grew by something.
    pub(super) fn release(&mut self, octets: u32) -> bool {
        self.held_up = self.held_up.saturating_sub(octets);
        self.reopens()
    }

    /// Raises the window's limit to `limit`, as far as it may grow. True if the peer should hear
    /// of it now.
    pub(super) fn open(&mut self, limit: u32) -> bool {
        self.limit = self.limit.max(limit.min(self.limit_max));
        self.reopens()
    }

    /// Octets the window may span at present.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// What the limit may grow to.
    pub(super) fn limit_max(&self) -> u32 {
        self.limit_max
    }

    fn reopens(&self) -> bool {
        let half = self.limit / 2;
        let growth = (self.nxt + self.available()).distance(self.edge);
        self.window() < half && growth >= half.min(2 * u32::from(self.step)).cast_signed().max(1)
    }
}

/// When an ACK is due, and what has to be in it.
#[derive(Debug)]
pub(super) struct AckState {
    /// Due with the next frame of any kind.
    pub(super) due: bool,
    /// Due in a frame without payload: it reports SACK blocks, or counts as a duplicate.
    pub(super) pure: bool,
    /// Duplicate ACKs owed to a peer without SACK.
    duplicates: u8,
    /// Octets received twice (RFC 2883): each ACK reports one, the oldest first.
    dsacks: ArrayVec<Block, REPORTS_MAX>,
    /// When an ACK that is not due yet becomes due.
    pub(super) delayed: Instant,
}

impl AckState {
    pub(super) fn new() -> Self {
        Self { due: false, pure: false, duplicates: 0, dsacks: ArrayVec::new(), delayed: NEVER }
    }

    /// A segment arrived out of order, or twice.
    pub(super) fn out_of_order(&mut self, dsack: Option<Block>) {
        self.due = true;
        self.pure = true;
        self.duplicates = (self.duplicates + 1).min(DUPLICATES_MAX);
        if let Some(dsack) = dsack {
            // Beyond the bound the sender hears of the first ones only.
            let _ = self.dsacks.try_push(dsack);
        }
    }

    /// True if octets received twice are to be reported.
    pub(super) fn has_reports(&self) -> bool {
        !self.dsacks.is_empty()
    }

    /// The octets received twice that the next ACK reports.
    pub(super) fn take_report(&mut self) -> Option<Block> {
        self.dsacks.pop_at(0)
    }

    /// The cumulative acknowledgment moved: earlier duplicates are no duplicates any more.
    #[inline]
    pub(super) fn moved(&mut self) {
        self.duplicates = self.duplicates.min(1);
    }

    /// An ACK left with a segment that carries payload.
    #[inline]
    pub(super) fn carried(&mut self, rcv: &mut Receive) {
        rcv.unacked = 0;
        self.delayed = NEVER;
        self.due = self.pure;
    }

    /// A pure ACK left. To a peer without SACK the owed duplicates follow one by one; with SACK
    /// another one follows if `more` runs, or more octets received twice, are to be reported.
    pub(super) fn sent_pure(&mut self, rcv: &mut Receive, sack: bool, more: bool) {
        rcv.unacked = 0;
        self.delayed = NEVER;
        self.duplicates = if sack { 0 } else { self.duplicates.saturating_sub(1) };
        self.pure = self.duplicates > 0 || more || self.has_reports();
        self.due = self.pure;
    }

    /// `octets` arrived in order: an ACK is due at two full segments, else within the delay.
    #[inline]
    pub(super) fn in_order(&mut self, now: Instant, rcv: &mut Receive, octets: u32, cfg: &Config) {
        rcv.full = rcv.full.max(u16::try_from(octets).unwrap_or(u16::MAX));
        rcv.unacked += octets;
        if rcv.unacked >= 2 * u32::from(rcv.full) {
            self.due = true;
        } else if self.delayed == NEVER {
            self.delayed = now + cfg.delayed_ack_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AckState, Receive};
    use crate::tcp::config::Config;
    use crate::time::Instant;
    use crate::wire::seq::Seq;

    fn receive(limit: u32) -> Receive {
        let cfg = Config {
            recv_window: limit,
            recv_window_max: limit,
            startup_window: limit,
            ..Config::default()
        };
        let mut rcv = Receive::new(&cfg);
        rcv.synchronise(Seq(0xffff_fff0));
        rcv.offer();
        rcv
    }

    #[test]
    fn holding_shrinks_the_offer_and_never_takes_it_back() {
        let mut rcv = receive(256 * 1024);
        let full = rcv.window();
        assert!(full >= 256 * 1024);
        let edge = rcv.edge;
        rcv.nxt += 100_001;
        rcv.hold(100_001);
        let field = rcv.offer();
        assert!(rcv.edge >= edge && rcv.edge <= edge + 8);
        assert!(u32::from(field) << rcv.wscale >= full - 100_001);
        assert!(!rcv.release(1), "an octet is no news");
        rcv.nxt += 100_000;
        rcv.hold(100_000);
        rcv.offer();
        assert!(rcv.release(200_000));
        rcv.offer();
        assert!(rcv.window() >= 256 * 1024);
    }

    #[test]
    fn rounding_cannot_push_the_edge_on_forever() {
        let mut rcv = receive(256 * 1024);
        for _ in 0..300_000 {
            if rcv.window() == 0 {
                break;
            }
            rcv.nxt += 1;
            rcv.hold(1);
            rcv.offer();
            assert!(rcv.window() + rcv.held_up <= 256 * 1024 + 8);
        }
        assert_eq!(rcv.window(), 0);
    }

    #[test]
    fn the_edge_moves_in_steps() {
        let mut rcv = receive(64 * 1024);
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
        let mut rcv = receive(64 * 1024);
        let mut ack = AckState::new();
        ack.in_order(Instant::ZERO, &mut rcv, 1000, &cfg);
        assert!(!ack.due);
        assert_eq!(ack.delayed, Instant::ZERO + cfg.delayed_ack_ns);
        ack.in_order(Instant::ZERO, &mut rcv, 1000, &cfg);
        assert!(ack.due);
        ack.carried(&mut rcv);
        assert!(!ack.due);
    }

    #[test]
    fn duplicates_are_owed_one_by_one_without_sack() {
        let mut rcv = receive(64 * 1024);
        let mut ack = AckState::new();
        for _ in 0..100 {
            ack.out_of_order(None);
        }
        for _ in 0..15 {
            ack.sent_pure(&mut rcv, false, false);
            assert!(ack.due && ack.pure);
        }
        ack.sent_pure(&mut rcv, false, false);
        assert!(!ack.due);
        ack.out_of_order(None);
        ack.out_of_order(None);
        ack.moved();
        ack.sent_pure(&mut rcv, false, false);
        assert!(!ack.due, "a new cumulative ACK makes them no duplicates");
    }
}
