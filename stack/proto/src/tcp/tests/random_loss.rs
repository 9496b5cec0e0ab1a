//! Random loss of data segments and of ACKs, at 1 Gb/s in virtual time.

use super::Config;
use super::pair::Pair;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};

/// A connection with a round-trip time of `rtt_ns` that loses `loss_per_10k` of 10,000 frames each
/// way.
fn lossy_pair(rtt_ns: u64, loss_per_10k: u32) -> Pair {
    let cfg = Config { recv_window: 4 << 20, ..Config::default() };
    let mut pair = Pair::new([cfg.clone(), cfg], rtt_ns / 2, 3);
    pair.bits_per_second = 1_000_000_000;
    pair.server().tcb.open_window();
    pair.client().checks_scoreboard = false;
    pair.loss_per_10k = loss_per_10k;
    pair
}

const RTTS_NS: [u64; 3] = [20 * MICROSECOND, MILLISECOND, 20 * MILLISECOND];

#[test]
fn random_loss_is_repaired_without_rto_or_spurious_recovery() {
    for rtt_ns in RTTS_NS {
        for loss_per_10k in [10, 100, 300] {
            let mut pair = lossy_pair(rtt_ns, loss_per_10k);
            let took = pair.write_within(10_000_000, 100 * SECOND);
            let stats = pair.client().tcb.stats();
            let what = format!("{rtt_ns} ns, {loss_per_10k}: {stats:?}");
            assert!(took < 100 * SECOND, "{what}");
            // A small flight may be lost completely, with its tail loss probe.
            assert!(stats.timeouts <= u32::from(loss_per_10k > 100), "{what}");
            assert_eq!(stats.spurious_recoveries, 0, "{what}");
            // Some retransmissions are lost again.
            let segments = 10_000_000 / 1448;
            let expected = segments * u64::from(loss_per_10k) / 10_000;
            assert!(u64::from(stats.retransmits) <= expected + expected / 5 + 12, "{what}");
            if rtt_ns == RTTS_NS[0] {
                let mbits = 10_000_000 * 8 * 1000 / took;
                assert!(mbits > 850, "{mbits} Mb/s; {what}");
            }
        }
    }
}

#[test]
fn short_messages_under_loss_rarely_wait_for_rto() {
    for rtt_ns in RTTS_NS {
        let mut pair = lossy_pair(rtt_ns, 100);
        let mut times = Vec::new();
        for _ in 0..2000 {
            times.push(pair.write_within(10_000, 10 * SECOND));
            pair.run_idle(rtt_ns + 100 * MICROSECOND);
        }
        times.sort_unstable();
        let (p50, p99) = (times[1000], times[1980]);
        assert!(p99 < p50 + 3 * rtt_ns + MILLISECOND, "{rtt_ns} ns: {p50} and {p99} ns");
        let stats = pair.client().tcb.stats();
        assert!(stats.timeouts <= 5, "{rtt_ns} ns: {stats:?}");
    }
}
