//! Proportional rate reduction (RFC 9937): during fast recovery sending is proportional to
//! DeliveredData, so that the window decreases to ssthresh over a round trip and not at once.

/// Byte counts of an episode.
#[derive(Clone, Copy, Debug, Default)]
#[doc(alias = "proportional rate reduction")]
pub(in crate::tcp) struct Prr {
    /// `RecoverFS`: bytes outstanding when it began.
    flight: u32,
    /// `prr_delivered`.
    delivered: u32,
    /// `prr_out`.
    out: u32,
}

impl Prr {
    /// Begins an episode with `flight` bytes outstanding, without those SACKed.
    pub(in crate::tcp) fn begin(&mut self, flight: u32) {
        *self = Self { flight: flight.max(1), delivered: 0, out: 0 };
    }

    /// Counts bytes sent, new or retransmitted.
    #[inline]
    pub(in crate::tcp) fn on_sent(&mut self, bytes: u32) {
        self.out = self.out.wrapping_add(bytes);
    }

    /// Returns the congestion window after an ACK that delivered `delivered` bytes (RFC 9937
    /// section 6). `pipe`: bytes then in the network; `safe` (`SafeACK`): SND.UNA advanced and no
    /// further loss was detected.
    pub(in crate::tcp) fn window(
        &mut self,
        delivered: u32,
        pipe: u32,
        ssthresh: u32,
        mss: u32,
        safe: bool,
    ) -> u32 {
        self.delivered = self.delivered.saturating_add(delivered);
        let count = if pipe > ssthresh {
            let target = u64::from(self.delivered) * u64::from(ssthresh);
            let target = target.div_ceil(u64::from(self.flight));
            u32::try_from(target).unwrap_or(u32::MAX).saturating_sub(self.out)
        } else {
            // Conservative reduction bound; with `SafeACK` as fast as slow start.
            let count = self.delivered.saturating_sub(self.out).max(delivered);
            let count = if safe { count.saturating_add(mss) } else { count };
            count.min(ssthresh - pipe)
        };
        // The first retransmission is always admitted.
        let count = if self.out == 0 { count.max(mss) } else { count };
        pipe.saturating_add(count)
    }
}

#[cfg(test)]
mod tests {
    use super::Prr;

    const MSS: u32 = 1000;

    /// Processes ACKs that each deliver one segment, and sends what the window admits. Returns the
    /// segments sent at each ACK.
    fn run(prr: &mut Prr, pipe: &mut u32, ssthresh: u32, safe: bool, acks: u32) -> Vec<u32> {
        let mut sent = Vec::new();
        for _ in 0..acks {
            *pipe -= MSS;
            let window = prr.window(MSS, *pipe, ssthresh, MSS, safe);
            let count = window.saturating_sub(*pipe) / MSS;
            *pipe += count * MSS;
            prr.on_sent(count * MSS);
            sent.push(count);
        }
        sent
    }

    #[test]
    fn rfc_6937_first_example() {
        // Section 4: twenty segments, the first is lost, ssthresh 10. Nineteen ACKs; the third
        // begins the episode. One retransmission, then one segment for every other ACK.
        let mut prr = Prr::default();
        let mut pipe = 20 * MSS - 2 * MSS;
        prr.begin(18 * MSS);
        // The lost segment leaves the pipe when the loss is detected, together with the delivered
        // one.
        pipe -= MSS;
        let sent = run(&mut prr, &mut pipe, 10 * MSS, false, 16);
        assert_eq!(sent[0], 1, "fast retransmit");
        let total: u32 = sent.iter().sum();
        assert!((9..=10).contains(&total), "{sent:?}");
        assert!(sent.iter().all(|&count| count <= 1), "spread over the round trip: {sent:?}");
        assert!((10 * MSS..=11 * MSS).contains(&pipe), "{pipe}");
    }

    #[test]
    fn heavy_loss_conserves_packets_then_slow_starts() {
        // The second example: fifteen of twenty are lost, and pipe falls below ssthresh at once.
        let mut prr = Prr::default();
        prr.begin(20 * MSS);
        let mut pipe = 5 * MSS;
        let sent = run(&mut prr, &mut pipe, 10 * MSS, false, 4);
        assert_eq!(sent, [1, 1, 1, 1], "packet conservation");
        assert_eq!(pipe, 5 * MSS);
        let sent = run(&mut prr, &mut pipe, 10 * MSS, true, 5);
        assert_eq!(sent, [2, 2, 2, 2, 2], "as slow start, one more for each ACK");
        assert_eq!(pipe, 10 * MSS);
    }

    #[test]
    fn stretch_ack_releases_at_most_ssthresh() {
        let mut prr = Prr::default();
        prr.begin(20 * MSS);
        assert_eq!(prr.window(18 * MSS, 0, 10 * MSS, MSS, false), 10 * MSS);
        let mut prr = Prr::default();
        prr.begin(40 * MSS);
        assert_eq!(prr.window(10 * MSS, 28 * MSS, 20 * MSS, MSS, false), 33 * MSS);
    }

    #[test]
    fn first_retransmission_is_always_allowed() {
        let mut prr = Prr::default();
        prr.begin(20 * MSS);
        assert_eq!(prr.window(0, 18 * MSS, 10 * MSS, MSS, false), 19 * MSS);
        prr.on_sent(MSS);
        assert_eq!(prr.window(0, 18 * MSS, 10 * MSS, MSS, false), 18 * MSS);
    }
}
