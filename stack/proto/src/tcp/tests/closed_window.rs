//! Windows: closed, small, reopened; split records; unconsumed data; persist, delayed ACK and
//! keepalive timers.

use super::{Config, Event, Fields, Flags, Options, Script};
use crate::tcp::TooBig;
use crate::time::{MICROSECOND, SECOND};

fn script(cfg: &Config, window: u16) -> Script {
    // Without window scaling, so that the field is the window.
    let options = Options { wscale: None, ..Script::full_options() };
    let mut script = Script::established(cfg, options);
    script.window = window;
    script.send(script.fields());
    script
}

#[test]
fn zero_window_is_probed_without_new_data() {
    let mut script = script(&Config::default(), 0);
    assert!(script.write(5000).is_empty());
    let mut wait = 0;
    for _ in 0..4 {
        let before = script.now;
        let probe = script.fire();
        assert_eq!(probe.len(), 1);
        assert_eq!((probe[0].seq, probe[0].flags), (script.ack - 1, Flags::ACK));
        assert!(probe[0].payload.is_empty());
        assert!(script.now.since(before) >= 2 * wait || wait == 0, "no backoff");
        wait = script.now.since(before);
        script.send(script.fields());
    }
    script.window = 60_000;
    let out = script.send(script.fields());
    assert_eq!(out.iter().map(|seg| seg.payload.len()).sum::<usize>(), 5000);
}

#[test]
fn unanswered_zero_window_probes_time_out() {
    let cfg = Config { data_retries: 3, ..Config::default() };
    let mut script = script(&cfg, 0);
    script.write(10);
    for _ in 0..3 {
        assert_eq!(script.fire().len(), 1);
    }
    let last = script.fire();
    assert!(last[0].flags.has(Flags::RST));
    assert_eq!(script.end.events, [Event::TimedOut, Event::Closed]);
}

#[test]
fn answered_zero_window_probes_never_time_out() {
    let cfg = Config { data_retries: 3, user_timeout_ns: SECOND, ..Config::default() };
    let mut script = script(&cfg, 0);
    script.write(10);
    for _ in 0..30 {
        script.fire();
        script.send(script.fields());
    }
    assert!(script.end.events.is_empty());
    // The same with data in flight: the window closed after it was sent.
    script.window = 60_000;
    assert_eq!(script.send(script.fields()).len(), 1);
    script.window = 0;
    for _ in 0..30 {
        script.send(script.fields());
        script.fire();
    }
    assert!(script.end.events.is_empty());
}

#[test]
fn record_larger_than_window_is_split() {
    let mut script = script(&Config::default(), 60_000);
    let all = script.write(1448 * 20);
    script.ack += 1448 * u32::try_from(all.len()).unwrap();
    let rest = 1448 * (20 - all.len() as u64);
    // The window shrinks to 600: below half of the largest, so that only the override timer sends.
    script.window = 600;
    assert!(script.send(script.fields()).is_empty());
    let mut sent = 0;
    let mut rounds = 0;
    while sent < rest {
        let out = script.fire();
        for seg in &out {
            assert!(seg.payload.len() <= 600);
            assert_eq!(seg.seq, script.ack);
            sent += seg.payload.len() as u64;
            script.ack += seg.seq_len();
        }
        script.send(script.fields());
        rounds += 1;
        assert!(rounds < 200);
    }
    assert!(script.end.tcb.stats().resegments > 0);
    assert!(script.end.tcb.all_acked());
}

#[test]
fn window_small_from_the_start_is_used() {
    let mut script = script(&Config::default(), 200);
    script.end.tcb.snd.max_wnd = 200;
    let out = script.write(450);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].payload.len(), 200);
    script.ack += 200;
    let out = script.send(script.fields());
    assert_eq!(out[0].payload.len(), 200, "half the largest window is no silly window");
    script.ack += 200;
    assert_eq!(script.send(script.fields())[0].payload.len(), 50);
}

// req-test: MPA-106
#[test]
fn retransmits_keep_boundaries_of_split_records() {
    let mut script = script(&Config::default(), 200);
    script.end.tcb.snd.max_wnd = 200;
    script.window = 300;
    let out = script.write(1000);
    assert_eq!(out[0].payload.len(), 200);
    let again = script.fire();
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].seq, again[0].payload.len()), (out[0].seq, 200));
}

// req-test: MPA-101, DDP-019, DDP-020
#[test]
fn smaller_emss_resegments_accepted_records() {
    let mut script = script(&Config::default(), 60_000);
    let out = script.write(1448 * 3);
    assert_eq!(out.len(), 3);
    let error = TooBig { seq: out[0].seq, ack: None, mtu: Some(640), packet_len: 1500 };
    assert!(script.end.tcb.packet_too_big(script.now, &error));
    assert_eq!(script.end.tcb.emss(), 588);
    // Each record is resegmented by itself: 588, 588 and 272.
    let again: Vec<_> = script.output().iter().map(|seg| (seg.seq, seg.payload.len())).collect();
    let base = out[0].seq;
    let pieces = [(0, 588), (588, 588), (1176, 272)];
    let expected = [0, 1448, 2896].into_iter().flat_map(|at| pieces.map(|(o, len)| (at + o, len)));
    assert_eq!(again, expected.map(|(at, len)| (base + at, len)).collect::<Vec<_>>());
    script.ack += 1448 * 3;
    script.send(script.fields());
    assert!(script.end.tcb.all_acked());
    assert_eq!(script.end.events, [Event::EmssChanged]);
    let next = script.write(2000);
    assert_eq!(next.iter().map(|seg| seg.payload.len()).collect::<Vec<_>>(), [588, 588, 588, 236]);
}

#[test]
fn startup_window_opens_with_one_ack() {
    let cfg = Config::default();
    let mut script = Script::established(&cfg, Script::full_options());
    assert_eq!(script.end.tcb.rcv.window(), cfg.startup_window);
    script.end.tcb.open_window();
    let out = script.output();
    assert_eq!(out.len(), 1);
    assert_eq!(u32::from(out[0].window) << 7, cfg.recv_window);
    assert!(script.output().is_empty());
}

#[test]
fn unconsumed_data_closes_window_and_consuming_reopens_it() {
    let cfg = Config { recv_window: 20_000, startup_window: 20_000, ..Config::default() };
    let mut script = script(&cfg, 60_000);
    script.end.unconsumed_max = u32::MAX;
    let mut edge = None;
    while script.end.tcb.rcv.window() > 0 {
        let len = 1000.min(script.end.tcb.rcv.window());
        for seg in script.send_data(script.fields(), len as usize) {
            let right = seg.ack + u32::from(seg.window);
            assert!(edge.is_none_or(|edge| right >= edge));
            edge = Some(right);
        }
        script.seq += len;
    }
    // A segment beyond the window is dropped, its ACK is processed.
    let sent = script.write(10);
    assert_eq!(sent.len(), 1);
    script.ack += 10;
    let out = script.send_data(script.fields(), 100);
    assert_eq!(out[0].window, 0);
    assert!(script.end.tcb.all_acked());
    assert_eq!(script.end.read, 20_000);
    script.end.consume();
    let out = script.output();
    assert_eq!((out.len(), out[0].window), (1, 20_000));
}

#[test]
fn ack_is_sent_at_second_segment_or_after_delay() {
    let mut script = script(&Config::default(), 60_000);
    script.send_data(script.fields(), 1000);
    script.seq += 1000;
    let start = script.now;
    let out = script.fire();
    assert_eq!((out.len(), script.now.since(start)), (1, 50 * MICROSECOND));
    assert_eq!(out[0].ack, script.seq);
    // One ACK for a burst.
    for _ in 0..10 {
        script.deliver(&script.fields(), 1000);
        script.seq += 1000;
    }
    let out = script.output();
    assert_eq!((out.len(), out[0].ack), (1, script.seq));
    // Data carries the ACK.
    script.deliver(&script.fields(), 1000);
    script.seq += 1000;
    let out = script.write(10);
    assert_eq!((out.len(), out[0].ack), (1, script.seq));
    assert!(script.output().is_empty() && script.end.tcb.timers.delayed_ack == crate::time::NEVER);
}

#[test]
fn send_window_and_record_limit_bound_transmission() {
    let cfg = Config { max_records: 4, ..Config::default() };
    let mut limited = script(&cfg, 60_000);
    limited.end.record_len = 10;
    assert_eq!(limited.write(1000).len(), 4);
    let mut limited = script(&Config::default(), 5000);
    let sent: usize = limited.write(100_000).iter().map(|seg| seg.payload.len()).sum();
    assert!(sent <= 5000 && sent > 5000 - 1448);
}

#[test]
fn unanswered_keepalives_time_out() {
    let cfg = Config { keepalive_ns: Some(SECOND), data_retries: 2, ..Config::default() };
    let mut script = script(&cfg, 1000);
    let probe = script.fire();
    assert_eq!((probe.len(), probe[0].seq), (1, script.ack - 1));
    script.send(script.fields());
    let probe = script.fire();
    assert!(probe.is_empty() || probe[0].seq == script.ack - 1);
    for _ in 0..10 {
        if script.end.tcb.deadline().is_none() {
            break;
        }
        script.fire();
    }
    assert_eq!(script.end.events, [Event::TimedOut, Event::Closed]);
}

#[test]
fn fin_at_the_end_of_a_full_window_is_accepted() {
    let cfg = Config { recv_window: 2000, startup_window: 2000, ..Config::default() };
    let mut script = script(&cfg, 60_000);
    script.end.unconsumed_max = u32::MAX;
    let fin = Fields { flags: Flags::FIN | Flags::ACK, ..script.fields() };
    let out = script.send_data(fin, 2000);
    assert_eq!(out.last().unwrap().ack, script.seq + 2001);
    assert!(script.end.tcb.peer_finished());
}
