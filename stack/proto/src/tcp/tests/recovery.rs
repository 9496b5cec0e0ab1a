//! Loss recovery: fast retransmit with and without SACK, timeouts, undo, tail loss probe.

use super::{Config, Fields, Options, Script, Seq};
use crate::tcp::Algorithm;
use crate::time::{MILLISECOND, SECOND};
use crate::wire::tcp::{SackBlock, Segment};

/// An established connection with warm RTT estimates and a window of 40 segments.
pub(super) fn warmed_script(options: Options, cfg: &Config) -> Script {
    let mut script = Script::established(cfg, options);
    for _ in 0..20 {
        let out = script.write(14_000);
        script.wait_us(100);
        if let Some((_, echo)) = &mut script.ts {
            *echo = out.last().unwrap().options.ts.unwrap().0;
        }
        script.ack = end_seq(out.last().unwrap());
        script.send(script.fields());
    }
    assert!(script.end.tcb.all_acked());
    script
}

pub(super) fn sack_script() -> Script {
    warmed_script(Script::full_options(), &Config { tail_loss_probe: false, ..reno_config() })
}

fn script_without_sack() -> Script {
    let options = Options { ts: None, sack_permitted: false, ..Script::full_options() };
    warmed_script(options, &reno_config())
}

/// Congestion windows that are easy to compute.
pub(super) fn reno_config() -> Config {
    Config { congestion: Algorithm::NewReno, ..Config::default() }
}

pub(super) fn end_seq(seg: &Segment) -> Seq {
    seg.seq + seg.seq_len()
}

pub(super) fn sack_block(segs: &[Segment]) -> SackBlock {
    (segs[0].seq, end_seq(segs.last().unwrap()))
}

pub(super) fn with_sack(script: &Script, blocks: &[SackBlock]) -> Fields {
    let mut fields = script.fields();
    fields.options.sack.extend(blocks.iter().copied());
    fields
}

#[test]
fn old_recovery_point_does_not_suppress_fast_retransmit() {
    let mut script = script_without_sack();
    // More than half of the sequence space was sent since then.
    script.end.tcb.recovery.recovery_point = script.ack - 0x9000_0000;
    let sent = script.write(1460 * 5);
    for _ in 0..2 {
        assert!(script.send(script.fields()).is_empty());
    }
    let again = script.send(script.fields());
    assert_eq!(again[0].seq, sent[0].seq);
}

#[test]
fn sack_retransmits_each_hole_once() {
    let mut script = sack_script();
    let sent = script.write(1448 * 10);
    script.wait_us(100);
    // 0 and 4 are lost; the rest arrives and is SACKed in one ACK.
    let fields = with_sack(&script, &[sack_block(&sent[5..]), sack_block(&sent[1..4])]);
    let again = script.send(fields.clone());
    let seqs: Vec<Seq> = again.iter().map(|seg| seg.seq).collect();
    assert_eq!(seqs, [sent[0].seq, sent[4].seq]);
    assert_eq!(again[0].payload.len(), sent[0].payload.len());
    assert!(script.send(fields).is_empty(), "a repeated SACK block adds nothing");
    assert_eq!(script.end.tcb.stats().fast_recoveries, 1);
    let cwnd = script.end.tcb.cwnd();
    assert_eq!(cwnd, 1448 * 5, "half of the flight");
    script.ts.as_mut().unwrap().1 = again[0].options.ts.unwrap().0;
    script.ack = end_seq(&sent[9]);
    script.send(script.fields());
    assert!(script.end.tcb.all_acked());
    assert_eq!(script.end.tcb.recovery.ca_state, crate::tcp::recovery::ca_state::CaState::Open);
    assert_eq!(script.end.tcb.stats().timeouts, 0);
}

#[test]
fn segments_below_dupthresh_trigger_no_fast_retransmit() {
    let mut script = sack_script();
    let sent = script.write(1448 * 10);
    assert!(script.send(with_sack(&script, &[sack_block(&sent[1..3])])).is_empty());
    assert!(!script.send(with_sack(&script, &[sack_block(&sent[1..4])])).is_empty());
}

#[test]
fn invalid_sack_blocks_are_ignored() {
    let mut script = sack_script();
    let sent = script.write(1448 * 10);
    let (una, nxt) = (sent[0].seq, end_seq(&sent[9]));
    let hostile: [SackBlock; 3] = [(una - 5000, una + 1448), (una + 2000, nxt + 1), (nxt, una)];
    for block in hostile {
        assert!(script.send(with_sack(&script, &[block])).is_empty());
    }
    assert_eq!(script.end.tcb.pipe(), 1448 * 10);
    // A record that is SACKed in part does not count as SACKed.
    script.send(with_sack(&script, &[(una + 1500, una + 1448 * 6 + 5)]));
    assert_eq!(script.end.tcb.pipe(), 1448 * 10 - 1448 * 4 - 1448 * 2 + 1448);
}

#[test]
fn newreno_retransmits_on_three_dupacks_and_each_partial_ack() {
    let mut script = script_without_sack();
    let sent = script.write(1460 * 10);
    // 0 and 5 are lost.
    assert!(script.send(script.fields()).is_empty());
    assert!(script.send(script.fields()).is_empty());
    let again = script.send(script.fields());
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].seq, again[0].payload.len()), (sent[0].seq, 1460));
    for _ in 0..5 {
        assert!(script.send(script.fields()).is_empty());
    }
    script.ack = sent[5].seq;
    let again = script.send(script.fields());
    assert_eq!((again.len(), again[0].seq), (1, sent[5].seq));
    script.ack = end_seq(&sent[9]);
    script.send(script.fields());
    assert!(script.end.tcb.all_acked());
    let stats = script.end.tcb.stats();
    assert_eq!((stats.fast_recoveries, stats.retransmits, stats.timeouts), (1, 2, 0));
    assert_eq!(stats.recoveries_ended, 1);
}

#[test]
fn dupacks_in_recovery_release_new_segments() {
    let mut script = script_without_sack();
    script.write(1460 * 20);
    for _ in 0..3 {
        script.send(script.fields());
    }
    script.end.to_write = 100_000;
    let mut new_segments = 0;
    for _ in 0..15 {
        new_segments += script.send(script.fields()).len();
    }
    assert!((5..=10).contains(&new_segments), "{new_segments}");
}

#[test]
fn rto_retransmits_from_snd_una_and_backs_off() {
    let mut script = sack_script();
    let start = script.now;
    let sent = script.write(1448 * 4);
    let first = script.fire();
    let waited = script.now.since(start);
    assert!((5 * MILLISECOND..6 * MILLISECOND).contains(&waited), "{waited}");
    assert_eq!((first.len(), first[0].seq), (1, sent[0].seq));
    assert_eq!(script.end.tcb.cwnd(), 1448);
    let before = script.now;
    assert_eq!(script.fire()[0].seq, sent[0].seq);
    assert_eq!(script.now.since(before), 2 * waited);
    // The ACK answers the retransmission: slow start from there.
    script.wait_us(100);
    script.ts.as_mut().unwrap().1 = first[0].options.ts.unwrap().0;
    script.ack = end_seq(&sent[0]);
    let more = script.send(script.fields());
    assert_eq!(more.iter().map(|seg| seg.seq).collect::<Vec<_>>(), [sent[1].seq, sent[2].seq]);
    assert_eq!(script.end.tcb.stats().spurious_recoveries, 0);
}

#[test]
fn eifel_undoes_spurious_rto() {
    let mut script = sack_script();
    let cwnd = script.end.tcb.cwnd();
    let sent = script.write(1448 * 4);
    script.fire();
    assert!(script.end.tcb.cwnd() < cwnd);
    // The ACK of the original arrives late, echoing its timestamp.
    script.ts.as_mut().unwrap().1 = sent[0].options.ts.unwrap().0;
    script.ack = end_seq(&sent[0]);
    assert!(script.send(script.fields()).is_empty(), "the others are in flight, too");
    assert_eq!(script.end.tcb.cwnd(), cwnd);
    let stats = script.end.tcb.stats();
    assert_eq!((stats.timeouts, stats.spurious_recoveries), (1, 1));
    // The wait counts as a sample of the peer's ACK delay.
    let rto = script.end.tcb.rtt.rto(&script.end.tcb.cfg);
    assert!(rto > 5 * MILLISECOND && rto <= 200 * MILLISECOND, "{rto} ns");
}

#[test]
fn dsack_undoes_spurious_rto_without_timestamps() {
    let options = Options { ts: None, ..Script::full_options() };
    let mut script =
        warmed_script(options, &Config { tail_loss_probe: false, ..Config::default() });
    let cwnd = script.end.tcb.cwnd();
    let sent = script.write(1460 * 2);
    let again = script.fire();
    assert_eq!(again.len(), 1);
    script.ack = end_seq(&sent[1]);
    script.send(script.fields());
    assert!(script.end.tcb.cwnd() < cwnd);
    let fields = with_sack(&script, &[sack_block(&sent[..1])]);
    script.send(fields);
    assert!(script.end.tcb.cwnd() >= cwnd);
    assert_eq!(script.end.tcb.stats().spurious_recoveries, 1);
}

#[test]
fn eifel_undoes_fast_retransmit_after_reordering() {
    let mut script = sack_script();
    let sent = script.write(1448 * 10);
    let again = script.send(with_sack(&script, &[sack_block(&sent[1..4])]));
    assert_eq!(again.len(), 1);
    script.ts.as_mut().unwrap().1 = sent[0].options.ts.unwrap().0;
    script.ack = end_seq(&sent[3]);
    script.wait_us(50);
    // Timestamps within one microsecond do not distinguish the original from the retransmission.
    script.send(script.fields());
    let spurious = script.end.tcb.stats().spurious_recoveries;
    let same_tick = again[0].options.ts == sent[0].options.ts;
    assert_eq!(spurious, u32::from(!same_tick));
}

#[test]
fn reneging_clears_sacked_marks() {
    let mut script = sack_script();
    let sent = script.write(1448 * 4);
    script.send(with_sack(&script, &[sack_block(&sent[1..])]));
    script.ts.as_mut().unwrap().1 = script.end.tcb.ts.tsval(script.now);
    script.ack = end_seq(&sent[0]);
    script.send(script.fields());
    // The peer acknowledges no more than 0, though it SACKed 1: the timer retransmits 1.
    let again = script.fire();
    assert_eq!(again[0].seq, sent[1].seq);
    script.end.tcb.scoreboard.check(true);
}

#[test]
fn overrun_rto_timer_is_rearmed_once() {
    let mut script = sack_script();
    script.write(1448);
    let deadline = script.end.tcb.deadline().unwrap();
    script.now = deadline + 50 * MILLISECOND;
    script.end.timeout(script.now);
    assert!(script.output().is_empty());
    script.now = script.end.tcb.deadline().unwrap() + 50 * MILLISECOND;
    script.end.timeout(script.now);
    assert_eq!(script.output().len(), 1);
}

#[test]
fn user_timeout_closes_connection() {
    let cfg = Config { user_timeout_ns: 2 * SECOND, data_retries: 255, ..Config::default() };
    let mut script = warmed_script(Script::full_options(), &cfg);
    let start = script.now;
    script.write(10);
    while script.end.tcb.deadline().is_some() {
        script.fire();
    }
    let expected = [super::Event::R1Exceeded, super::Event::TimedOut, super::Event::Closed];
    assert_eq!(script.end.events, expected);
    // Whatever the backoff, with the resolution of `CoarseInstant`.
    let overrun = script.now.since(start) - 2 * SECOND;
    assert!(overrun <= 1 << 16, "{overrun} ns");
}

#[test]
fn timer_overrun_at_user_timeout_does_not_double_the_wait() {
    let cfg = Config { user_timeout_ns: 5 * SECOND, data_retries: 255, ..Config::default() };
    let mut script = warmed_script(Script::full_options(), &cfg);
    let start = script.now;
    script.write(10);
    while script.end.tcb.deadline().is_some_and(|next| next < start + 5 * SECOND) {
        script.fire();
    }
    // The timer that ends the connection, after several backoffs, fires late.
    script.now = script.end.tcb.deadline().unwrap() + 50 * MILLISECOND;
    script.end.timeout(script.now);
    assert!(!script.end.tcb.is_closed());
    script.fire();
    assert!(script.end.tcb.is_closed());
    let overrun = script.now.since(start) - 5 * SECOND;
    assert!(overrun < SECOND / 2, "{overrun} ns");
}

#[test]
fn tlp_is_sent_before_rto() {
    let mut script = warmed_script(Script::full_options(), &Config::default());
    let start = script.now;
    let sent = script.write(1448 * 4);
    let probe = script.fire();
    assert_eq!((probe.len(), probe[0].seq), (1, sent[3].seq));
    assert!(script.now.since(start) < 5 * MILLISECOND);
    assert_eq!(script.end.tcb.stats().timeouts, 0);
    // The peer SACKs the probe: the segments before it are lost.
    script.wait_us(100);
    let again = script.send(with_sack(&script, &[sack_block(&sent[3..])]));
    assert_eq!(again[0].seq, sent[0].seq);
    assert_eq!(script.end.tcb.stats().timeouts, 0);
    // One probe per flight, then the retransmission timeout.
    let mut script = self::warmed_script(Script::full_options(), &Config::default());
    script.write(1448);
    script.fire();
    script.fire();
    let stats = script.end.tcb.stats();
    assert_eq!((stats.tlp_probes, stats.timeouts), (1, 1));
}

#[test]
fn unused_cwnd_does_not_grow_and_idle_cwnd_restarts() {
    let mut script = warmed_script(Script::full_options(), &Config::default());
    let cwnd = script.end.tcb.cwnd();
    assert!(cwnd > 20_000);
    for _ in 0..100 {
        script.wait_us(10);
        script.ack = end_seq(&script.write(100)[0]);
        script.send(script.fields());
    }
    assert_eq!(script.end.tcb.cwnd(), cwnd);
    script.wait_us(1_000_000);
    script.write(100);
    assert_eq!(script.end.tcb.cwnd(), 14_480);
}
