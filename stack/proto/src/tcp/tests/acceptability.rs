//! Segments accepted and ACKs sent: RFC 9293 section 3.10.7.4, RFC 5961, PAWS, SACK blocks.

use super::{Config, Event, Fields, Flags, Options, Script, Seq};
use crate::tcp::State;
use crate::time::SECOND;

fn script() -> Script {
    Script::established(&Config::default(), Script::full_options())
}

fn script_without_sack_and_ts() -> Script {
    let options = Options { ts: None, sack_permitted: false, ..Script::full_options() };
    Script::established(&Config::default(), options)
}

#[test]
fn rst_is_accepted_only_at_rcv_nxt() {
    let mut script = script();
    let rst = |seq| Fields { seq, flags: Flags::RST, ..Fields::default() };
    for (ahead, reply_count) in [(1, 1), (1000, 1), (500_000, 0), (u32::MAX, 0)] {
        let out = script.send(rst(script.seq + ahead));
        assert_eq!(out.len(), reply_count, "{ahead}");
        assert_eq!(script.end.tcb.state(), State::Established);
        if reply_count == 1 {
            assert_eq!((out[0].flags, out[0].ack), (Flags::ACK, script.seq));
        }
    }
    script.send(rst(script.seq));
    assert_eq!(script.end.events, [Event::Reset, Event::Closed]);
    assert!(script.end.tcb.is_closed());
}

#[test]
fn syn_gets_rate_limited_challenge_acks() {
    let mut script = script();
    let syn = Fields { flags: Flags::SYN, ..script.fields() };
    let reply_count: usize = (0..50).map(|_| script.send(syn.clone()).len()).sum();
    assert_eq!(reply_count, 8);
    script.wait_us(100_000);
    assert_eq!(script.send(syn).len(), 1);
    assert_eq!(script.end.tcb.state(), State::Established);
    let stats = script.end.tcb.stats();
    assert_eq!((stats.challenges, stats.challenges_limited), (51, 42));
}

// req-test: MPA-028
#[test]
fn segment_acking_unsent_data_is_dropped_with_its_payload() {
    let mut script = script();
    script.write(100);
    for ack in [script.ack + 101, script.ack - 0x0100_0000] {
        let out = script.send_data(Fields { ack, ..script.fields() }, 10);
        assert_eq!(out.len(), 1);
    }
    assert_eq!((script.end.read, script.end.tcb.stats().bad_acks), (0, 2));
    // An ACK slightly below SND.UNA is acceptable.
    script.deliver(&Fields { ack: script.ack - 1, ..script.fields() }, 10);
    assert_eq!(script.end.read, 10);
}

// req-test: MPA-028
#[test]
fn segment_without_ack_flag_is_dropped() {
    let mut script = script();
    script.deliver(&Fields { flags: Flags::PSH, ..script.fields() }, 10);
    assert_eq!(script.end.read, 0);
}

// req-test: MPA-025, MPA-026, MPA-029
#[test]
fn only_new_data_in_window_is_delivered_once() {
    let mut script = script_without_sack_and_ts();
    let start = script.seq;
    script.deliver(&script.fields(), 100);
    // Half of it is old; then all of it.
    script.deliver(&Fields { seq: start + 50, ..script.fields() }, 100);
    assert_eq!(script.end.read, 150);
    script.deliver(&script.fields(), 150);
    assert_eq!(script.end.read, 150);
    assert_eq!(script.end.tcb.stats().duplicates_in, 1);
    // Across the right edge of the window.
    let window = script.end.tcb.rcv.window();
    let at_edge = Fields { seq: start + 150 + window - 10, ..script.fields() };
    script.deliver(&at_edge, 100);
    assert_eq!(script.end.tcb.assembler.ranges(), [(at_edge.seq, at_edge.seq + 10)]);
    let beyond = Fields { seq: start + 150 + window + 1, ..script.fields() };
    script.deliver(&beyond, 100);
    assert_eq!(script.end.tcb.stats().out_of_window, 1);
}

// req-test: MPA-027
#[test]
fn paws_drops_old_timestamps_unless_idle_for_long() {
    let mut script = script();
    script.ts = Some((200, 0));
    script.deliver(&script.fields(), 10);
    script.seq += 10;
    let old = Fields { options: Options::timestamps(Some((199, 0))), ..script.fields() };
    let out = script.send_data(old.clone(), 10);
    assert_eq!((out.len(), script.end.read), (1, 10));
    assert_eq!(script.end.tcb.stats().paws_drops, 1);
    script.now = script.now + 1001 * SECOND;
    script.deliver(&old, 10);
    assert_eq!(script.end.read, 20);
    // The timestamp clock wraps.
    script.seq += 10;
    script.ts = Some((0x7fff_ffff, 0));
    script.deliver(&script.fields(), 10);
    script.seq += 10;
    script.ts = Some((0x8000_0001, 0));
    script.deliver(&script.fields(), 10);
    assert_eq!(script.end.read, 40);
}

#[test]
fn tsecr_echoes_earliest_unacknowledged_segment() {
    let mut script = script();
    let first = script.seq;
    script.ts = Some((300, 0));
    script.deliver(&script.fields(), 600);
    script.ts = Some((301, 0));
    script.seq = first + 600;
    let out = script.send_data(script.fields(), 600);
    assert_eq!(out[0].options.ts.unwrap().1, 300, "the earliest not yet acknowledged");
    // Out of order: TSecr stays that of the last in-order segment.
    script.ts = Some((310, 0));
    script.seq = first + 2000;
    let out = script.send_data(script.fields(), 100);
    assert_eq!(out[0].options.ts.unwrap().1, 300);
    script.ts = Some((320, 0));
    script.seq = first + 1200;
    let out = script.send_data(script.fields(), 800);
    assert_eq!((out[0].ack, out[0].options.ts.unwrap().1), (first + 2100, 320));
}

#[test]
fn sack_blocks_are_newest_first_after_dsack() {
    let mut script = script();
    let base = script.seq;
    let at = |script: &Script, ahead| Fields { seq: base + ahead, ..script.fields() };
    let block = |from, to| (base + from, base + to);
    for (ahead, count) in [(1000, 1), (3000, 2), (5000, 3), (7000, 3)] {
        let out = script.send_data(at(&script, ahead), 500);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].options.sack[0], block(ahead, ahead + 500));
        assert_eq!(out[0].options.sack.len(), count);
    }
    let out = script.send_data(at(&script, 1500), 100);
    assert_eq!(out[0].options.sack[..], [block(1000, 1600), block(7000, 7500), block(5000, 5500)]);
    // Already buffered: reported as DSACK, then the block around it.
    let out = script.send_data(at(&script, 5100), 100);
    assert_eq!(out[0].options.sack[..], [block(5100, 5200), block(5000, 5500), block(1000, 1600)]);
    // Already delivered.
    script.deliver(&at(&script, 0), 1000);
    assert_eq!(script.end.read, 1600);
    let out = script.send_data(at(&script, 200), 100);
    assert_eq!((out[0].ack, out[0].options.sack[0]), (base + 1600, block(200, 300)));
}

#[test]
fn without_sack_each_ooo_segment_gets_a_dupack() {
    let mut script = script_without_sack_and_ts();
    let base = script.seq;
    for i in 1..=5 {
        script.deliver(&Fields { seq: base + 1000 * i, ..script.fields() }, 1000);
    }
    let out = script.output();
    assert_eq!(out.len(), 5);
    assert!(out.iter().all(|seg| seg.ack == base && seg.options.sack.is_empty()));
    // With SACK one ACK reports all.
    let mut script = self::script();
    for i in 1..=5 {
        script.deliver(&Fields { seq: base + 1000 * i, ..script.fields() }, 1000);
    }
    assert_eq!(script.output().len(), 1);
}

#[test]
fn burst_with_many_holes_is_sacked_completely() {
    let mut script = script();
    let base = script.seq;
    let block = |i: u32| (base + 1000 * i, base + 1000 * i + 500);
    for i in 1..=8 {
        script.deliver(&Fields { seq: block(i).0, ..script.fields() }, 500);
    }
    let out = script.output();
    let reports: Vec<_> = out.iter().map(|seg| seg.options.sack.to_vec()).collect();
    let expected = [[3, 2, 1], [6, 5, 4], [8, 7, 6]].map(|group| group.map(block).to_vec());
    assert_eq!(reports, expected);
    // Blocks already reported are repeated after the newest, and no ACK of their own is sent.
    let out = script.send_data(Fields { seq: block(9).0, ..script.fields() }, 500);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].options.sack[..], [block(9), block(8), block(7)]);
}

#[test]
fn pending_sack_is_sent_before_data() {
    let mut script = script();
    script.deliver(&Fields { seq: script.seq + 1000, ..script.fields() }, 10);
    let out = script.write(100);
    assert_eq!(out.len(), 2);
    assert!(out[0].payload.is_empty() && out[0].options.sack.len() == 1);
    assert!(out[1].options.sack.is_empty());
}

#[test]
fn ooo_frames_beyond_limit_are_dropped_and_counted() {
    let cfg = Config { max_ooo_segments: 3, ..Config::default() };
    let mut script = Script::established(&cfg, Script::full_options());
    let base = script.seq;
    for i in 1..=5 {
        script.deliver(&Fields { seq: base + 100 * i, ..script.fields() }, 50);
    }
    let stats = script.end.tcb.stats();
    assert_eq!((stats.ooo_buffered, stats.ooo_overflow), (3, 2));
    // Dropped segments are not SACKed.
    let last = script.output().pop().unwrap();
    assert!(last.options.sack.iter().all(|block| block.1 <= base + 350));
}

#[test]
fn reassembly_works_across_sequence_wraparound() {
    let mut script = script();
    // The position in the stream does not matter to the receiver: move it just below the wrap.
    let near_wrap = Seq(0xffff_ff00);
    let tcb = &mut script.end.tcb;
    (tcb.rcv.nxt, tcb.rcv.last_ack_sent, tcb.snd.wl1) = (near_wrap, near_wrap, near_wrap);
    tcb.rcv.adv = near_wrap + 16_384;
    script.end.read = u64::from(near_wrap - Seq(5001));
    let read = script.end.read;
    script.deliver(&Fields { seq: near_wrap + 500, ..script.fields() }, 500);
    script.deliver(&Fields { seq: near_wrap + 250, ..script.fields() }, 250);
    let out = script.send_data(Fields { seq: near_wrap, ..script.fields() }, 250);
    assert_eq!((script.end.read - read, out[0].ack), (1000, near_wrap + 1000));
}
