//! CUBIC (RFC 9438) in integers: the window is a cubic function of the time since it was last
//! reduced, flat around W_max, the size at which that happened.
//!
//! Windows are in bytes, times in units of 2^-14 s.

use super::control::AckSample;
use crate::time::Instant;

/// Fraction bits of a second in a [`Cubic`] unit of time.
const TIME_BITS: u32 = 14;
/// 5^9. A second has 5^9 * 2^9 nanoseconds, so that a unit has 5^9 / 2^5 of them.
const FIVE_POW_9: u64 = 1_953_125;
/// Largest distance in time from K: 256 s.
const TIME_MAX: u64 = 256 << TIME_BITS;
/// Fraction bits of W_est.
const EST_BITS: u32 = 8;

/// CUBIC state besides the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cubic {
    /// Start of the epoch of congestion avoidance, moved forward by idle times, if `in_epoch`.
    epoch_start: Instant,
    /// Time of the last ACK processed.
    updated: Instant,
    /// W_est: the window that Reno would have, bytes with fraction.
    w_est: u64,
    /// W_max; 0: unknown, the epoch begins at it.
    w_max: u32,
    /// K: time from the start of the epoch to W_max.
    k: u32,
    /// Window before it was last reduced (`cwnd_prior`).
    cwnd_prior: u32,
    /// There was an ACK in the epoch. Its unused values hold the choice of the algorithm.
    in_epoch: bool,
}

impl Cubic {
    pub(super) const fn new() -> Self {
        Self {
            epoch_start: Instant::ZERO,
            updated: Instant::ZERO,
            w_est: 0,
            w_max: 0,
            k: 0,
            cwnd_prior: 0,
            in_epoch: false,
        }
    }

    /// Returns the window after an ACK in congestion avoidance. Cost: a few divisions.
    pub(super) fn on_ack(&mut self, cwnd: u32, ack: &AckSample) -> u32 {
        let acked = u64::from(ack.bytes);
        if !self.in_epoch {
            self.start_epoch(cwnd, ack);
        }
        // The window was not in use: time in which it could not have grown does not count
        // (sections 4.2 and 5.8). While it is in use, an ACK arrives at least once per round trip.
        let gap = ack.now.since(self.updated);
        if gap > 2 * ack.srtt_ns {
            self.epoch_start = self.epoch_start + (gap - ack.srtt_ns);
        }
        self.updated = ack.now;
        let elapsed = ack.now.since(self.epoch_start);
        // Section 4.3. Alpha is 3 (1 - beta) / (1 + beta), that is 9/17, and 1 as soon as W_est has
        // reached the window before the reduction.
        let (cwnd_64, mss) = (u64::from(cwnd), u64::from(ack.mss));
        let (over, under) =
            if self.w_est >> EST_BITS < u64::from(self.cwnd_prior) { (9, 17) } else { (1, 1) };
        self.w_est += ((acked * mss * over) << EST_BITS) / (under * cwnd_64.max(1));
        let est = self.w_est >> EST_BITS;
        if self.w_cubic(elapsed, mss) < est {
            return u32::try_from(est).unwrap_or(u32::MAX).max(cwnd);
        }
        // Sections 4.4 and 4.5: the value of W_cubic one round trip later, at most 1.5 times the
        // window.
        let target = self.w_cubic(elapsed + ack.srtt_ns, mss).clamp(cwnd_64, cwnd_64 + cwnd_64 / 2);
        let growth = ((target - cwnd_64) * acked + cwnd_64 / 2) / cwnd_64.max(1);
        cwnd.saturating_add(u32::try_from(growth).unwrap_or(u32::MAX))
    }

    /// Begins an epoch of congestion avoidance with this ACK.
    #[cold]
    fn start_epoch(&mut self, cwnd: u32, ack: &AckSample) {
        self.in_epoch = true;
        self.epoch_start = ack.now;
        self.updated = ack.now;
        self.w_est = u64::from(cwnd) << EST_BITS;
        if self.w_max == 0 {
            // After HyStart++ or a timeout (sections 4.8 and 4.10).
            self.cwnd_prior = self.cwnd_prior.max(cwnd);
        }
        self.w_max = self.w_max.max(cwnd);
        self.k = compute_k(self.w_max - cwnd, ack.mss);
    }

    /// Returns W_cubic, `elapsed` nanoseconds after the start of the epoch: C (t - K)^3 + W_max,
    /// with C = 0.4 segments per cubic second.
    #[inline]
    fn w_cubic(&self, elapsed: u64, mss: u64) -> u64 {
        let (t, k) = (time_units(elapsed), u64::from(self.k));
        let distance = t.abs_diff(k).min(TIME_MAX);
        let square = (distance * distance) >> TIME_BITS;
        let cube = (square * distance) >> TIME_BITS;
        let rise = (cube * mss * 2 / 5) >> TIME_BITS;
        let w_max = u64::from(self.w_max);
        if t < k { w_max.saturating_sub(rise) } else { w_max + rise }
    }

    /// Returns the slow-start threshold after a congestion event (sections 4.6 and 4.7).
    ///
    /// It is computed from the window and not from the flight. Section 4.6 permits this if the
    /// window grows only while in use, as here ([`super::Congestion::cwnd_limited`]). W_max is
    /// taken from the window, too: with messages of a few segments, a threshold from their flight
    /// and a W_max from the window would be seconds apart.
    pub(super) fn reduce(&mut self, cwnd: u32, mss: u32) -> u32 {
        // Fast convergence: the window did not reach its former W_max, so it yields to other flows.
        self.w_max = if cwnd < self.w_max { fraction(cwnd, 17, 20) } else { cwnd };
        self.cwnd_prior = cwnd;
        self.restart();
        fraction(cwnd, 7, 10).max(2 * mss)
    }

    /// Resets W_max after a timeout: it is then the window at which slow start ends (section 4.8).
    pub(super) const fn reset_w_max(&mut self) {
        self.w_max = 0;
        self.restart();
    }

    /// Ends the epoch; the next ACK in congestion avoidance begins one.
    pub(super) const fn restart(&mut self) {
        self.in_epoch = false;
    }
}

/// Returns K, the time in which the cubic rises by `bytes`: the cube root of segments over C.
fn compute_k(bytes: u32, mss: u32) -> u32 {
    let cube = (u128::from(bytes) * 5) << (3 * TIME_BITS);
    cube_root(cube / (2 * u128::from(mss.max(1))))
}

/// Returns the largest number whose cube is at most `n`, digit by digit, of up to 26 binary digits.
fn cube_root(n: u128) -> u32 {
    (0..26).rev().map(|bit| 1 << bit).fold(0, |root, bit: u32| {
        let more = root | bit;
        if u128::from(more).pow(3) <= n { more } else { root }
    })
}

/// Converts nanoseconds to units of 2^-14 s, limited to the range that counts.
#[inline]
fn time_units(ns: u64) -> u64 {
    (ns.min(1 << 40) << 5) / FIVE_POW_9
}

/// Returns `bytes` times `over / under`, a fraction below 1.
fn fraction(bytes: u32, over: u64, under: u64) -> u32 {
    u32::try_from(u64::from(bytes) * over / under).unwrap_or(bytes)
}

#[cfg(test)]
mod tests;
