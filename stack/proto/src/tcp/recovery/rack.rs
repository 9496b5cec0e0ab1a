//! RACK loss detection (RFC 8985 section 6): a segment is lost if one sent after it was delivered,
//! and it was sent long enough ago. The scoreboard holds the transmission times; this module has
//! the state to compare them with.

use crate::tcp::rtt::Rtt;
use crate::time::Instant;
use crate::wire::seq::Seq;

/// DupThresh: number of segments SACKed, or of duplicate ACKs, that ends the wait for reordering
/// (RFC 5681 section 3.2).
pub(in crate::tcp) const DUP_THRESH: u32 = 3;
/// Recoveries without a D-SACK after which the reordering window shrinks again.
const REO_WND_PERSIST: u8 = 16;

/// `RACK_sent_after`: true if `a` was sent after `b`. Both are given by transmission time and end.
pub(in crate::tcp) fn sent_after(a: (Instant, Seq), b: (Instant, Seq)) -> bool {
    a.0 > b.0 || (a.0 == b.0 && a.1 > b.1)
}

/// Distinguishes an ACK of a retransmission from a late ACK of the original (RFC 8985 section 6.2,
/// step 2).
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct SampleGuard {
    pub(in crate::tcp) now: Instant,
    /// Minimum RTT in nanoseconds, 0 if unknown.
    pub(in crate::tcp) min_rtt: u64,
    /// TSecr of the ACK, and the offset of our TSval from the clock.
    pub(in crate::tcp) echo: Option<u32>,
    pub(in crate::tcp) ts_offset: u32,
}

impl SampleGuard {
    /// Returns the guard for records that do not start at the SND.UNA before the ACK: TSecr echoes
    /// a segment that did (RFC 7323 section 4.3).
    pub(in crate::tcp) const fn without_echo(self) -> Self {
        Self { echo: None, ..self }
    }

    /// True if the ACK may be of the retransmission sent at `sent_at`.
    #[expect(clippy::cast_possible_truncation, reason = "TSval is a 32-bit clock that wraps")]
    pub(in crate::tcp) fn is_valid_sample(&self, sent_at: Instant) -> bool {
        let value = (sent_at.as_micros() as u32).wrapping_add(self.ts_offset);
        self.echo.is_none_or(|echo| echo.wrapping_sub(value).cast_signed() >= 0)
            && self.now.since(sent_at) >= self.min_rtt
    }
}

/// RACK state: the latest transmission delivered, and the reordering observed.
#[derive(Debug)]
#[doc(alias = "recent acknowledgment")]
pub(in crate::tcp) struct Rack {
    /// `RACK.xmit_ts`.
    xmit_ts: Instant,
    /// `RACK.rtt`, nanoseconds.
    rtt: u64,
    /// `RACK.end_seq`.
    end_seq: Seq,
    /// D-SACKs received, without those for tail loss probes.
    dsacks: u32,
    /// `RACK.dsack_round`, while `in_dsack_round`: the window grows once per round trip.
    dsack_round: Seq,
    in_dsack_round: bool,
    /// `RACK.reordering_seen`.
    reordering_seen: bool,
    /// `RACK.reo_wnd_mult`.
    reo_wnd_mult: u8,
    /// `RACK.reo_wnd_persist`.
    reo_wnd_persist: u8,
}

impl Rack {
    pub(in crate::tcp) const fn new() -> Self {
        Self {
            xmit_ts: Instant::ZERO,
            rtt: 0,
            end_seq: Seq(0),
            dsacks: 0,
            dsack_round: Seq(0),
            in_dsack_round: false,
            reordering_seen: false,
            reo_wnd_mult: 1,
            reo_wnd_persist: 0,
        }
    }

    /// Step 2: notes a transmission that was delivered.
    #[inline]
    pub(in crate::tcp) fn advance(&mut self, now: Instant, newest: (Instant, Seq)) {
        if sent_after(newest, (self.xmit_ts, self.end_seq)) {
            (self.xmit_ts, self.end_seq) = newest;
            self.rtt = now.since(newest.0);
        }
    }

    /// Step 3: notes that a segment was delivered after one sent later.
    pub(in crate::tcp) fn on_reordering(&mut self) {
        self.reordering_seen = true;
    }

    /// True if the latest transmission delivered was sent after this one.
    pub(in crate::tcp) fn delivered_after(&self, at: Instant, end: Seq) -> bool {
        sent_after((self.xmit_ts, self.end_seq), (at, end))
    }

    /// Step 4: processes a D-SACK, which shows that a retransmission was spurious. `retransmits` is
    /// the number of retransmissions so far: any D-SACKs beyond it are due to duplication in the
    /// network.
    pub(in crate::tcp) fn on_dsack(&mut self, retransmits: u32, una: Seq, nxt: Seq) {
        if self.dsacks >= retransmits {
            return;
        }
        self.dsacks += 1;
        self.in_dsack_round &= una < self.dsack_round;
        if !self.in_dsack_round {
            (self.dsack_round, self.in_dsack_round) = (nxt, true);
            self.widen_reo_wnd();
        }
    }

    /// Widens the reordering window: reordering was mistaken for loss.
    pub(in crate::tcp) fn widen_reo_wnd(&mut self) {
        self.reo_wnd_mult = self.reo_wnd_mult.saturating_add(1);
        self.reo_wnd_persist = REO_WND_PERSIST;
    }

    /// Step 4: notes the end of an episode.
    pub(in crate::tcp) fn on_recovery_end(&mut self) {
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
        if self.reo_wnd_persist == 0 {
            self.reo_wnd_mult = 1;
        }
    }

    /// Step 4: returns the reordering window, nanoseconds. `recovering`: an episode is in progress;
    /// `sacked`: number of segments SACKed.
    pub(in crate::tcp) fn reo_wnd(&self, recovering: bool, sacked: u32, rtt: &Rtt) -> u64 {
        if !self.reordering_seen && (recovering || sacked >= DUP_THRESH) {
            return 0;
        }
        (rtt.min() / 4 * u64::from(self.reo_wnd_mult)).min(rtt.srtt())
    }

    /// Returns the time after its transmission at which a segment counts as lost, with this
    /// reordering window.
    pub(in crate::tcp) fn rack_timeout(&self, reo_wnd: u64) -> u64 {
        self.rtt + reo_wnd
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::Config;

    fn rtt(min: u64, later: u64) -> Rtt {
        let mut rtt = Rtt::new(&Config::default());
        rtt.sample(Instant::ZERO, min, None, &Config::default());
        for _ in 0..50 {
            rtt.sample(Instant::ZERO, later, None, &Config::default());
        }
        rtt
    }

    #[test]
    fn reo_wnd_is_a_quarter_of_min_rtt_or_zero() {
        let mut rack = Rack::new();
        let rtt = rtt(1000, 1000);
        assert_eq!(rack.reo_wnd(false, 2, &rtt), 250);
        assert_eq!(rack.reo_wnd(false, 3, &rtt), 0);
        assert_eq!(rack.reo_wnd(true, 0, &rtt), 0);
        rack.on_reordering();
        assert_eq!(rack.reo_wnd(true, 9, &rtt), 250);
    }

    #[test]
    fn dsack_widens_reo_wnd_once_per_round_up_to_srtt() {
        let mut rack = Rack::new();
        let rtt = rtt(1000, 1500);
        let una = Seq(0xffff_ff00);
        rack.on_dsack(10, una, una + 1000);
        rack.on_dsack(10, una + 999, una + 2000);
        assert_eq!(rack.reo_wnd(false, 0, &rtt), 500);
        rack.on_dsack(10, una + 1000, una + 2000);
        assert_eq!(rack.reo_wnd(false, 0, &rtt), 750);
        for round in 2..50 {
            rack.on_dsack(100, una + round * 1000, una + round * 1000 + 1000);
        }
        assert_eq!(rack.reo_wnd(false, 0, &rtt), rtt.srtt());
        // Sixteen recoveries without a D-SACK reset it.
        for _ in 0..15 {
            rack.on_recovery_end();
        }
        assert!(rack.reo_wnd(false, 0, &rtt) > 250);
        rack.on_recovery_end();
        assert_eq!(rack.reo_wnd(false, 0, &rtt), 250);
    }

    #[test]
    fn dsacks_beyond_retransmits_are_ignored() {
        let mut rack = Rack::new();
        let rtt = rtt(1000, 1000);
        rack.on_dsack(0, Seq(0), Seq(10));
        assert_eq!(rack.reo_wnd(false, 0, &rtt), 250);
        rack.on_dsack(1, Seq(20), Seq(30));
        rack.on_dsack(1, Seq(40), Seq(50));
        assert_eq!(rack.reo_wnd(false, 0, &rtt), 500);
    }

    #[test]
    fn xmit_ts_is_of_the_latest_sent_not_the_latest_acked() {
        let mut rack = Rack::new();
        let at = Instant::from_nanos;
        rack.advance(at(100), (at(50), Seq(1000)));
        rack.advance(at(110), (at(40), Seq(2000)));
        assert_eq!(rack.rack_timeout(5), 55);
        assert!(rack.delivered_after(at(40), Seq(5000)));
        assert!(rack.delivered_after(at(50), Seq(999)));
        assert!(!rack.delivered_after(at(50), Seq(1000)));
        assert!(!rack.delivered_after(at(51), Seq(1)));
        // Of one burst the highest end counts.
        rack.advance(at(120), (at(50), Seq(3000)));
        assert_eq!(rack.rack_timeout(0), 70);
    }

    #[test]
    fn ack_sooner_than_min_rtt_is_of_the_original() {
        let now = Instant::from_nanos(1_000_000);
        let guard = SampleGuard { now, min_rtt: 100_000, echo: None, ts_offset: 0xffff_ff00 };
        assert!(guard.is_valid_sample(Instant::from_nanos(900_000)));
        assert!(!guard.is_valid_sample(Instant::from_nanos(900_001)));
        let echo = |us: u32| SampleGuard { echo: Some(us.wrapping_add(0xffff_ff00)), ..guard };
        assert!(echo(800).is_valid_sample(Instant::from_nanos(800_000)));
        assert!(!echo(799).is_valid_sample(Instant::from_nanos(800_000)));
        assert!(echo(799).without_echo().is_valid_sample(Instant::from_nanos(800_000)));
    }
}
