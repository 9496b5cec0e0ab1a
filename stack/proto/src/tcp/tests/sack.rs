//! ACKs sent for received data: the cases of RFC 2018 and RFC 2883; timestamps that are echoed or
//! rejected (RFC 7323).

use super::{Config, Fields, Options, Script, Segment, Seq};
use crate::time::SECOND;

pub(super) fn script(cfg: &Config) -> Script {
    let mut script = Script::established(cfg, Script::full_options());
    script.end.tcb.open_window();
    script.output();
    script
}

/// Delivers `len` bytes at `from`, an offset in the stream, as in the examples of the RFCs.
pub(super) fn send_at(script: &mut Script, base: Seq, from: u32, len: usize) -> Vec<Segment> {
    let fields = Fields { seq: base + from, ..script.fields() };
    script.send_data(fields, len)
}

/// The acknowledgment number and SACK blocks of the only ACK in `out`, relative to `base`.
pub(super) fn only_ack(out: &[Segment], base: Seq) -> (u32, Vec<(u32, u32)>) {
    assert_eq!(out.len(), 1);
    let sack = out[0].options.sack.iter().map(|block| (block.0 - base, block.1 - base));
    (out[0].ack - base, sack.collect())
}

// RFC 2018.

#[test]
fn first_sack_block_holds_latest_segment() {
    // Section 7, cases 2 and 3: the first of eight segments is lost; then every second one.
    let mut one = script(&Config::default());
    let base = one.seq;
    for at in 1..8 {
        let out = send_at(&mut one, base, 500 * at, 500);
        assert_eq!(only_ack(&out, base), (0, vec![(500, 500 * (at + 1))]));
    }
    let mut two = script(&Config::default());
    send_at(&mut two, base, 0, 500);
    let mut blocks = Vec::new();
    for at in [2, 4, 6] {
        blocks.insert(0, (500 * at, 500 * at + 500));
        let out = send_at(&mut two, base, 500 * at, 500);
        assert_eq!(only_ack(&out, base), (500, blocks.clone()));
    }
    // The fourth segment arrives late: it joins two blocks, and the joined block is first.
    let out = send_at(&mut two, base, 1500, 500);
    assert_eq!(only_ack(&out, base), (500, vec![(1000, 2500), (3000, 3500)]));
    // The second: the cumulative ACK advances; one block is left.
    let out = send_at(&mut two, base, 500, 500);
    assert_eq!(only_ack(&out, base), (2500, vec![(3000, 3500)]));
}

#[test]
fn each_sack_block_is_sent_three_times() {
    // Section 4: with three blocks per ACK, each block is sent in at least three ACKs.
    let mut script = script(&Config::default());
    let base = script.seq;
    let mut reported = std::collections::HashMap::new();
    for at in 1..=20 {
        let (_, blocks) = only_ack(&send_at(&mut script, base, 1000 * at, 500), base);
        assert_eq!(blocks[0], (1000 * at, 1000 * at + 500));
        for block in blocks {
            *reported.entry(block).or_insert(0) += 1;
        }
    }
    assert!((1..=18).all(|at| reported[&(1000 * at, 1000 * at + 500)] == 3), "{reported:?}");
}

// RFC 2883, sections 4.1 to 4.3.

#[test]
fn dsack_reports_full_duplicate_below_ack() {
    // Example 4.1.1: the sender retransmits data whose ACK was sent and lost.
    let mut script = script(&Config::default());
    let base = script.seq;
    send_at(&mut script, base, 0, 1000);
    send_at(&mut script, base, 1000, 1000);
    let out = send_at(&mut script, base, 500, 500);
    assert_eq!(only_ack(&out, base), (2000, vec![(500, 1000)]));
    // Once per arrival.
    let out = send_at(&mut script, base, 2000, 1000);
    assert!(out.is_empty() || only_ack(&out, base).1.is_empty());
}

#[test]
fn dsack_precedes_sack_blocks() {
    // Example 4.1.2: an ACK and a segment were lost.
    let mut script = script(&Config::default());
    let base = script.seq;
    send_at(&mut script, base, 0, 500);
    send_at(&mut script, base, 1000, 500);
    send_at(&mut script, base, 2000, 500);
    let out = send_at(&mut script, base, 0, 500);
    assert_eq!(only_ack(&out, base), (500, vec![(0, 500), (2000, 2500), (1000, 1500)]));
}

#[test]
fn dsack_above_ack_precedes_its_enclosing_block() {
    // Example 4.1.3: a segment inside a SACK block is duplicated.
    let mut script = script(&Config::default());
    let base = script.seq;
    for from in [1000, 1500, 3000] {
        send_at(&mut script, base, from, 500);
    }
    let out = send_at(&mut script, base, 1500, 500);
    assert_eq!(only_ack(&out, base), (0, vec![(1500, 2000), (1000, 2000), (3000, 3500)]));
    assert_eq!(script.end.tcb.stats().duplicates_in, 1);
}

#[test]
fn dsack_reports_duplicate_part_of_segment() {
    // Example 4.2.1: a longer segment repeats the bytes of a shorter one, below the ACK.
    let mut script = script(&Config::default());
    let base = script.seq;
    send_at(&mut script, base, 0, 500);
    send_at(&mut script, base, 1500, 500);
    let out = send_at(&mut script, base, 0, 1000);
    assert_eq!(only_ack(&out, base), (1000, vec![(0, 500), (1500, 2000)]));
    // Example 4.2.2: above the ACK, together with the extended block.
    let mut script = self::script(&Config::default());
    send_at(&mut script, base, 1000, 500);
    let out = send_at(&mut script, base, 1000, 1000);
    assert_eq!(only_ack(&out, base), (0, vec![(1000, 1500), (1000, 2000)]));
    // The part that fills the gap moves the ACK past the reported duplicate.
    let out = send_at(&mut script, base, 0, 1500);
    assert_eq!(only_ack(&out, base), (2000, vec![(1000, 1500)]));
}

#[test]
fn dsack_reports_first_of_several_duplicate_parts() {
    // Example 4.2.3.
    let mut script = script(&Config::default());
    let base = script.seq;
    for from in [1000, 2000] {
        send_at(&mut script, base, from, 500);
    }
    let out = send_at(&mut script, base, 1000, 1500);
    assert_eq!(only_ack(&out, base), (0, vec![(1000, 1500), (1000, 2500)]));
    let out = send_at(&mut script, base, 0, 2500);
    assert_eq!(only_ack(&out, base), (2500, vec![(1000, 2500)]));
}

#[test]
fn dsack_reports_each_duplicate_of_a_burst_once() {
    let mut script = script(&Config::default());
    let base = script.seq;
    send_at(&mut script, base, 0, 2000);
    send_at(&mut script, base, 2000, 2000);
    for from in [0, 500, 1000] {
        script.deliver(&Fields { seq: base + from, ..script.fields() }, 500);
    }
    let out = script.output();
    let firsts: Vec<_> = out.iter().map(|seg| seg.options.sack[0].0 - base).collect();
    assert_eq!(firsts, [0, 500, 1000]);
    assert!(script.output().is_empty());
    // The queue of duplicates to report is bounded.
    for _ in 0..100 {
        script.deliver(&Fields { seq: base, ..script.fields() }, 500);
    }
    assert_eq!(script.output().len(), 4);
}

#[test]
fn peer_without_sack_gets_no_sack_blocks() {
    let options = Options { sack_permitted: false, ..Script::full_options() };
    let mut script = Script::established(&Config::default(), options);
    let base = script.seq;
    for (from, len) in [(500, 500), (500, 500), (300, 700), (0, 600)] {
        let out = send_at(&mut script, base, from, len);
        assert!(out.iter().all(|seg| seg.options.sack.is_empty()));
        assert_eq!(out.len(), 1);
    }
    assert_eq!(script.end.read, 1000);
}

// Timestamps.

#[test]
fn duplicate_dropped_by_paws_is_reported_by_dsack() {
    let mut script = script(&Config::default());
    let base = script.seq;
    script.ts = Some((1000, 0));
    send_at(&mut script, base, 0, 600);
    send_at(&mut script, base, 600, 600);
    script.ts = Some((2000, 0));
    send_at(&mut script, base, 1200, 600);
    script.ts = Some((1500, 0));
    let out = send_at(&mut script, base, 600, 600);
    assert_eq!(only_ack(&out, base), (1800, vec![(600, 1200)]));
    // A segment with new data is acknowledged and dropped.
    let out = send_at(&mut script, base, 1800, 600);
    assert_eq!((only_ack(&out, base), script.end.read), ((1800, vec![]), 1800));
    // A reordered pure ACK is not answered.
    script.seq = base + 1800;
    assert!(script.send(script.fields()).is_empty());
    assert_eq!(script.end.tcb.stats().paws_drops, 3);
}

#[test]
fn ts_recent_follows_last_ack_sent_under_delay_and_reordering() {
    let mut script = script(&Config::default());
    let base = script.seq;
    let echo = |out: &[Segment]| out.last().unwrap().options.ts.unwrap().1;
    script.ts = Some((1000, 0));
    script.deliver(&Fields { seq: base, ..script.fields() }, 600);
    // A second, newer segment before the delayed ACK: TSecr is that of the first.
    script.ts = Some((1010, 0));
    script.deliver(&Fields { seq: base + 600, ..script.fields() }, 600);
    assert_eq!(echo(&script.output()), 1000);
    // Out-of-order segments do not update TS.Recent; neither do duplicates above the ACK.
    script.ts = Some((1020, 0));
    assert_eq!(echo(&send_at(&mut script, base, 2000, 500)), 1000);
    script.ts = Some((1030, 0));
    assert_eq!(echo(&send_at(&mut script, base, 2000, 500)), 1000);
    // The segment that fills the gap does, though it is older than the buffered segments.
    script.ts = Some((1015, 0));
    let out = send_at(&mut script, base, 1200, 800);
    assert_eq!((echo(&out), only_ack(&out, base).0), (1015, 2500));
}

#[test]
fn connection_idle_past_timestamp_wraparound_accepts_data() {
    for idle in [1100, 2200, 3000, 4300, 4500, 9000] {
        let mut script = script(&Config::default());
        let base = script.seq;
        let start = 0x7fff_0000u32;
        script.ts = Some((start, 0));
        send_at(&mut script, base, 0, 500);
        script.fire();
        script.now = script.now + idle * SECOND;
        let ticks = u32::try_from(idle * 1_000_000 % (1 << 32)).unwrap();
        script.ts = Some((start.wrapping_add(ticks), 0));
        let out = send_at(&mut script, base, 500, 500);
        assert_eq!(script.end.read, 1000, "idle for {idle} s");
        assert!(out.is_empty() || only_ack(&out, base).0 == 1000);
        let recent = script.end.tcb.ts.recent;
        assert_eq!(recent, start.wrapping_add(ticks));
    }
}
