//! The tail-loss probe (RFC 8985 section 7), rule by rule, and between two ends in virtual time.

use super::pair::Pair;
use super::recovery::{block, end, script, with_sack};
use super::{Config, Options, Script};
use crate::tcp::TooBig;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};
use crate::wire::tcp::Flags;

fn warm() -> Script {
    script(Script::full_options(), &super::recovery::reno())
}

#[test]
fn a_probe_leaves_after_two_round_trips_and_counts_once() {
    let mut script = warm();
    let start = script.now;
    let sent = script.write(1448 * 4);
    let probe = script.fire();
    assert_eq!(probe[0].seq, sent[3].seq, "the last record");
    let waited = script.now.since(start);
    assert!((600 * MICROSECOND..620 * MICROSECOND).contains(&waited), "{waited}");
    // The retransmission timer counts from the probe; there is no second one.
    script.fire();
    assert!(script.now.since(start) >= 5 * MILLISECOND + waited);
    let stats = script.end.tcb.stats();
    assert_eq!((stats.tlp_probes, stats.timeouts), (1, 1));
}

#[test]
fn a_new_segment_is_the_better_probe() {
    let mut script = warm();
    script.end.to_write = 10_000_000;
    let sent = script.output();
    let cwnd = script.end.tcb.cwnd();
    let probe = script.fire();
    assert_eq!((probe.len(), probe[0].seq), (1, end(sent.last().unwrap())), "past the window");
    assert!(script.end.tcb.pipe() > cwnd);
    assert_eq!(script.end.tcb.stats().retransmits, 0);
    // Its answer says nothing about congestion.
    script.end.to_write = 0;
    script.wait_us(100);
    script.ack = end(&probe[0]);
    script.ts.as_mut().unwrap().1 = probe[0].options.ts.unwrap().0;
    script.send(script.fields());
    assert!(script.end.tcb.cwnd() >= cwnd);
    assert_eq!(script.end.tcb.stats().tlp_repairs, 0);
}

#[test]
fn a_loss_that_the_probe_repaired_counts_as_one() {
    let mut script = warm();
    let cwnd = script.end.tcb.cwnd();
    let sent = script.write(1448 * 4);
    script.wait_us(100);
    script.ack = end(&sent[2]);
    script.send(script.fields());
    let probe = script.fire();
    assert_eq!(probe[0].seq, sent[3].seq);
    script.wait_us(100);
    script.ts.as_mut().unwrap().1 = probe[0].options.ts.unwrap().0;
    script.ack = end(&sent[3]);
    script.send(script.fields());
    // A report of a duplicate may still come; the next ACK beyond decides.
    assert_eq!(script.end.tcb.stats().tlp_repairs, 0);
    let more = script.write(1448);
    script.wait_us(100);
    script.ack = end(&more[0]);
    script.ts.as_mut().unwrap().1 = more[0].options.ts.unwrap().0;
    script.send(script.fields());
    assert_eq!(script.end.tcb.stats().tlp_repairs, 1);
    assert!(script.end.tcb.cwnd() < cwnd);
}

/// A single record is probed, and both copies arrive: the peer `dsack_queue` it, or acknowledges twice.
/// Returns how long the probe waited.
fn early_probe(script: &mut Script, reports: bool) -> u64 {
    let sent = script.write(1448);
    let start = script.now;
    assert_eq!(script.fire()[0].seq, sent[0].seq);
    let waited = script.now.since(start);
    script.wait_us(100);
    script.ack = end(&sent[0]);
    // As a peer does that takes the probe's timestamp.
    script.ts.as_mut().unwrap().1 = script.end.tcb.ts.tsval(script.now);
    let mut fields = script.fields();
    if reports {
        fields.options.sack.extend([block(&sent)]);
    }
    script.send(fields);
    if !reports {
        script.write(1448);
        script.send(script.fields());
    }
    waited
}

#[test]
fn a_probe_that_was_not_needed_costs_nothing() {
    for reports in [true, false] {
        let mut script = warm();
        let cwnd = script.end.tcb.cwnd();
        early_probe(&mut script, reports);
        let stats = script.end.tcb.stats();
        assert_eq!((stats.tlp_early, stats.tlp_repairs, stats.spurious_recoveries), (1, 0, 0));
        assert!(script.end.tcb.cwnd() >= cwnd);
    }
}

#[test]
fn probes_that_are_not_needed_again_and_again_teach_patience() {
    let mut script = warm();
    let first = early_probe(&mut script, true);
    for _ in 0..2 {
        assert!(early_probe(&mut script, true) < 2 * first, "may be the doing of a lost ACK");
    }
    assert!(early_probe(&mut script, true) > 2 * first);
    assert_eq!(script.end.tcb.stats().timeouts, 0);
}

#[test]
fn a_fin_is_probed_too_and_a_peer_without_sack_is_not() {
    let mut script = warm();
    script.end.tcb.close();
    let fin = script.output();
    assert!(fin[0].flags.has(Flags::FIN));
    let start = script.now;
    let again = script.fire();
    assert!(again[0].flags.has(Flags::FIN) && again[0].seq == fin[0].seq);
    assert!(script.now.since(start) < MILLISECOND);
    let options = Options { sack_permitted: false, ..Script::full_options() };
    let mut script = script_of(options);
    script.write(1448);
    script.fire();
    assert_eq!((script.end.tcb.stats().tlp_probes, script.end.tcb.stats().timeouts), (0, 1));
}

fn script_of(options: Options) -> Script {
    script(options, &super::recovery::reno())
}

#[test]
fn no_probe_while_reports_tell_of_a_hole() {
    let mut script = warm();
    let sent = script.write(1448 * 3);
    script.wait_us(100);
    script.send(with_sack(&script, &[block(&sent[1..2])]));
    assert_eq!(script.end.tcb.timers.pto, crate::tcp::NEVER);
}

#[test]
fn the_records_memory_is_given_back_when_idle() {
    let mut script = warm();
    let sent = script.write(1448 * 3);
    script.wait_us(100);
    script.ack = end(&sent[2]);
    script.send(script.fields());
    assert!(script.end.tcb.scoreboard.holds_memory());
    script.fire();
    assert!(!script.end.tcb.scoreboard.holds_memory());
    assert_eq!(script.end.tcb.deadline(), None);
}

#[test]
fn a_lost_tail_is_repaired_within_two_round_trips_and_a_millisecond() {
    for rtt_us in [10, 20, 100] {
        for warm in [0, 30] {
            let delay_ns = rtt_us * MICROSECOND / 2;
            let mut worst = 0;
            for count in 1..=10 {
                for lost in 1..=count.min(4) {
                    let cfg = [Config::default(), Config::default()];
                    let mut pair = Pair::new(cfg, delay_ns, 1);
                    pair.server().tcb.open_window();
                    for _ in 0..warm {
                        pair.write(5000);
                        pair.settle(200 * MICROSECOND);
                    }
                    (pair.pass, pair.lose) = (count - lost, lost);
                    worst = worst.max(pair.write(1448 * count as u64));
                    let stats = pair.client().tcb.stats();
                    assert_eq!((pair.lose, stats.timeouts), (0, 0), "{lost} of {count}");
                }
            }
            let allowed = 2 * rtt_us * MICROSECOND + MILLISECOND;
            assert!(worst < allowed, "rtt {rtt_us} us, warm {warm}: {worst} ns");
        }
    }
}

/// Exchanges with a peer that delays its ACKs by 40 ms. Returns probes and timeouts of the client.
fn exchanges(records: u64, pause_ns: u64, count: u32) -> (u32, u32, u32) {
    // A record of its own acknowledgment each: below two full segments, the server waits.
    let slow = Config { delayed_ack_ns: 40 * MILLISECOND, ..Config::default() };
    let mut pair = Pair::new([Config::default(), slow], 10 * MICROSECOND, 1);
    pair.server().tcb.open_window();
    // The server has seen full segments.
    pair.write(1448);
    for _ in 0..count {
        pair.client().record_len = 100;
        pair.write(100 * records);
        pair.run(SECOND, |pair| pair.ends[0].as_ref().unwrap().tcb.all_acked());
        pair.settle(pause_ns);
    }
    let stats = pair.client().tcb.stats();
    assert!(stats.tlp_probes <= count, "one per flight");
    (stats.tlp_probes, stats.tlp_early, stats.timeouts)
}

#[test]
fn a_peer_that_delays_acks_by_40_ms_causes_no_timeout_and_few_probes() {
    let (probes, early, timeouts) = exchanges(1, 0, 1000);
    assert_eq!(timeouts, 0);
    assert!(probes <= 8 && early <= probes, "{probes} probes, {early} early");
    let (probes, _, timeouts) = exchanges(5, MILLISECOND, 1000);
    assert_eq!(timeouts, 0);
    assert!(probes <= 8, "{probes}");
    // After a silence that makes it forget, it learns anew.
    let (_, _, timeouts) = exchanges(1, 9 * SECOND, 50);
    assert_eq!(timeouts, 0);
}

#[test]
fn a_probe_that_could_not_leave_is_not_wanted_once_the_peer_reported_a_hole() {
    let mut script = warm();
    let sent = script.write(1448 * 6);
    // The timer fires, and no frame is to be had.
    script.now = script.end.tcb.deadline().unwrap();
    script.end.timeout(script.now);
    // Then the first record is acknowledged, the last reported, and the path turns out narrower.
    script.ack = end(&sent[0]);
    let fields = with_sack(&script, &[block(&sent[5..])]);
    script.deliver(&fields, 0);
    let error = TooBig { seq: sent[1].seq, ack: None, mtu: Some(1000), packet_len: 1500 };
    assert!(script.end.tcb.packet_too_big(script.now, &error));
    assert_eq!(script.output()[0].seq, sent[1].seq, "what is missing, and no probe");
    assert_eq!(script.end.tcb.stats().tlp_probes, 0);
    script.wait_us(100);
    script.ack = end(&sent[5]);
    script.send(script.fields());
    assert!(script.end.tcb.all_acked());
}
