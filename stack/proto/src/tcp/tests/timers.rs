//! How long a silent peer is waited for: keepalive, user timeout, R1 and R2 of RFC 9293 section
//! 3.8.3.

use super::{Config, Event, Script};
use crate::time::SECOND;

fn seconds(script: &Script) -> u64 {
    (script.now.since(super::at(1_000_000))) / SECOND
}

/// Fires what is due until the connection is gone; when something was sent, in seconds.
fn run_out(script: &mut Script) -> Vec<u64> {
    let mut sent = Vec::new();
    while script.end.tcb.deadline().is_some() {
        let out = script.fire();
        sent.extend((!out.is_empty()).then(|| seconds(script)));
        assert!(sent.len() < 100);
    }
    sent
}

#[test]
fn an_idle_connection_is_left_alone_unless_told_otherwise() {
    let script = Script::established(&Config::default(), Script::full_options());
    assert_eq!(script.end.tcb.deadline(), None);
}

#[test]
fn keepalive_has_its_idle_time_interval_and_count() {
    let cfg = Config {
        keepalive_ns: Some(10 * SECOND),
        keepalive_interval_ns: 2 * SECOND,
        keepalive_count: 3,
        ..Config::default()
    };
    let mut script = Script::established(&cfg, Script::full_options());
    // One that answers goes on being asked when it was idle for the whole time again.
    let probe = script.fire();
    assert_eq!((probe[0].seq, probe[0].payload.len(), seconds(&script)), (script.ack - 1, 0, 10));
    script.send(script.fields());
    // Three probes, and then a RST.
    assert_eq!(run_out(&mut script), [20, 22, 24, 26]);
    assert_eq!(script.end.notices, [Event::TimedOut, Event::Closed]);
}

#[test]
fn a_closed_window_without_answers_ends_at_the_user_timeout() {
    let cfg = Config { user_timeout_ns: 7 * SECOND, ..Config::default() };
    let mut script = Script::established(&cfg, Script::full_options());
    script.window = 0;
    script.send(script.fields());
    script.now = script.now + 50 * SECOND;
    script.write(10);
    assert_eq!(*run_out(&mut script).last().unwrap(), 57, "idle before does not count");
    assert_eq!(script.end.notices, [Event::TimedOut, Event::Closed]);
}

#[test]
fn a_window_closed_behind_octets_ends_at_the_user_timeout_too() {
    let cfg = Config { user_timeout_ns: 7 * SECOND, ..Config::default() };
    let mut script = Script::established(&cfg, Script::full_options());
    script.write(10);
    script.now = script.now + SECOND / 10;
    // The peer lives, and takes nothing; then it is silent.
    script.window = 0;
    script.send(script.fields());
    let heard = seconds(&script);
    assert_eq!(*run_out(&mut script).last().unwrap(), heard + 7);
    assert_eq!(script.end.notices, [Event::R1Exceeded, Event::TimedOut, Event::Closed]);
}

#[test]
fn a_closed_window_with_answers_never_ends() {
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
    assert!(seconds(&script) > 20 * 60 && script.end.notices.is_empty());
}

#[test]
fn the_way_is_doubted_after_three_tries_and_the_peer_after_two_minutes() {
    let mut script = Script::established(&Config::default(), Script::full_options());
    std::sync::Arc::make_mut(&mut script.end.tcb.cfg).tail_loss_probe = false;
    script.end.tcb.update_fast_path();
    script.write(10);
    for tries in 1..=3 {
        assert!(script.end.notices.is_empty(), "{tries}");
        assert_eq!(script.fire().len(), 1);
    }
    assert_eq!(script.end.notices, [Event::R1Exceeded]);
    let sent = run_out(&mut script);
    // RFC 9293 section 3.8.3: R2 is 100 seconds at least.
    assert_eq!(*sent.last().unwrap(), 120);
    assert_eq!(script.end.notices, [Event::R1Exceeded, Event::TimedOut, Event::Closed]);
}
