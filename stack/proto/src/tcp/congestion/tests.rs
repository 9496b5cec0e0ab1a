//! Tests of what the algorithms have in common, and of NewReno.

use super::{AckInfo, Congestion};
use crate::tcp::config::Algorithm;
use crate::time::Instant;
use crate::wire::seq::Seq;

const MSS: u32 = 1460;

/// An ACK of `octets` on a path of which nothing is known.
fn ack(octets: u32) -> AckInfo {
    AckInfo {
        now: Instant::ZERO,
        octets,
        mss: MSS,
        srtt_ns: 0,
        rtt_ns: None,
        snd_una: Seq(0),
        snd_nxt: Seq(0),
        recovering: false,
    }
}

#[test]
fn slow_start_then_one_segment_per_round_trip() {
    let mut cc = Congestion::new(Algorithm::NewReno, MSS);
    assert_eq!(cc.window(), 14_600);
    cc.on_ack(&ack(14_600));
    assert_eq!(cc.window(), 29_200);
    cc.on_loss(29_200, MSS);
    assert_eq!((cc.window(), cc.ssthresh()), (14_600, 14_600));
    cc.set_window(14_600);
    for _ in 0..10 {
        assert_eq!(cc.window(), 14_600);
        cc.on_ack(&ack(MSS));
    }
    assert_eq!(cc.window(), 14_600 + MSS);
}

#[test]
fn a_timeout_starts_over_and_can_be_undone() {
    let mut cc = Congestion::new(Algorithm::NewReno, MSS);
    let prior = cc;
    cc.on_timeout(14_600, MSS, true);
    cc.on_timeout(MSS, MSS, false);
    assert_eq!(cc.window(), MSS);
    cc.on_ack(&ack(7300));
    assert!(!cc.in_slow_start(), "ssthresh is half of the first flight");
    cc.restore(prior);
    assert_eq!(cc.window(), 14_600);
    assert!(cc.in_slow_start());
}
