//! Tail loss probe (RFC 8985 section 7): rule by rule, and between two connections in virtual time.

use super::pair::Pair;
use super::recovery::{end_seq, sack_block, warmed_script, with_sack};
use super::{Config, Options, Script};
use crate::tcp::TooBig;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};
use crate::wire::tcp::Flags;

fn warmed_up() -> Script {
    warmed_script(Script::full_options(), &super::recovery::reno_config())
}

#[test]
fn tlp_is_sent_after_pto_and_once_per_flight() {
    let mut script = warmed_up();
    let start = script.now;
    let sent = script.write(1448 * 4);
    let probe = script.fire();
    assert_eq!(probe[0].seq, sent[3].seq, "the last record");
    let waited = script.now.since(start);
    assert!((600 * MICROSECOND..620 * MICROSECOND).contains(&waited), "{waited}");
    // The retransmission timer restarts at the probe; there is no second probe.
    script.fire();
    assert!(script.now.since(start) >= 5 * MILLISECOND + waited);
    let stats = script.end.tcb.stats();
    assert_eq!((stats.tlp_probes, stats.timeouts), (1, 1));
}

#[test]
fn tlp_prefers_new_data() {
    let mut script = warmed_up();
    script.end.to_write = 10_000_000;
    let sent = script.output();
    let cwnd = script.end.tcb.cwnd();
    let probe = script.fire();
    assert_eq!((probe.len(), probe[0].seq), (1, end_seq(sent.last().unwrap())), "past the window");
    assert!(script.end.tcb.pipe() > cwnd);
    assert_eq!(script.end.tcb.stats().retransmits, 0);
    // Its ACK is no congestion signal.
    script.end.to_write = 0;
    script.wait_us(100);
    script.ack = end_seq(&probe[0]);
    script.ts.as_mut().unwrap().1 = probe[0].options.ts.unwrap().0;
    script.send(script.fields());
    assert!(script.end.tcb.cwnd() >= cwnd);
    assert_eq!(script.end.tcb.stats().tlp_repairs, 0);
}

#[test]
fn loss_repaired_by_tlp_reduces_cwnd() {
    let mut script = warmed_up();
    let cwnd = script.end.tcb.cwnd();
    let sent = script.write(1448 * 4);
    script.wait_us(100);
    script.ack = end_seq(&sent[2]);
    script.send(script.fields());
    let probe = script.fire();
    assert_eq!(probe[0].seq, sent[3].seq);
    script.wait_us(100);
    script.ts.as_mut().unwrap().1 = probe[0].options.ts.unwrap().0;
    script.ack = end_seq(&sent[3]);
    script.send(script.fields());
    // A DSACK for the probe may still arrive; the next ACK beyond it decides.
    assert_eq!(script.end.tcb.stats().tlp_repairs, 0);
    let more = script.write(1448);
    script.wait_us(100);
    script.ack = end_seq(&more[0]);
    script.ts.as_mut().unwrap().1 = more[0].options.ts.unwrap().0;
    script.send(script.fields());
    assert_eq!(script.end.tcb.stats().tlp_repairs, 1);
    assert!(script.end.tcb.cwnd() < cwnd);
}

/// A single record is probed, and both copies arrive: the peer sends a DSACK if `reports`, else a
/// second ACK. Returns the time from the record to the probe.
fn spurious_probe(script: &mut Script, reports: bool) -> u64 {
    let sent = script.write(1448);
    let start = script.now;
    assert_eq!(script.fire()[0].seq, sent[0].seq);
    let waited = script.now.since(start);
    script.wait_us(100);
    script.ack = end_seq(&sent[0]);
    // As a peer that echoes the probe's timestamp.
    script.ts.as_mut().unwrap().1 = script.end.tcb.ts.tsval(script.now);
    let mut fields = script.fields();
    if reports {
        fields.options.sack.extend([sack_block(&sent)]);
    }
    script.send(fields);
    if !reports {
        script.write(1448);
        script.send(script.fields());
    }
    waited
}

#[test]
fn spurious_tlp_does_not_reduce_cwnd() {
    for reports in [true, false] {
        let mut script = warmed_up();
        let cwnd = script.end.tcb.cwnd();
        spurious_probe(&mut script, reports);
        let stats = script.end.tcb.stats();
        assert_eq!((stats.tlp_spurious, stats.tlp_repairs, stats.spurious_recoveries), (1, 0, 0));
        assert!(script.end.tcb.cwnd() >= cwnd);
    }
}

#[test]
fn repeated_spurious_tlps_raise_pto() {
    let mut script = warmed_up();
    let first = spurious_probe(&mut script, true);
    for _ in 0..2 {
        assert!(spurious_probe(&mut script, true) < 2 * first, "a lost ACK may be the cause");
    }
    assert!(spurious_probe(&mut script, true) > 2 * first);
    assert_eq!(script.end.tcb.stats().timeouts, 0);
}

#[test]
fn tlp_covers_fin_and_is_off_without_sack() {
    let mut script = warmed_up();
    script.end.tcb.close();
    let fin = script.output();
    assert!(fin[0].flags.has(Flags::FIN));
    let start = script.now;
    let again = script.fire();
    assert!(again[0].flags.has(Flags::FIN) && again[0].seq == fin[0].seq);
    assert!(script.now.since(start) < MILLISECOND);
    let options = Options { sack_permitted: false, ..Script::full_options() };
    let mut script = warmed_up_with(options);
    script.write(1448);
    script.fire();
    assert_eq!((script.end.tcb.stats().tlp_probes, script.end.tcb.stats().timeouts), (0, 1));
}

fn warmed_up_with(options: Options) -> Script {
    warmed_script(options, &super::recovery::reno_config())
}

#[test]
fn tlp_is_not_armed_while_sack_shows_a_hole() {
    let mut script = warmed_up();
    let sent = script.write(1448 * 3);
    script.wait_us(100);
    script.send(with_sack(&script, &[sack_block(&sent[1..2])]));
    assert_eq!(script.end.tcb.timers.pto, crate::time::NEVER);
}

#[test]
fn idle_scoreboard_frees_its_memory() {
    let mut script = warmed_up();
    let sent = script.write(1448 * 3);
    script.wait_us(100);
    script.ack = end_seq(&sent[2]);
    script.send(script.fields());
    assert!(script.end.tcb.scoreboard.holds_memory());
    script.fire();
    assert!(!script.end.tcb.scoreboard.holds_memory());
    assert_eq!(script.end.tcb.deadline(), None);
}

#[test]
fn lost_tail_is_repaired_within_two_rtts_and_a_millisecond() {
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
                        pair.run_idle(200 * MICROSECOND);
                    }
                    (pair.pass_count, pair.lose_count) = (count - lost, lost);
                    worst = worst.max(pair.write(1448 * count as u64));
                    let stats = pair.client().tcb.stats();
                    assert_eq!((pair.lose_count, stats.timeouts), (0, 0), "{lost} of {count}");
                }
            }
            let allowed = 2 * rtt_us * MICROSECOND + MILLISECOND;
            assert!(worst < allowed, "rtt {rtt_us} us, warm {warm}: {worst} ns");
        }
    }
}

/// Exchanges with a peer that delays its ACKs by 40 ms. Returns the client's probes, spurious
/// probes and timeouts.
fn exchanges(records: u64, pause_ns: u64, count: u32) -> (u32, u32, u32) {
    // Each exchange has its own ACK: below two full segments the server delays it.
    let slow = Config { delayed_ack_ns: 40 * MILLISECOND, ..Config::default() };
    let mut pair = Pair::new([Config::default(), slow], 10 * MICROSECOND, 1);
    pair.server().tcb.open_window();
    // The server has seen full segments.
    pair.write(1448);
    for _ in 0..count {
        pair.client().record_len = 100;
        pair.write(100 * records);
        pair.run(SECOND, |pair| pair.ends[0].as_ref().unwrap().tcb.all_acked());
        pair.run_idle(pause_ns);
    }
    let stats = pair.client().tcb.stats();
    assert!(stats.tlp_probes <= count, "one per flight");
    (stats.tlp_probes, stats.tlp_spurious, stats.timeouts)
}

#[test]
fn acks_delayed_by_40_ms_cause_no_rto_and_few_tlps() {
    let (probes, early, timeouts) = exchanges(1, 0, 1000);
    assert_eq!(timeouts, 0);
    assert!(probes <= 8 && early <= probes, "{probes} probes, {early} early");
    let (probes, _, timeouts) = exchanges(5, MILLISECOND, 1000);
    assert_eq!(timeouts, 0);
    assert!(probes <= 8, "{probes}");
    // Idle time makes the ACK delay estimate expire; it is measured again.
    let (_, _, timeouts) = exchanges(1, 9 * SECOND, 50);
    assert_eq!(timeouts, 0);
}

#[test]
fn unsent_tlp_is_canceled_once_sack_shows_a_hole() {
    let mut script = warmed_up();
    let sent = script.write(1448 * 6);
    // The timer fires while no frame is available.
    script.now = script.end.tcb.deadline().unwrap();
    script.end.timeout(script.now);
    // Then the first record is acknowledged, the last SACKed, and the path MTU is lowered.
    script.ack = end_seq(&sent[0]);
    let fields = with_sack(&script, &[sack_block(&sent[5..])]);
    script.deliver(&fields, 0);
    let error = TooBig { seq: sent[1].seq, ack: None, mtu: Some(1000), packet_len: 1500 };
    assert!(script.end.tcb.packet_too_big(script.now, &error));
    assert_eq!(script.output()[0].seq, sent[1].seq, "the lost segment, and no probe");
    assert_eq!(script.end.tcb.stats().tlp_probes, 0);
    script.wait_us(100);
    script.ack = end_seq(&sent[5]);
    script.send(script.fields());
    assert!(script.end.tcb.all_acked());
}
