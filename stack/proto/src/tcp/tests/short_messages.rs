//! Losses in short messages: the reduction is computed from the flight that the lost segment was
//! part of (RFC 5681 equation 4) or from cwnd (RFC 9438 section 4.6), not from what is left of
//! either when the loss is detected.

use super::pair::Pair;
use super::recovery::{end_seq, sack_block, with_sack};
use super::{Config, Script};
use crate::tcp::recovery::ca_state::CaState;
use crate::tcp::{Algorithm, EcnMode};
use crate::time::{MILLISECOND, SECOND};
use crate::wire::tcp::{Fields, Flags, Segment};

const MSS: u32 = 1448;
/// Segments per message.
const MESSAGE_SEGMENTS: usize = 45;
const ALGORITHMS: [Algorithm; 3] = [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Dctcp];

/// An established connection that has sent messages of [`MESSAGE_SEGMENTS`] segments in one burst.
fn warmed_up(congestion: Algorithm) -> Script {
    let cfg = Config { congestion, ..Config::default() };
    let mut script = Script::established(&cfg, Script::full_options());
    while script.end.tcb.cwnd() < 80 * MSS {
        let sent = send_message(&mut script, MESSAGE_SEGMENTS);
        acknowledge(&mut script, &sent);
    }
    script
}

/// Sends a message of `count` segments; returns those that the windows admit.
fn send_message(script: &mut Script, count: usize) -> Vec<Segment> {
    script.write(u64::from(MSS) * count as u64)
}

/// The peer acknowledges every second segment and the last, and the segments sent in response.
fn acknowledge(script: &mut Script, sent: &[Segment]) {
    let mut sent = sent.to_vec();
    while !sent.is_empty() {
        script.wait_us(100);
        let mut more = Vec::new();
        for pair in sent.chunks(2) {
            let last = pair.last().unwrap();
            script.ack = end_seq(last);
            script.ts.as_mut().unwrap().1 = last.options.ts.unwrap().0;
            more.extend(script.send(script.fields()));
        }
        sent = more;
    }
}

/// Least window after a reduction: from cwnd for CUBIC, from the message's flight for the others.
fn least_window(script: &Script, congestion: Algorithm, window: u32) -> u32 {
    assert_eq!(script.end.tcb.emss(), MSS as usize);
    match congestion {
        Algorithm::Cubic => window / 10 * 7,
        _ => MESSAGE_SEGMENTS as u32 * MSS / 2,
    }
}

#[test]
fn tail_loss_repaired_by_tlp_reduces_from_its_flight() {
    for congestion in ALGORITHMS {
        let mut script = warmed_up(congestion);
        let window = script.end.tcb.cwnd();
        let sent = send_message(&mut script, MESSAGE_SEGMENTS);
        assert_eq!(sent.len(), MESSAGE_SEGMENTS);
        acknowledge(&mut script, &sent[..MESSAGE_SEGMENTS - 1]);
        let probe = script.fire();
        assert_eq!(probe[0].seq, sent[MESSAGE_SEGMENTS - 1].seq);
        acknowledge(&mut script, &probe);
        // The next message is a single segment: its ACK shows that the probe repaired a loss.
        let next = send_message(&mut script, 1);
        acknowledge(&mut script, &next);
        assert_eq!(script.end.tcb.stats().tlp_repairs, 1);
        let (least, cwnd) = (least_window(&script, congestion, window), script.end.tcb.cwnd());
        assert!((least..window).contains(&cwnd), "{congestion:?}: {window}, then {cwnd}");
    }
}

#[test]
fn loss_near_end_of_flight_reduces_from_whole_flight() {
    for congestion in ALGORITHMS {
        let mut script = warmed_up(congestion);
        let window = script.end.tcb.cwnd();
        let sent = send_message(&mut script, MESSAGE_SEGMENTS);
        acknowledge(&mut script, &sent[..MESSAGE_SEGMENTS - 2]);
        // The last but one is lost: with only the last SACKed, the reordering timer detects it.
        let fields = with_sack(&script, &[sack_block(&sent[MESSAGE_SEGMENTS - 1..])]);
        assert!(script.send(fields).is_empty());
        let again = script.fire();
        assert_eq!(again[0].seq, sent[MESSAGE_SEGMENTS - 2].seq);
        assert_eq!(script.end.tcb.recovery.ca_state, CaState::Recovery);
        script.wait_us(100);
        script.ack = end_seq(&sent[MESSAGE_SEGMENTS - 1]);
        script.ts.as_mut().unwrap().1 = again[0].options.ts.unwrap().0;
        script.send(script.fields());
        assert!(script.end.tcb.all_acked());
        assert_eq!(script.end.tcb.stats().fast_recoveries, 1);
        let (least, cwnd) = (least_window(&script, congestion, window), script.end.tcb.cwnd());
        assert!((least..window).contains(&cwnd), "{congestion:?}: {window}, then {cwnd}");
    }
}

#[test]
fn flight_size_is_that_before_the_ack_revealing_loss() {
    for congestion in ALGORITHMS {
        let mut script = warmed_up(congestion);
        let window = script.end.tcb.cwnd();
        let sent = send_message(&mut script, MESSAGE_SEGMENTS);
        script.wait_us(100);
        // One ACK for the whole burst, as from a polling peer: the 40th segment is missing.
        script.ack = end_seq(&sent[38]);
        script.ts.as_mut().unwrap().1 = sent[38].options.ts.unwrap().0;
        let again = script.send(with_sack(&script, &[sack_block(&sent[40..])]));
        assert_eq!(again[0].seq, sent[39].seq);
        let (least, ssthresh) =
            (least_window(&script, congestion, window), script.end.tcb.cc.ssthresh());
        assert!((least..window).contains(&ssthresh), "{congestion:?}: {window}, then {ssthresh}");
    }
}

#[test]
fn rto_of_lost_tail_sets_ssthresh_from_whole_flight() {
    for congestion in ALGORITHMS {
        let mut script = warmed_up(congestion);
        let window = script.end.tcb.cwnd();
        let sent = send_message(&mut script, MESSAGE_SEGMENTS);
        acknowledge(&mut script, &sent[..MESSAGE_SEGMENTS - 1]);
        script.fire();
        // The probe is lost too.
        script.fire();
        assert_eq!(script.end.tcb.stats().timeouts, 1);
        assert_eq!(script.end.tcb.cwnd(), MSS);
        let (least, ssthresh) =
            (least_window(&script, congestion, window), script.end.tcb.cc.ssthresh());
        assert!((least..window).contains(&ssthresh), "{congestion:?}: {window}, then {ssthresh}");
    }
}

#[test]
fn ece_on_last_ack_reduces_from_marked_flight() {
    for congestion in [Algorithm::Cubic, Algorithm::NewReno] {
        let cfg = Config { congestion, ecn: EcnMode::Request, ..Config::default() };
        let (mut script, _) = Script::connecting(&cfg);
        let fields = Fields {
            flags: Flags::SYN | Flags::ACK | Flags::ECE,
            options: Script::full_options(),
            ..script.fields()
        };
        script.seq += 1;
        script.ts = fields.options.ts;
        script.send(fields);
        while script.end.tcb.cwnd() < 80 * MSS {
            let sent = send_message(&mut script, MESSAGE_SEGMENTS);
            acknowledge(&mut script, &sent);
        }
        let window = script.end.tcb.cwnd();
        let sent = send_message(&mut script, MESSAGE_SEGMENTS);
        acknowledge(&mut script, &sent[..MESSAGE_SEGMENTS - 1]);
        script.ack = end_seq(&sent[MESSAGE_SEGMENTS - 1]);
        let fields = script.fields();
        script.send(Fields { flags: fields.flags | Flags::ECE, ..fields });
        assert_eq!(script.end.tcb.stats().ece_reductions, 1);
        let (least, cwnd) = (least_window(&script, congestion, window), script.end.tcb.cwnd());
        assert!((least..window).contains(&cwnd), "{congestion:?}: {window}, then {cwnd}");
    }
}

/// RFC 5681 section 3.1: NewReno reduces from the flight size; a lone segment is a flight of one.
#[test]
fn flight_of_lone_segment_excludes_previous_message() {
    let mut script = warmed_up(Algorithm::NewReno);
    let lone = send_message(&mut script, 1);
    let probe = script.fire();
    assert_eq!(probe[0].seq, lone[0].seq);
    acknowledge(&mut script, &probe);
    let next = send_message(&mut script, 1);
    acknowledge(&mut script, &next);
    assert_eq!(script.end.tcb.stats().tlp_repairs, 1);
    assert_eq!(script.end.tcb.cwnd(), 2 * MSS);
}

/// The time in which the peer answers with a message of its own is not idle time.
#[test]
fn pause_of_some_rtts_keeps_cwnd() {
    let mut script = warmed_up(Algorithm::Cubic);
    let window = script.end.tcb.cwnd();
    let rto = script.end.tcb.rtt.rto(&script.end.tcb.cfg);
    assert!(rto < 10 * MILLISECOND, "{rto} ns");
    script.wait_us(100_000);
    assert_eq!(send_message(&mut script, MESSAGE_SEGMENTS).len(), MESSAGE_SEGMENTS);
    assert_eq!(script.end.tcb.cwnd(), window);
}

/// A segment near the end of one of many messages is lost: later messages are hardly slower.
#[test]
fn messages_after_loss_take_at_most_one_more_rtt() {
    const RTT_NS: u64 = MILLISECOND;
    // Without and with a restart from the initial window.
    for pauses in [false, true] {
        for lost in [MESSAGE_SEGMENTS - 1, MESSAGE_SEGMENTS - 2, MESSAGE_SEGMENTS - 12] {
            let cfg = Config { recv_window: 1 << 20, ..Config::default() };
            let mut pair = Pair::new([cfg.clone(), cfg], RTT_NS / 2, 1);
            pair.server().tcb.open_window();
            pair.bits_per_second = 1_000_000_000;
            let bytes = u64::from(MSS) * MESSAGE_SEGMENTS as u64;
            let exchange = |pair: &mut Pair| {
                let took = pair.write(bytes);
                pair.run(SECOND, |pair| pair.ends[0].as_ref().unwrap().tcb.all_acked());
                if pauses {
                    // Until no timer runs.
                    pair.run_idle(2 * SECOND);
                }
                took
            };
            for _ in 0..20 {
                exchange(&mut pair);
            }
            let before = exchange(&mut pair);
            (pair.pass_count, pair.lose_count) = (lost, 1);
            exchange(&mut pair);
            assert_eq!(pair.lose_count, 0);
            let slowest = (0..20).map(|_| exchange(&mut pair)).max().unwrap();
            let stats = pair.client().tcb.stats();
            assert_eq!(stats.timeouts, 0, "segment {lost}: {stats:?}");
            assert!(
                slowest <= before + RTT_NS + MILLISECOND / 4,
                "pauses: {pauses}, segment {lost}: {before} ns before, {slowest} after"
            );
        }
    }
}
