//! Timeouts for an unresponsive peer: keepalive, user timeout, R1 and R2 of RFC 9293 section 3.8.3.

use super::{Config, Event, Script};
use crate::time::SECOND;

fn elapsed_s(script: &Script) -> u64 {
    (script.now.since(super::at_us(1_000_000))) / SECOND
}

/// Fires timers until the connection is closed; returns the times of sent segments, in seconds.
fn fire_until_closed(script: &mut Script) -> Vec<u64> {
    let mut sent = Vec::new();
    while script.end.tcb.deadline().is_some() {
        let out = script.fire();
        sent.extend((!out.is_empty()).then(|| elapsed_s(script)));
        assert!(sent.len() < 100);
    }
    sent
}

#[test]
fn idle_connection_has_no_timer_without_keepalive() {
    let script = Script::established(&Config::default(), Script::full_options());
    assert_eq!(script.end.tcb.deadline(), None);
}

#[test]
fn keepalive_follows_idle_time_interval_and_count() {
    let cfg = Config {
        keepalive_ns: Some(10 * SECOND),
        keepalive_interval_ns: 2 * SECOND,
        keepalive_count: 3,
        ..Config::default()
    };
    let mut script = Script::established(&cfg, Script::full_options());
    // After an answer the next probe waits for the whole idle time again.
    let probe = script.fire();
    assert_eq!((probe[0].seq, probe[0].payload.len(), elapsed_s(&script)), (script.ack - 1, 0, 10));
    script.send(script.fields());
    // Three probes, and then a RST.
    assert_eq!(fire_until_closed(&mut script), [20, 22, 24, 26]);
    assert_eq!(script.end.events, [Event::TimedOut, Event::Closed]);
}

/// The timer is not set again by each segment: it expires early, and goes on to the time that the
/// last segment gives.
#[test]
fn keepalive_counts_idle_time_from_last_segment() {
    let cfg = Config {
        keepalive_ns: Some(10 * SECOND),
        keepalive_interval_ns: 75 * SECOND,
        ..Config::default()
    };
    let mut script = Script::established(&cfg, Script::full_options());
    script.now = script.now + 6 * SECOND;
    script.send(script.fields());
    let mut probes = Vec::new();
    while probes.is_empty() {
        probes = script.fire();
        assert!(elapsed_s(&script) <= 16);
    }
    assert_eq!((probes[0].payload.len(), elapsed_s(&script)), (0, 16));
}

#[test]
fn unanswered_zero_window_probes_end_at_user_timeout() {
    let cfg = Config { user_timeout_ns: 7 * SECOND, ..Config::default() };
    let mut script = Script::established(&cfg, Script::full_options());
    script.window = 0;
    script.send(script.fields());
    script.now = script.now + 50 * SECOND;
    script.write(10);
    assert_eq!(*fire_until_closed(&mut script).last().unwrap(), 57, "idle before does not count");
    assert_eq!(script.end.events, [Event::TimedOut, Event::Closed]);
}

#[test]
fn zero_window_with_data_in_flight_ends_at_user_timeout() {
    let cfg = Config { user_timeout_ns: 7 * SECOND, ..Config::default() };
    let mut script = Script::established(&cfg, Script::full_options());
    script.write(10);
    script.now = script.now + SECOND / 10;
    // The peer answers with a zero window, then stops responding.
    script.window = 0;
    script.send(script.fields());
    let last_rx_s = elapsed_s(&script);
    assert_eq!(*fire_until_closed(&mut script).last().unwrap(), last_rx_s + 7);
    assert_eq!(script.end.events, [Event::R1Exceeded, Event::TimedOut, Event::Closed]);
}

#[test]
fn answered_zero_window_probes_never_end_connection() {
    let cfg = Config { user_timeout_ns: 7 * SECOND, ..Config::default() };
    let mut script = Script::established(&cfg, Script::full_options());
    script.window = 0;
    script.send(script.fields());
    script.write(10);
    let mut before = script.now;
    for _ in 0..40 {
        assert_eq!(script.fire().len(), 1);
        let waited = script.now.since(before);
        assert!(waited <= cfg.rto_max_ns);
        before = script.now;
        script.send(script.fields());
    }
    assert!(elapsed_s(&script) > 20 * 60 && script.end.events.is_empty());
}

/// Fires timers and answers each segment, until the connection is closed; returns when.
fn answer_until_closed(script: &mut Script, mut answer: impl FnMut(&mut Script)) -> u64 {
    for _ in 0..2000 {
        if script.end.tcb.deadline().is_none() {
            return elapsed_s(script);
        }
        script.fire();
        if !script.end.tcb.is_closed() {
            answer(script);
        }
    }
    panic!("the connection lasts");
}

fn stalled(in_flight: bool, bytes: u64) -> Script {
    let cfg =
        Config { stall_timeout_ns: Some(30 * SECOND), rto_max_ns: SECOND, ..Config::default() };
    let mut script = Script::established(&cfg, Script::full_options());
    // Idle time before does not count.
    script.now = script.now + 50 * SECOND;
    if in_flight {
        script.write(bytes);
        script.now = script.now + SECOND / 10;
    }
    script.window = 0;
    script.send(script.fields());
    if !in_flight {
        script.write(bytes);
    }
    script
}

#[test]
fn peer_that_takes_nothing_is_given_up_though_it_answers() {
    for in_flight in [false, true] {
        let mut script = stalled(in_flight, 4000);
        let end_s = answer_until_closed(&mut script, |script| drop(script.send(script.fields())));
        assert!((79..=81).contains(&end_s), "in flight {in_flight}: {end_s}");
        let events = script.end.events.iter().filter(|event| **event != Event::R1Exceeded);
        assert!(events.eq(&[Event::TimedOut, Event::Closed]), "{:?}", script.end.events);
    }
}

#[test]
fn peer_that_takes_a_byte_now_and_then_is_given_up() {
    for in_flight in [false, true] {
        let mut script = stalled(in_flight, 4000);
        let end_s = answer_until_closed(&mut script, |script| {
            script.now = script.now + SECOND;
            // One byte of what is in flight, or a window of one byte.
            if script.ack < script.end.tcb.snd.nxt {
                script.ack += 1;
            }
            script.window = u16::from(!in_flight);
            script.end.tcb.snd.wscale = 0;
            script.send(script.fields());
        });
        assert!((79..=81).contains(&end_s), "in flight {in_flight}: {end_s}");
    }
}

#[test]
fn peer_that_takes_a_segment_now_and_then_is_kept() {
    let mut script = stalled(false, 1_000_000);
    let start_s = elapsed_s(&script);
    let mut took = 0;
    while elapsed_s(&script) < start_s + 300 {
        script.fire();
        if elapsed_s(&script) / 25 > took {
            // It opens the window for a moment.
            took = elapsed_s(&script) / 25;
            script.window = 100;
            let sent: u32 = script.send(script.fields()).iter().map(|seg| seg.seq_len()).sum();
            assert!(sent > 1448, "{sent}");
            script.ack += sent;
            script.window = 0;
        }
        script.send(script.fields());
        assert!(!script.end.tcb.is_closed(), "at {}", elapsed_s(&script));
    }
}

/// The timer was started for data that was taken; it does not end a connection that sends the next
/// when it expires.
#[test]
fn taken_data_stops_the_stall_timer() {
    let mut script = stalled(false, 10);
    script.window = 1;
    assert_eq!(script.send(script.fields()).len(), 1);
    script.ack += 10;
    script.window = 0;
    script.send(script.fields());
    script.now = script.now + 29 * SECOND;
    script.write(10);
    let end_s = answer_until_closed(&mut script, |script| drop(script.send(script.fields())));
    assert!((108..=111).contains(&end_s), "{end_s}");
}

#[test]
fn r1_is_exceeded_after_three_retransmits_and_r2_after_two_minutes() {
    let mut script = Script::established(&Config::default(), Script::full_options());
    std::sync::Arc::make_mut(&mut script.end.tcb.cfg).tail_loss_probe = false;
    script.end.tcb.update_fast_path();
    script.write(10);
    for tries in 1..=3 {
        assert!(script.end.events.is_empty(), "{tries}");
        assert_eq!(script.fire().len(), 1);
    }
    assert_eq!(script.end.events, [Event::R1Exceeded]);
    let sent = fire_until_closed(&mut script);
    // RFC 9293 section 3.8.3: R2 is 100 seconds at least.
    assert_eq!(*sent.last().unwrap(), 120);
    assert_eq!(script.end.events, [Event::R1Exceeded, Event::TimedOut, Event::Closed]);
}
