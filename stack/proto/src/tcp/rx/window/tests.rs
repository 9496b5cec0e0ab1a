use super::{RcvLimits, RcvVars};
use crate::tcp::settings::Config;
use crate::tcp::timer::Timers;
use crate::time::Instant;
use crate::wire::seq::Seq;

fn receive(limit: u32) -> (RcvVars, RcvLimits, Config) {
    let cfg = Config {
        recv_window: limit,
        recv_window_max: limit,
        startup_window: limit,
        ..Config::default()
    };
    let (mut rcv, limits) = (RcvVars::new(&cfg), RcvLimits::new(&cfg));
    limits.init(&mut rcv, Seq(0xffff_fff0), &cfg);
    rcv.select_window();
    (rcv, limits, cfg)
}

#[test]
fn ack_is_due_at_two_full_segments_however_short_they_are() {
    let now = Instant::from_nanos(1);
    // Payloads of equal segments, and after how many of them an ACK is due.
    for (mss, len, expected) in [(1460, 1448, 2), (1460, 536, 2), (1460, 80, 14), (216, 216, 2)] {
        let cfg = Config { mss, ..Config::default() };
        let (mut rcv, mut timers) = (RcvVars::new(&cfg), Timers::OFF);
        let mut count = 0;
        while !rcv.ack_now {
            count += 1;
            let longest = u16::try_from(len).unwrap();
            rcv.on_in_order(now, &mut timers, len, longest, cfg.delayed_ack_ns);
            assert!(rcv.ack_now || timers.delayed_ack == now + cfg.delayed_ack_ns);
        }
        assert_eq!(count, expected, "{len} bytes, MSS {mss}");
    }
}

#[test]
fn unconsumed_data_shrinks_the_window_without_retracting_it() {
    let (mut rcv, mut limits, cfg) = receive(256 * 1024);
    let full = rcv.window();
    assert!(full >= 256 * 1024);
    let edge = rcv.adv;
    rcv.nxt += 100_001;
    limits.add_unconsumed(&mut rcv, 100_001, &cfg);
    let field = rcv.select_window();
    assert!(rcv.adv >= edge && rcv.adv <= edge + 8);
    assert!(u32::from(field) << rcv.wscale >= full - 100_001);
    assert!(!limits.consume(&mut rcv, 1, &cfg), "too little for a window update");
    rcv.nxt += 100_000;
    limits.add_unconsumed(&mut rcv, 100_000, &cfg);
    rcv.select_window();
    assert!(limits.consume(&mut rcv, 200_000, &cfg));
    rcv.select_window();
    assert!(rcv.window() >= 256 * 1024);
}

#[test]
fn window_rounding_never_exceeds_the_limit() {
    let (mut rcv, mut limits, cfg) = receive(256 * 1024);
    for _ in 0..300_000 {
        if rcv.window() == 0 {
            break;
        }
        rcv.nxt += 1;
        limits.add_unconsumed(&mut rcv, 1, &cfg);
        rcv.select_window();
        assert!(rcv.window() + limits.unconsumed <= 256 * 1024 + 8);
    }
    assert_eq!(rcv.window(), 0);
}

#[test]
fn lowered_limit_does_not_retract_the_window() {
    let cfg = Config { startup_window: 64 * 1024, recv_window: 64 * 1024, ..Config::default() };
    let (mut rcv, mut limits) = (RcvVars::new(&cfg), RcvLimits::new(&cfg));
    limits.init(&mut rcv, Seq(0xffff_fff0), &cfg);
    limits.raise(&mut rcv, 1 << 20, &cfg);
    rcv.select_window();
    let (edge, unit) = (rcv.adv, 1 << rcv.wscale);
    limits.lower(&mut rcv, 64 * 1024, &cfg);
    while rcv.nxt + 1001 + 64 * 1024 <= edge {
        rcv.nxt += 1001;
        let field = u32::from(rcv.select_window()) << rcv.wscale;
        assert!((edge..edge + unit).contains(&rcv.adv));
        assert!(rcv.nxt + field + unit > edge, "no more than rounding");
    }
    rcv.nxt += 3000;
    rcv.select_window();
    assert!(rcv.adv > edge && rcv.window() >= 64 * 1024 && rcv.window() < 64 * 1024 + unit);
}

#[test]
fn window_update_waits_for_an_mss() {
    let (mut rcv, _, _) = receive(64 * 1024);
    let edge = rcv.adv;
    rcv.nxt += 1000;
    rcv.select_window();
    assert_eq!(rcv.adv, edge);
    rcv.nxt += 1000;
    rcv.select_window();
    assert!(rcv.adv >= edge + 1998);
}

#[test]
fn ack_after_two_full_segments_or_delayed_ack_timer() {
    let cfg = Config::default();
    let (mut rcv, _, _) = receive(64 * 1024);
    let mut timers = Timers::OFF;
    rcv.on_in_order(Instant::ZERO, &mut timers, 1000, 1000, cfg.delayed_ack_ns);
    assert!(!rcv.ack_now);
    assert_eq!(timers.delayed_ack, Instant::ZERO + cfg.delayed_ack_ns);
    rcv.on_in_order(Instant::ZERO, &mut timers, 1000, 1000, cfg.delayed_ack_ns);
    assert!(rcv.ack_now);
    rcv.on_data_sent(&mut timers);
    assert!(!rcv.ack_now);
}

#[test]
fn dup_acks_are_sent_one_by_one_without_sack() {
    let (mut rcv, _, _) = receive(64 * 1024);
    let mut timers = Timers::OFF;
    for _ in 0..100 {
        rcv.on_out_of_order();
    }
    for _ in 0..15 {
        rcv.on_pure_ack_sent(&mut timers, false, false);
        assert!(rcv.ack_now && rcv.pure_ack);
    }
    rcv.on_pure_ack_sent(&mut timers, false, false);
    assert!(!rcv.ack_now);
    rcv.on_out_of_order();
    rcv.on_out_of_order();
    rcv.on_advance();
    rcv.on_pure_ack_sent(&mut timers, false, false);
    assert!(!rcv.ack_now, "a new cumulative ACK makes them no duplicates");
}
