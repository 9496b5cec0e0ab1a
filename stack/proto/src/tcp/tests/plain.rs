//! Peers with neither SACK nor timestamps, as lwIP is: nothing tells which transmission of a
//! segment an ACK answers (Karn), so that a timeout that was too short is not learnt from.

use super::pair::Pair;
use super::recovery::{end, reno};
use super::{Config, Options, Script};
use crate::tcp::recovery_state::{CaState, Frto};
use crate::time::{MICROSECOND, MILLISECOND, SECOND};
use crate::wire::seq::Seq;
use crate::wire::tcp::Segment;

const MSS: u32 = 1460;

fn options() -> Options {
    Options { ts: None, sack_permitted: false, ..Script::full_options() }
}

/// An established connection with a measured round trip of 100 us and a window of 40 segments.
fn warm() -> Script {
    let mut script = Script::established(&reno(), options());
    for _ in 0..20 {
        let sent = script.write(u64::from(MSS) * 10);
        script.wait_us(100);
        script.ack = end(sent.last().unwrap());
        script.send(script.fields());
    }
    assert!(script.end.tcb.all_acked());
    script
}

fn seqs(segments: &[Segment]) -> Vec<Seq> {
    segments.iter().map(|seg| seg.seq).collect()
}

#[test]
fn a_lone_segment_whose_ack_is_delayed_is_sent_once() {
    let plain = Config { sack: false, timestamps: false, ..Config::default() };
    let slow = Config { delayed_ack_ns: 150 * MILLISECOND, ..plain.clone() };
    let mut pair = Pair::new([plain, slow], 10 * MICROSECOND, 1);
    pair.server().tcb.open_window();
    // Full segments in pairs are acknowledged at once: all that is measured is short.
    for _ in 0..30 {
        pair.write(u64::from(MSS) * 2);
        pair.settle(MILLISECOND);
    }
    for _ in 0..50 {
        pair.write(100);
        pair.run(SECOND, |pair| pair.ends[0].as_ref().unwrap().tcb.all_acked());
        pair.settle(MILLISECOND);
    }
    let stats = pair.client().tcb.stats();
    assert_eq!((stats.timeouts, stats.retransmits), (0, 0), "{stats:?}");
}

#[test]
fn the_timeout_stays_at_its_initial_floor() {
    let script = warm();
    let tcb = &script.end.tcb;
    assert_eq!(tcb.rtt.rto(&tcb.cfg), tcb.cfg.rto_initial_ns);
    assert_eq!(tcb.rtt_cache.rto(), tcb.cfg.rto_initial_ns);
}

/// RFC 5682 section 2.1, steps 2b and 3b.
#[test]
fn basic_f_rto_undoes_a_timeout_where_only_the_acks_were_late() {
    let mut script = warm();
    let cwnd = script.end.tcb.cwnd();
    let sent = script.write(u64::from(MSS) * 6);
    let again = script.fire();
    assert_eq!(seqs(&again), [sent[0].seq]);
    script.end.to_write = u64::from(MSS) * 4;
    script.ack = end(&sent[0]);
    let fresh = script.send(script.fields());
    assert_eq!(seqs(&fresh), [end(&sent[5]), end(&sent[5]) + MSS], "no retransmission yet");
    script.ack = end(&sent[2]);
    script.send(script.fields());
    assert_eq!(script.end.tcb.recovery.ca_state, CaState::Open);
    let stats = script.end.tcb.stats();
    assert_eq!((stats.spurious_recoveries, stats.retransmits), (1, 1));
    assert!(script.end.tcb.cwnd() >= cwnd);
}

/// Step 3a.
#[test]
fn basic_f_rto_leaves_a_real_timeout_alone() {
    let mut script = warm();
    let sent = script.write(u64::from(MSS) * 6);
    script.fire();
    script.end.to_write = u64::from(MSS) * 2;
    script.ack = end(&sent[0]);
    assert_eq!(script.send(script.fields()).len(), 2);
    // The new segments arrive behind a hole.
    let again = script.send(script.fields());
    assert_eq!(again[0].seq, sent[1].seq);
    assert_eq!(script.end.tcb.recovery.ca_state, CaState::Loss);
    assert_eq!(script.end.tcb.stats().spurious_recoveries, 0);
}

/// Step 2a: a duplicate ACK before the first progress says that something arrived behind a hole.
#[test]
fn basic_f_rto_ends_with_a_duplicate_ack() {
    let mut script = warm();
    let sent = script.write(u64::from(MSS) * 6);
    script.fire();
    assert_eq!(script.end.tcb.recovery.frto, Frto::AwaitFirstAck);
    script.send(script.fields());
    assert_eq!(script.end.tcb.recovery.frto, Frto::Off);
    script.end.to_write = u64::from(MSS) * 4;
    script.ack = end(&sent[0]);
    let again = script.send(script.fields());
    assert_eq!(again[0].seq, sent[1].seq, "slow start, as ever");
    assert_eq!(script.end.tcb.stats().spurious_recoveries, 0);
}
