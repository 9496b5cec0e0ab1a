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

/// Appropriate byte counting (RFC 3465 section 2.1) counts from the last change of the window on:
/// what was acknowledged before an event pays for no growth after it.
#[test]
fn no_credit_for_growth_outlives_an_event() {
    let timeout = |cc: &mut Congestion| {
        let (flight, threshold) = (cc.window(), cc.ssthresh());
        cc.on_timeout(flight, MSS, false);
        cc.on_ack(&ack(threshold - MSS));
        assert!(!cc.in_slow_start());
    };
    type Change<'a> = &'a dyn Fn(&mut Congestion);
    let events: [(&str, Change<'_>); 4] = [
        ("loss", &|cc| cc.on_loss(cc.window(), MSS)),
        ("echo", &|cc| cc.on_congestion_echo(cc.window(), MSS)),
        ("timeout", &timeout),
        ("idle", &|cc| {
            cc.on_idle(MSS);
            let threshold = cc.ssthresh();
            cc.on_ack(&ack(threshold - cc.window()));
        }),
    ];
    for algorithm in [Algorithm::NewReno, Algorithm::Dctcp] {
        for (name, event) in events {
            let mut cc = Congestion::new(algorithm, MSS);
            cc.on_ack(&ack(100 * MSS));
            cc.on_loss(cc.window(), MSS);
            // All of the window but one segment, in pieces that the window absorbs and others.
            let mut left = cc.window() - MSS;
            for piece in [10 * MSS, 100].into_iter().cycle() {
                let piece = piece.min(left);
                cc.on_ack(&ack(piece));
                left -= piece;
                if left == 0 {
                    break;
                }
            }
            event(&mut cc);
            let window = cc.window();
            cc.on_ack(&ack(window - 1));
            assert_eq!(cc.window(), window, "{algorithm:?} after {name}");
        }
    }
}

/// What an undone timeout took back counts again as it did.
#[test]
fn undoing_restores_the_credit() {
    for algorithm in [Algorithm::NewReno, Algorithm::Dctcp] {
        let mut cc = Congestion::new(algorithm, MSS);
        cc.on_ack(&ack(100 * MSS));
        cc.on_loss(cc.window(), MSS);
        let window = cc.window();
        cc.on_ack(&ack(window - MSS));
        let prior = cc;
        cc.on_timeout(window, MSS, true);
        cc.restore(prior);
        cc.on_ack(&ack(MSS));
        assert_eq!(cc.window(), window + MSS, "{algorithm:?}");
    }
}
