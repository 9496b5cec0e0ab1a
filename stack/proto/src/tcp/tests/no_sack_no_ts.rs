//! Peers with neither SACK nor timestamps, such as lwIP: nothing shows which transmission of a
//! segment an ACK answers (Karn), so that no RTT sample corrects a timeout that is too short.

use super::pair::Pair;
use super::recovery::{end_seq, reno_config};
use super::{Config, Options, Script};
use crate::tcp::recovery::ca_state::CaState;
use crate::tcp::recovery::undo::Frto;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};
use crate::wire::seq::Seq;
use crate::wire::tcp::Segment;

const MSS: u32 = 1460;

fn options() -> Options {
    Options { ts: None, sack_permitted: false, ..Script::full_options() }
}

/// An established connection with a measured round trip of 100 us and a window of 40 segments.
fn warmed_up() -> Script {
    let mut script = Script::established(&reno_config(), options());
    for _ in 0..20 {
        let sent = script.write(u64::from(MSS) * 10);
        script.wait_us(100);
        script.ack = end_seq(sent.last().unwrap());
        script.send(script.fields());
    }
    assert!(script.end.tcb.all_acked());
    script
}

fn seqs(segments: &[Segment]) -> Vec<Seq> {
    segments.iter().map(|seg| seg.seq).collect()
}

#[test]
fn lone_segment_with_delayed_ack_is_not_retransmitted() {
    let plain = Config { sack: false, timestamps: false, ..Config::default() };
    let slow = Config { delayed_ack_ns: 150 * MILLISECOND, ..plain.clone() };
    let mut pair = Pair::new([plain, slow], 10 * MICROSECOND, 1);
    pair.server().tcb.open_window();
    // Full segments in pairs are acknowledged at once: all RTT samples are short.
    for _ in 0..30 {
        pair.write(u64::from(MSS) * 2);
        pair.run_idle(MILLISECOND);
    }
    for _ in 0..50 {
        pair.write(100);
        pair.run(SECOND, |pair| pair.ends[0].as_ref().unwrap().tcb.all_acked());
        pair.run_idle(MILLISECOND);
    }
    let stats = pair.client().tcb.stats();
    assert_eq!((stats.timeouts, stats.retransmits), (0, 0), "{stats:?}");
}

#[test]
fn rto_is_not_lowered_below_initial_value() {
    let script = warmed_up();
    let tcb = &script.end.tcb;
    assert_eq!(tcb.rtt.rto(&tcb.cfg), tcb.cfg.rto_initial_ns);
    assert_eq!(tcb.rtt_cache.rto(), tcb.cfg.rto_initial_ns);
}

/// RFC 5682 section 2.1, steps 2b and 3b.
#[test]
fn basic_frto_undoes_spurious_rto() {
    let mut script = warmed_up();
    let cwnd = script.end.tcb.cwnd();
    let sent = script.write(u64::from(MSS) * 6);
    let again = script.fire();
    assert_eq!(seqs(&again), [sent[0].seq]);
    script.end.to_write = u64::from(MSS) * 4;
    script.ack = end_seq(&sent[0]);
    let new_data = script.send(script.fields());
    assert_eq!(
        seqs(&new_data),
        [end_seq(&sent[5]), end_seq(&sent[5]) + MSS],
        "no retransmission yet"
    );
    script.ack = end_seq(&sent[2]);
    script.send(script.fields());
    assert_eq!(script.end.tcb.recovery.ca_state, CaState::Open);
    let stats = script.end.tcb.stats();
    assert_eq!((stats.spurious_recoveries, stats.retransmits), (1, 1));
    assert_eq!(stats.recoveries_ended, 1);
    assert!(script.end.tcb.cwnd() >= cwnd);
}

/// Step 3a.
#[test]
fn basic_frto_keeps_genuine_rto() {
    let mut script = warmed_up();
    let sent = script.write(u64::from(MSS) * 6);
    script.fire();
    script.end.to_write = u64::from(MSS) * 2;
    script.ack = end_seq(&sent[0]);
    assert_eq!(script.send(script.fields()).len(), 2);
    // The new segments arrive above a hole.
    let again = script.send(script.fields());
    assert_eq!(again[0].seq, sent[1].seq);
    assert_eq!(script.end.tcb.recovery.ca_state, CaState::Loss);
    assert_eq!(script.end.tcb.stats().spurious_recoveries, 0);
}

/// Step 2a: a duplicate ACK before SND.UNA advances shows that a segment arrived above a hole.
#[test]
fn basic_frto_ends_at_duplicate_ack() {
    let mut script = warmed_up();
    let sent = script.write(u64::from(MSS) * 6);
    script.fire();
    assert_eq!(script.end.tcb.recovery.frto, Frto::AwaitFirstAck);
    script.send(script.fields());
    assert_eq!(script.end.tcb.recovery.frto, Frto::Off);
    script.end.to_write = u64::from(MSS) * 4;
    script.ack = end_seq(&sent[0]);
    let again = script.send(script.fields());
    assert_eq!(again[0].seq, sent[1].seq, "slow start, as ever");
    assert_eq!(script.end.tcb.stats().spurious_recoveries, 0);
}
