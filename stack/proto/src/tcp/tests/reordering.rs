//! RACK (RFC 8985 section 6), rule by rule, on whole connections; F-RTO; PRR.

use super::recovery::{end_seq, sack_block, sack_script, warmed_script, with_sack};
use super::{Config, Options, Script};
use crate::tcp::recovery::ca_state::CaState;
use crate::tcp::recovery::undo::Frto;
use crate::time::MICROSECOND;
use crate::wire::seq::Seq;
use crate::wire::tcp::Segment;

/// Warmed up, round-trip time 100 us, without tail loss probe and timestamps.
fn script_without_ts() -> Script {
    let options = Options { ts: None, ..Script::full_options() };
    warmed_script(options, &Config { tail_loss_probe: false, ..super::recovery::reno_config() })
}

fn seqs(segs: &[Segment]) -> Vec<Seq> {
    segs.iter().map(|seg| seg.seq).collect()
}

#[test]
fn lost_retransmission_is_detected_by_later_delivery() {
    let mut script = sack_script();
    let sent = script.write(1448 * 10);
    script.wait_us(100);
    let again = script.send(with_sack(&script, &[sack_block(&sent[1..])]));
    assert_eq!(seqs(&again), [sent[0].seq]);
    // New segments follow the retransmission; the peer SACKs them and still lacks the first.
    script.wait_us(10);
    let more = script.write(1448 * 3);
    assert_eq!(more.len(), 3);
    script.wait_us(99);
    let fields = with_sack(&script, &[(sent[1].seq, end_seq(&more[0]))]);
    let again = script.send(fields);
    assert_eq!(seqs(&again), [sent[0].seq], "sent before the delivered segment, an RTT ago");
    let stats = script.end.tcb.stats();
    assert_eq!((stats.lost_retransmits, stats.timeouts, stats.fast_recoveries), (1, 0, 1));
    // And once more, without limit.
    script.wait_us(100);
    let again = script.send(with_sack(&script, &[(sent[1].seq, end_seq(&more[2]))]));
    assert!(again.is_empty(), "nothing sent after it was delivered");
    let more = script.write(1448);
    script.wait_us(100);
    let again = script.send(with_sack(&script, &[(sent[1].seq, end_seq(&more[0]))]));
    assert_eq!(seqs(&again), [sent[0].seq]);
    script.ts.as_mut().unwrap().1 = again[0].options.ts.unwrap().0;
    script.ack = end_seq(&more[0]);
    script.wait_us(100);
    script.send(script.fields());
    assert!(script.end.tcb.all_acked());
    assert_eq!(script.end.tcb.recovery.ca_state, CaState::Open);
    assert_eq!(script.end.tcb.stats().timeouts, 0);
}

#[test]
fn loss_below_dupthresh_waits_for_reordering_timer() {
    let mut script = sack_script();
    let sent = script.write(1448 * 3);
    let start = script.now;
    script.wait_us(100);
    assert!(script.send(with_sack(&script, &[sack_block(&sent[1..])])).is_empty());
    // A quarter of the minimum RTT after the RTT of the delivered segment.
    let again = script.fire();
    assert_eq!(script.now.since(start), 125 * MICROSECOND);
    assert_eq!(seqs(&again), [sent[0].seq]);
    let stats = script.end.tcb.stats();
    assert_eq!((stats.fast_recoveries, stats.timeouts), (1, 0));
}

#[test]
fn loss_waits_for_reo_wnd_after_reordering_was_seen() {
    let mut script = sack_script();
    let sent = script.write(1448 * 3);
    script.wait_us(100);
    assert!(script.send(with_sack(&script, &[sack_block(&sent[1..])])).is_empty());
    // The first segment arrives late.
    script.wait_us(10);
    script.ack = end_seq(&sent[2]);
    assert!(script.send(script.fields()).is_empty());
    assert_eq!(script.end.tcb.stats().retransmits, 0);
    // After reordering was seen, nine SACKed segments above a hole are not enough either.
    let sent = script.write(1448 * 10);
    script.wait_us(100);
    assert!(script.send(with_sack(&script, &[sack_block(&sent[1..])])).is_empty());
    script.wait_us(20);
    script.ack = end_seq(&sent[9]);
    script.send(script.fields());
    assert_eq!(script.end.tcb.stats().retransmits, 0);
    assert!(script.end.tcb.all_acked());
    // A real loss is detected a quarter of a round trip later.
    let sent = script.write(1448 * 10);
    let start = script.now;
    script.wait_us(100);
    assert!(script.send(with_sack(&script, &[sack_block(&sent[1..])])).is_empty());
    assert_eq!(seqs(&script.fire()), [sent[0].seq]);
    assert_eq!(script.now.since(start), 125 * MICROSECOND);
}

#[test]
fn sack_blocks_newest_first_are_not_reordering() {
    let mut script = sack_script();
    let sent = script.write(1448 * 9);
    script.wait_us(100);
    let again = script.send(with_sack(&script, &[sack_block(&sent[5..]), sack_block(&sent[1..4])]));
    assert_eq!(seqs(&again), [sent[0].seq, sent[4].seq], "no wait");
}

#[test]
fn ack_within_min_rtt_of_retransmit_is_not_its_sample() {
    let mut script = script_without_ts();
    let sent = script.write(1460 * 10);
    script.wait_us(100);
    let again = script.send(with_sack(&script, &[sack_block(&sent[1..4])]));
    assert_eq!(seqs(&again), [sent[0].seq]);
    // The original was late, and is acknowledged 10 us after the retransmission. If that counted as
    // the RTT of the retransmission, all other segments would be lost, since they were sent before
    // it.
    script.wait_us(10);
    script.ack = end_seq(&sent[3]);
    assert!(script.send(script.fields()).is_empty());
    assert_eq!(script.end.tcb.pipe(), 1460 * 6);
}

#[test]
fn rto_marks_first_and_expired_segments_lost() {
    let mut script = sack_script();
    let sent = script.write(1448 * 3);
    // Sent shortly before the timer fires.
    let deadline = script.end.tcb.deadline().unwrap();
    script.now = deadline - 50 * MICROSECOND;
    let newest = script.write(1448 * 2);
    let again = script.fire();
    assert_eq!(script.now, deadline);
    assert_eq!(seqs(&again), [sent[0].seq]);
    assert_eq!(script.end.tcb.pipe(), 1448 * 3, "the retransmission and the newest segment");
    script.wait_us(100);
    script.ts.as_mut().unwrap().1 = again[0].options.ts.unwrap().0;
    script.ack = end_seq(&sent[0]);
    assert_eq!(script.send(script.fields())[0].seq, sent[1].seq);
    script.ack = end_seq(&newest[1]);
    script.send(script.fields());
    assert!(script.end.tcb.all_acked());
}

#[test]
fn retransmission_of_first_record_restarts_rto_timer() {
    let mut script = sack_script();
    let sent = script.write(1448 * 10);
    let rto = script.end.tcb.timers.rto;
    script.now = rto - 10 * MICROSECOND;
    let again = script.send(with_sack(&script, &[sack_block(&sent[1..])]));
    assert_eq!(seqs(&again), [sent[0].seq]);
    assert!(script.end.tcb.timers.rto > rto + 4_000 * MICROSECOND);
}

#[test]
fn dsack_widens_reo_wnd() {
    let mut script = sack_script();
    let mut waits = Vec::new();
    for _ in 0..3 {
        let sent = script.write(1448 * 10);
        let start = script.now;
        script.wait_us(100);
        let mut again = script.send(with_sack(&script, &[sack_block(&sent[1..])]));
        if again.is_empty() {
            again = script.fire();
        }
        waits.push(script.now.since(start) / MICROSECOND - 100);
        assert_eq!(again.len(), 1);
        // The original and the retransmission both arrive.
        script.wait_us(100);
        script.ack = end_seq(&sent[9]);
        script.ts.as_mut().unwrap().1 = again[0].options.ts.unwrap().0;
        script.send(script.fields());
        let fields = with_sack(&script, &[sack_block(&sent[..1])]);
        script.send(fields);
        assert!(script.end.tcb.all_acked());
    }
    // The undo counts as reordering: from the first DSACK on the reordering window is doubled, then
    // widened once per round, up to the smoothed RTT.
    assert_eq!(waits[0], 0);
    assert!(waits[1] >= 50 && waits[2] > waits[1] && waits[2] <= 110, "{waits:?}");
    assert_eq!(script.end.tcb.stats().spurious_recoveries, 3);
}

#[test]
fn sack_frto_undoes_spurious_rto() {
    let mut script = script_without_ts();
    let cwnd = script.end.tcb.cwnd();
    let sent = script.write(1460 * 6);
    let again = script.fire();
    assert_eq!(seqs(&again), [sent[0].seq]);
    assert_eq!(script.end.tcb.recovery.frto, Frto::AwaitFirstAck);
    // Only the ACKs were late: the first advances SND.UNA, and new segments are sent instead of
    // retransmissions.
    script.end.to_write = 1460 * 4;
    script.ack = end_seq(&sent[0]);
    let new_data = script.send(script.fields());
    assert_eq!(seqs(&new_data), [end_seq(&sent[5]), end_seq(&sent[5]) + 1460]);
    assert!(script.output().is_empty(), "no retransmission before the next ACK");
    script.ack = end_seq(&sent[2]);
    let out = script.send(script.fields());
    assert_eq!(script.end.tcb.recovery.ca_state, CaState::Open);
    assert_eq!(script.end.tcb.stats().spurious_recoveries, 1);
    assert!(script.end.tcb.cwnd() >= cwnd);
    assert_eq!(script.end.tcb.stats().retransmits, 1);
    assert_eq!(seqs(&out), [end_seq(&sent[5]) + 2 * 1460, end_seq(&sent[5]) + 3 * 1460]);
}

#[test]
fn sack_frto_keeps_genuine_rto() {
    let mut script = script_without_ts();
    let sent = script.write(1460 * 6);
    script.fire();
    script.end.to_write = 1460 * 2;
    script.ack = end_seq(&sent[0]);
    let new_data = script.send(script.fields());
    assert_eq!(new_data.len(), 2);
    // The new segments are SACKed, the others are not: those are lost.
    script.wait_us(100);
    let again = script.send(with_sack(&script, &[sack_block(&new_data)]));
    assert_eq!(again[0].seq, sent[1].seq);
    assert_eq!(script.end.tcb.stats().spurious_recoveries, 0);
    assert_eq!(script.end.tcb.recovery.ca_state, CaState::Loss);
}

#[test]
fn frto_is_off_without_new_data_to_send() {
    let mut script = script_without_ts();
    let sent = script.write(1460 * 6);
    script.fire();
    script.ack = end_seq(&sent[0]);
    let again = script.send(script.fields());
    assert_eq!(seqs(&again), [sent[1].seq, sent[2].seq], "slow start, as ever");
    assert_eq!(script.end.tcb.recovery.frto, Frto::Off);
}

#[test]
fn limited_transmit_sends_new_data_on_first_two_dupacks() {
    // RFC 3042.
    let mut script = sack_script();
    let window = script.end.tcb.cwnd() / 1448;
    script.end.to_write = 1_000_000;
    let sent = script.output();
    assert_eq!(sent.len(), window as usize);
    script.wait_us(100);
    assert_eq!(script.send(with_sack(&script, &[sack_block(&sent[1..2])])).len(), 1);
    assert_eq!(script.send(with_sack(&script, &[sack_block(&sent[1..3])])).len(), 1);
    // Also without SACK.
    let options = Options { ts: None, sack_permitted: false, ..Script::full_options() };
    let mut script = self::warmed_script(options, &super::recovery::reno_config());
    script.end.to_write = 1_000_000;
    let sent = script.output();
    assert_eq!(script.send(script.fields()).len(), 1);
    assert_eq!(script.send(script.fields()).len(), 1);
    assert_eq!(seqs(&script.send(script.fields())), [sent[0].seq]);
}

#[test]
fn prr_reduces_proportionally_and_ends_at_ssthresh() {
    let mut script = sack_script();
    script.end.to_write = 10_000_000;
    let sent = script.output();
    let count = sent.len();
    assert!(count >= 15, "{count}");
    script.wait_us(100);
    // The first segment is lost; every ACK SACKs one more.
    let mut out = Vec::new();
    for last in 1..count {
        let now = script.send(with_sack(&script, &[sack_block(&sent[1..=last])]));
        assert!(now.len() <= 2, "never a burst: {}", now.len());
        out.push(now.len());
    }
    let during: usize = out[2..].iter().sum();
    let half = count / 2;
    assert!((half - 2..=half + 2).contains(&during), "{during} of {count}: {out:?}");
    // The peer has received everything.
    let ssthresh = script.end.tcb.cc.ssthresh();
    script.wait_us(100);
    script.ts.as_mut().unwrap().1 = script.end.tcb.ts.tsval(script.now);
    script.ack = script.end.tcb.snd.nxt;
    script.deliver(&script.fields(), 0);
    assert_eq!(script.end.tcb.recovery.ca_state, CaState::Open);
    assert_eq!(script.end.tcb.cwnd(), ssthresh);
}

#[test]
fn retransmission_is_resegmented_to_smaller_emss() {
    let mut script = sack_script();
    let sent = script.write(1448 * 5);
    script.wait_us(100);
    script.end.tcb.emss = 988;
    let again = script.send(with_sack(&script, &[sack_block(&sent[1..])]));
    let pieces: Vec<_> = again.iter().map(|seg| (seg.seq, seg.payload.len())).collect();
    assert_eq!(pieces, [(sent[0].seq, 988), (sent[0].seq + 988, 460)]);
}
