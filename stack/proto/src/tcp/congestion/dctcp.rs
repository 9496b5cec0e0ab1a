//! DCTCP (RFC 8257), sender side: the window is reduced in proportion to the CE-marked bytes.
//! Otherwise NewReno.

use super::control::NewReno;
use crate::wire::seq::Seq;

/// `alpha` if all bytes are marked.
const ALPHA_ONE: u32 = 1 << 20;
/// Weight of a new observation: g = 1/16 (section 4.2).
const G_BITS: u32 = 4;

/// DCTCP state besides the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dctcp {
    pub(super) reno: NewReno,
    /// DCTCP.Alpha: estimate of the fraction of bytes marked, in units of 1 / [`ALPHA_ONE`].
    alpha: u32,
    /// Start of the observation window, and the bytes acknowledged with ECE in it.
    window_start: Seq,
    marked: u32,
    /// The observation window ends when more than this is acknowledged; `None` before the first.
    window_end: Option<Seq>,
}

impl Dctcp {
    /// Initial state: all bytes count as marked (section 4.2).
    pub(super) fn new() -> Self {
        Self {
            reno: NewReno::default(),
            alpha: ALPHA_ONE,
            window_start: Seq(0),
            marked: 0,
            window_end: None,
        }
    }

    /// Processes an ACK that advances SND.UNA from `una` to `ack`, `echoes` with ECE (section 3.3,
    /// steps 1 to 8). ACKs without ECE may be left out until the window ends.
    pub(super) fn observe(&mut self, una: Seq, ack: Seq, nxt: Seq, echoes: bool) {
        if echoes {
            self.marked = self.marked.saturating_add(ack - una);
        }
        let Some(end) = self.window_end else {
            (self.window_start, self.window_end) = (una, Some(nxt));
            return;
        };
        if ack <= end {
            return;
        }
        let acked = (ack - self.window_start).max(1);
        let part = u64::from(self.marked) * u64::from(ALPHA_ONE) / u64::from(acked);
        let part = u32::try_from(part).unwrap_or(ALPHA_ONE).min(ALPHA_ONE);
        // Decreases by at least one, so that it reaches zero.
        let decay = (self.alpha >> G_BITS).max(u32::from(self.alpha > 0));
        self.alpha = (self.alpha - decay + (part >> G_BITS)).min(ALPHA_ONE);
        (self.window_start, self.marked) = (ack, 0);
        self.window_end = Some(nxt);
    }

    /// Returns the window after ECE (section 3.3, step 9).
    pub(super) fn reduce(&self, cwnd: u32) -> u32 {
        let cut = u64::from(cwnd) * u64::from(self.alpha) / u64::from(2 * ALPHA_ONE);
        cwnd - u32::try_from(cut).unwrap_or(cwnd)
    }
}

#[cfg(test)]
mod tests {
    use super::{ALPHA_ONE, Dctcp};
    use crate::wire::seq::Seq;

    /// Observes `windows` windows of 100 ACKs, `marked` of each with ECE.
    fn observe(dctcp: &mut Dctcp, at: &mut Seq, windows: u32, marked: u32) {
        for _ in 0..windows {
            for i in 0..100 {
                *at += 1000;
                dctcp.observe(*at - 1000, *at, *at + 100_000, i < marked);
            }
        }
    }

    #[test]
    fn alpha_converges_to_the_marked_fraction() {
        let (mut dctcp, mut at) = (Dctcp::new(), Seq(0) - 5_000_000);
        assert_eq!(dctcp.reduce(100_000), 50_000, "half, before the first estimate");
        for marked in [0, 25, 100, 7, 0] {
            observe(&mut dctcp, &mut at, 200, marked);
            let expected = f64::from(marked) / 100.0;
            let alpha = f64::from(dctcp.alpha) / f64::from(ALPHA_ONE);
            assert!((alpha - expected).abs() < 0.01, "{alpha} for {expected}");
            let cut = 1.0 - f64::from(dctcp.reduce(1_000_000)) / 1e6;
            assert!((cut - expected / 2.0).abs() < 0.005, "{cut} for {expected}");
        }
    }

    #[test]
    fn alpha_moves_by_a_sixteenth_once_per_window() {
        let (mut dctcp, mut at) = (Dctcp::new(), Seq(0));
        observe(&mut dctcp, &mut at, 1, 0);
        assert_eq!(dctcp.alpha, ALPHA_ONE, "the first window has not ended");
        observe(&mut dctcp, &mut at, 1, 0);
        assert_eq!(dctcp.alpha, ALPHA_ONE / 16 * 15);
    }
}
