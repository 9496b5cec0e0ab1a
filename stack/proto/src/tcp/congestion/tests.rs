//! Tests of the common part of the algorithms, and of NewReno.

use super::{AckSample, Congestion};
use crate::tcp::settings::Algorithm;
use crate::time::Instant;
use crate::wire::seq::Seq;

const MSS: u32 = 1460;

/// An ACK of `bytes` on a path without RTT samples.
fn ack(bytes: u32) -> AckSample {
    AckSample {
        now: Instant::ZERO,
        bytes,
        mss: MSS,
        srtt_ns: 0,
        rtt_ns: None,
        snd_una: Seq(0),
        snd_nxt: Seq(0),
        recovering: false,
    }
}

#[test]
fn slow_start_then_one_mss_per_rtt() {
    let mut cc = Congestion::new(Algorithm::NewReno, MSS);
    assert_eq!(cc.cwnd(), 14_600);
    cc.on_ack(&ack(14_600));
    assert_eq!(cc.cwnd(), 29_200);
    cc.on_loss(29_200, MSS);
    assert_eq!((cc.cwnd(), cc.ssthresh()), (14_600, 14_600));
    cc.set_cwnd(14_600);
    for _ in 0..10 {
        assert_eq!(cc.cwnd(), 14_600);
        cc.on_ack(&ack(MSS));
    }
    assert_eq!(cc.cwnd(), 14_600 + MSS);
}

#[test]
fn rto_resets_cwnd_and_can_be_undone() {
    let mut cc = Congestion::new(Algorithm::NewReno, MSS);
    let prior = cc;
    cc.on_timeout(14_600, MSS, true);
    cc.on_timeout(MSS, MSS, false);
    assert_eq!(cc.cwnd(), MSS);
    cc.on_ack(&ack(7300));
    assert!(!cc.in_slow_start(), "ssthresh is half of the first flight");
    cc.restore(prior);
    assert_eq!(cc.cwnd(), 14_600);
    assert!(cc.in_slow_start());
}

/// Appropriate byte counting (RFC 3465 section 2.1) counts from the last change of the window on:
/// bytes acknowledged before an event do not count for growth after it.
#[test]
fn acked_before_a_reduction_does_not_count_after_it() {
    let timeout = |cc: &mut Congestion| {
        let (flight, threshold) = (cc.cwnd(), cc.ssthresh());
        cc.on_timeout(flight, MSS, false);
        cc.on_ack(&ack(threshold - MSS));
        assert!(!cc.in_slow_start());
    };
    type Change<'a> = &'a dyn Fn(&mut Congestion);
    let events: [(&str, Change<'_>); 4] = [
        ("loss", &|cc| cc.on_loss(cc.cwnd(), MSS)),
        ("echo", &|cc| cc.on_ece(cc.cwnd(), MSS)),
        ("timeout", &timeout),
        ("idle", &|cc| {
            cc.on_idle(MSS);
            let threshold = cc.ssthresh();
            cc.on_ack(&ack(threshold - cc.cwnd()));
        }),
    ];
    for algorithm in [Algorithm::NewReno, Algorithm::Dctcp] {
        for (name, event) in events {
            let mut cc = Congestion::new(algorithm, MSS);
            cc.on_ack(&ack(100 * MSS));
            cc.on_loss(cc.cwnd(), MSS);
            // All of the window but one segment, in parts, some of which the window accumulates.
            let mut left = cc.cwnd() - MSS;
            for part in [10 * MSS, 100].into_iter().cycle() {
                let part = part.min(left);
                cc.on_ack(&ack(part));
                left -= part;
                if left == 0 {
                    break;
                }
            }
            event(&mut cc);
            let window = cc.cwnd();
            cc.on_ack(&ack(window - 1));
            assert_eq!(cc.cwnd(), window, "{algorithm:?} after {name}");
        }
    }
}

/// Bytes acknowledged before an undone timeout count again.
#[test]
fn undo_restores_the_acked_count() {
    for algorithm in [Algorithm::NewReno, Algorithm::Dctcp] {
        let mut cc = Congestion::new(algorithm, MSS);
        cc.on_ack(&ack(100 * MSS));
        cc.on_loss(cc.cwnd(), MSS);
        let window = cc.cwnd();
        cc.on_ack(&ack(window - MSS));
        let prior = cc;
        cc.on_timeout(window, MSS, true);
        cc.restore(prior);
        cc.on_ack(&ack(MSS));
        assert_eq!(cc.cwnd(), window + MSS, "{algorithm:?}");
    }
}
