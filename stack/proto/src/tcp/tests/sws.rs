//! Sender-side silly window avoidance for records of known length, and PSH.

use super::{Config, Flags, Options, Script};
use crate::time::SECOND;

/// A connection whose peer has offered at most `largest` bytes and now offers `window`.
fn script(largest: u16, window: u16) -> Script {
    let options = Options { wscale: None, ..Script::full_options() };
    let mut script = Script::established(&Config::default(), options);
    script.end.tcb.snd.max_wnd = largest.into();
    script.window = window;
    script.send(script.fields());
    script.end.tcb.snd.max_wnd = largest.into();
    script
}

fn lens(out: &[crate::wire::tcp::Segment]) -> Vec<usize> {
    out.iter().map(|seg| seg.payload.len()).collect()
}

#[test]
fn record_fitting_small_window_is_sent_at_once() {
    let mut script = script(60_000, 1000);
    script.end.record_len = 300;
    assert_eq!(lens(&script.write(300)), [300]);
    assert_eq!(lens(&script.write(1200)), [300, 300], "as many as fit, and none is cut");
    assert_eq!(script.end.tcb.stats().resegments, 0);
    script.ack += 900;
    assert_eq!(lens(&script.send(script.fields())), [300, 300]);
}

#[test]
fn record_exceeding_window_waits_for_window_or_override_timer() {
    let mut script = script(60_000, 1000);
    assert!(script.write(1448).is_empty());
    script.window = 2000;
    assert_eq!(lens(&script.send(script.fields())), [1448], "whole once it fits");
    script.ack += 1448;
    script.window = 1000;
    script.send(script.fields());
    assert!(script.write(1448).is_empty());
    let start = script.now;
    assert_eq!(lens(&script.fire()), [1000], "the larger window was never offered");
    assert!(script.now.since(start) <= SECOND, "RFC 9293 section 3.8.6.2.1: within a second");
    assert_eq!(script.end.tcb.stats().resegments, 1);
    script.ack += 1000;
    assert_eq!(lens(&script.send(script.fields())), [448], "cut once, not more");
}

#[test]
fn record_is_split_at_half_of_max_window() {
    let mut script = script(2000, 1000);
    assert_eq!(lens(&script.write(1448)), [1000]);
}

#[test]
fn no_tinygram_is_split_off_while_data_is_in_flight() {
    let mut script = script(400, 400);
    script.end.record_len = 300;
    // 300 bytes fit; of the remaining 100 no tinygram is made, although the peer's largest window
    // is small.
    script.end.tcb.snd.max_wnd = 150;
    assert_eq!(lens(&script.write(600)), [300]);
    script.ack += 300;
    assert_eq!(lens(&script.send(script.fields())), [300]);
    // A small window that is the largest the peer offers is used.
    script.ack += 300;
    script.window = 100;
    script.send(script.fields());
    script.end.tcb.snd.max_wnd = 100;
    assert_eq!(lens(&script.write(300)), [100]);
}

#[test]
fn psh_marks_the_last_queued_segment() {
    let mut script = script(60_000, 60_000);
    let out = script.write(5000);
    let pushed: Vec<bool> = out.iter().map(|seg| seg.flags.has(Flags::PSH)).collect();
    assert_eq!(pushed, [false, false, false, true]);
    // A retransmission of the last segment has PSH too.
    script.ack += 3 * 1448;
    script.send(script.fields());
    let again = script.fire();
    assert_eq!((again.len(), again[0].flags), (1, Flags::ACK | Flags::PSH));
}
