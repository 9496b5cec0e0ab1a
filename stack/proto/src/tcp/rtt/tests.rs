use super::{Config, Rtt, RttCache, TRUSTED_SAMPLES};
use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};

#[test]
fn rto_floor_follows_measured_ack_delay() {
    let cfg = Config::default();
    let mut rtt = Rtt::new(&cfg);
    assert_eq!(rtt.rto(&cfg), 200 * MILLISECOND);
    let at = |ms: u64| Instant::from_nanos(ms * MILLISECOND);
    for ms in 0..7 {
        rtt.sample(at(ms), 20 * MICROSECOND, None, &cfg);
        assert_eq!(rtt.rto(&cfg), 200 * MILLISECOND);
    }
    rtt.sample(at(8), 20 * MICROSECOND, None, &cfg);
    assert_eq!(rtt.rto(&cfg), 5 * MILLISECOND);
    // A peer that delays ACKs by 40 ms raises it for a while, however steady the rest is.
    rtt.sample(at(9), 40 * MILLISECOND + 20 * MICROSECOND, None, &cfg);
    for ms in 10..200 {
        rtt.sample(at(ms), 20 * MICROSECOND, None, &cfg);
    }
    assert_eq!(rtt.rto(&cfg), 40 * MILLISECOND + 20 * MICROSECOND);
    for s in 1..4 {
        rtt.sample(Instant::from_nanos(s * 5 * SECOND), 20 * MICROSECOND, None, &cfg);
    }
    assert_eq!(rtt.rto(&cfg), 5 * MILLISECOND);
}

/// Peer without SACK and timestamps: the floor stays, and the first samples are taken as ever.
#[test]
fn kept_rto_floor_leaves_the_samples_as_they_are() {
    let cfg = Config::default();
    let mut rtt = Rtt::new(&cfg);
    rtt.keep_rto_floor();
    assert_eq!(rtt.pto(true), SECOND, "there is no sample yet");
    let mut cache = RttCache::UNKNOWN;
    for count in 1..300 {
        rtt.sample(Instant::ZERO, 20 * MICROSECOND, None, &cfg);
        assert_eq!((rtt.srtt(), rtt.rto(&cfg)), (20 * MICROSECOND, 200 * MILLISECOND));
        rtt.fill_cache(&mut cache, &cfg);
        let is_settled = cache.redundant_min != u32::MAX;
        assert_eq!(is_settled, count >= TRUSTED_SAMPLES.into(), "{count}");
    }
}

#[test]
fn rto_min_of_a_second_is_honored() {
    // RFC 6298 sections 2.1 and 2.4.
    let cfg = Config { rto_min_ns: SECOND, rto_initial_ns: SECOND, ..Config::default() };
    let mut rtt = Rtt::new(&cfg);
    assert_eq!(rtt.rto(&cfg), SECOND);
    for _ in 0..100 {
        rtt.sample(Instant::ZERO, 20 * MICROSECOND, None, &cfg);
        assert_eq!(rtt.rto(&cfg), SECOND);
    }
    rtt.on_syn_lost(&cfg);
    assert_eq!(rtt.rto(&cfg), 3 * SECOND);
}

#[test]
fn backoff_doubles_rto_up_to_rto_max() {
    let cfg = Config::default();
    let mut rtt = Rtt::new(&cfg);
    rtt.back_off();
    assert_eq!(rtt.rto(&cfg), 400 * MILLISECOND);
    for _ in 0..100 {
        rtt.back_off();
    }
    assert_eq!(rtt.rto(&cfg), cfg.rto_max_ns);
    rtt.reset_backoff();
    assert_eq!(rtt.rto(&cfg), 200 * MILLISECOND);
}

#[test]
fn srtt_and_rttvar_follow_rfc_6298() {
    let cfg = Config { rto_min_ns: 0, rto_initial_ns: 0, ..Config::default() };
    let mut rtt = Rtt::new(&cfg);
    rtt.sample(Instant::ZERO, 800, None, &cfg);
    assert_eq!((rtt.srtt, rtt.rttvar), (800, 400));
    assert_eq!(rtt.rto(&cfg), 800 + 4 * 400);
    rtt.sample(Instant::ZERO, 1600, None, &cfg);
    assert_eq!((rtt.srtt, rtt.rttvar), (900, 500));
}

#[test]
fn rto_is_about_two_srtt_on_a_steady_path() {
    let cfg = Config::default();
    let mut rtt = Rtt::new(&cfg);
    for _ in 0..100 {
        rtt.sample(Instant::ZERO, 20 * MILLISECOND, None, &cfg);
    }
    assert!(rtt.rto(&cfg) >= 39 * MILLISECOND, "{}", rtt.rto(&cfg));
}

#[test]
fn min_rtt_expires_after_a_path_change() {
    let cfg = Config::default();
    let mut rtt = Rtt::new(&cfg);
    rtt.sample(Instant::ZERO, MILLISECOND, None, &cfg);
    for s in 1..60 {
        rtt.sample(Instant::from_nanos(s * SECOND), 10 * MILLISECOND, None, &cfg);
    }
    assert_eq!(rtt.min(), MILLISECOND);
    for s in 60..200 {
        rtt.sample(Instant::from_nanos(s * SECOND), 10 * MILLISECOND, None, &cfg);
    }
    assert_eq!(rtt.min(), 10 * MILLISECOND);
}

#[test]
fn pto_is_two_srtt_plus_ack_delay() {
    let cfg = Config::default();
    let mut rtt = Rtt::new(&cfg);
    assert_eq!(rtt.pto(true), SECOND);
    rtt.sample(Instant::ZERO, 20 * MICROSECOND, None, &cfg);
    assert_eq!(rtt.pto(true), 440 * MICROSECOND);
    assert_eq!(rtt.pto(false), 440 * MICROSECOND);
    // Nine spurious probes are enough for any ACK delay in use.
    for us in [4000, 40_000, 200_000, 200_000] {
        for _ in 0..3 {
            rtt.on_spurious_probe(true, &cfg);
            rtt.sample(Instant::ZERO, 20 * MICROSECOND, None, &cfg);
        }
        assert_eq!(rtt.pto(true), (40 + us) * MICROSECOND);
    }
    assert_eq!(rtt.pto(false), 440 * MICROSECOND);
    // A few are due to lost ACKs.
    for _ in 0..10 {
        rtt.on_spurious_probe(false, &cfg);
        for _ in 0..8 {
            rtt.sample(Instant::ZERO, 20 * MICROSECOND, None, &cfg);
        }
    }
    assert_eq!(rtt.pto(false), 440 * MICROSECOND);
    // The end of a burst has its own ACK delay.
    rtt.sample(Instant::ZERO, 20 * MICROSECOND, Some(MILLISECOND), &cfg);
    assert_eq!(rtt.pto(false), (40 + 980) * MICROSECOND);
}
