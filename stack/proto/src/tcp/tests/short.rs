//! Losses in short messages: the reduction follows the flight that the loss was part of (RFC 5681
//! equation 4) or the window (RFC 9438 section 4.6), and not what is left of either when the loss
//! is found.

use super::pair::Pair;
use super::recovery::{block, end, with_sack};
use super::{Config, Script};
use crate::tcp::recovery_state::CaState;
use crate::tcp::{Algorithm, EcnMode};
use crate::time::{MILLISECOND, SECOND};
use crate::wire::tcp::{Fields, Flags, Segment};

const MSS: u32 = 1448;
/// Segments of a message.
const MESSAGE: usize = 45;
const ALGORITHMS: [Algorithm; 3] = [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Dctcp];

/// An established connection which has sent messages of [`MESSAGE`] segments at once.
fn warm(congestion: Algorithm) -> Script {
    let cfg = Config { congestion, ..Config::default() };
    let mut script = Script::established(&cfg, Script::full_options());
    while script.end.tcb.cwnd() < 80 * MSS {
        let sent = message(&mut script, MESSAGE);
        acknowledge(&mut script, &sent);
    }
    script
}

/// The segments of a message of `count`, the window permitting.
fn message(script: &mut Script, count: usize) -> Vec<Segment> {
    script.write(u64::from(MSS) * count as u64)
}

/// The peer acknowledges each pair of segments, and the last, and what that lets go.
fn acknowledge(script: &mut Script, sent: &[Segment]) {
    let mut sent = sent.to_vec();
    while !sent.is_empty() {
        script.wait_us(100);
        let mut more = Vec::new();
        for pair in sent.chunks(2) {
            let last = pair.last().unwrap();
            script.ack = end(last);
            script.ts.as_mut().unwrap().1 = last.options.ts.unwrap().0;
            more.extend(script.send(script.fields()));
        }
        sent = more;
    }
}

/// What a reduction may leave: of the window for CUBIC, of the message's flight for the others.
fn least(script: &Script, congestion: Algorithm, window: u32) -> u32 {
    assert_eq!(script.end.tcb.emss(), MSS as usize);
    match congestion {
        Algorithm::Cubic => window / 10 * 7,
        _ => MESSAGE as u32 * MSS / 2,
    }
}

#[test]
fn a_lost_tail_that_the_probe_repaired_reduces_by_the_flight_it_was_part_of() {
    for congestion in ALGORITHMS {
        let mut script = warm(congestion);
        let window = script.end.tcb.cwnd();
        let sent = message(&mut script, MESSAGE);
        assert_eq!(sent.len(), MESSAGE);
        acknowledge(&mut script, &sent[..MESSAGE - 1]);
        let probe = script.fire();
        assert_eq!(probe[0].seq, sent[MESSAGE - 1].seq);
        acknowledge(&mut script, &probe);
        // The next message is a single segment: its ACK tells that the probe repaired a loss.
        let next = message(&mut script, 1);
        acknowledge(&mut script, &next);
        assert_eq!(script.end.tcb.stats().tlp_repairs, 1);
        let (least, cwnd) = (least(&script, congestion, window), script.end.tcb.cwnd());
        assert!((least..window).contains(&cwnd), "{congestion:?}: {window}, then {cwnd}");
    }
}

#[test]
fn a_loss_near_the_end_of_a_flight_reduces_by_all_of_it() {
    for congestion in ALGORITHMS {
        let mut script = warm(congestion);
        let window = script.end.tcb.cwnd();
        let sent = message(&mut script, MESSAGE);
        acknowledge(&mut script, &sent[..MESSAGE - 2]);
        // The last but one is lost: the report of the last leaves it to the reordering timer.
        let fields = with_sack(&script, &[block(&sent[MESSAGE - 1..])]);
        assert!(script.send(fields).is_empty());
        let again = script.fire();
        assert_eq!(again[0].seq, sent[MESSAGE - 2].seq);
        assert_eq!(script.end.tcb.recovery.ca_state, CaState::Recovery);
        script.wait_us(100);
        script.ack = end(&sent[MESSAGE - 1]);
        script.ts.as_mut().unwrap().1 = again[0].options.ts.unwrap().0;
        script.send(script.fields());
        assert!(script.end.tcb.all_acked());
        assert_eq!(script.end.tcb.stats().fast_recoveries, 1);
        let (least, cwnd) = (least(&script, congestion, window), script.end.tcb.cwnd());
        assert!((least..window).contains(&cwnd), "{congestion:?}: {window}, then {cwnd}");
    }
}

#[test]
fn the_ack_that_tells_of_a_loss_is_not_taken_off_the_flight() {
    for congestion in ALGORITHMS {
        let mut script = warm(congestion);
        let window = script.end.tcb.cwnd();
        let sent = message(&mut script, MESSAGE);
        script.wait_us(100);
        // One ACK for the whole burst, as a peer that polls sends it: the 40th is missing.
        script.ack = end(&sent[38]);
        script.ts.as_mut().unwrap().1 = sent[38].options.ts.unwrap().0;
        let again = script.send(with_sack(&script, &[block(&sent[40..])]));
        assert_eq!(again[0].seq, sent[39].seq);
        let (least, ssthresh) = (least(&script, congestion, window), script.end.tcb.cc.ssthresh());
        assert!((least..window).contains(&ssthresh), "{congestion:?}: {window}, then {ssthresh}");
    }
}

#[test]
fn a_timeout_of_a_lost_tail_starts_slow_start_up_to_the_reduced_flight() {
    for congestion in ALGORITHMS {
        let mut script = warm(congestion);
        let window = script.end.tcb.cwnd();
        let sent = message(&mut script, MESSAGE);
        acknowledge(&mut script, &sent[..MESSAGE - 1]);
        script.fire();
        // The probe is lost, too.
        script.fire();
        assert_eq!(script.end.tcb.stats().timeouts, 1);
        assert_eq!(script.end.tcb.cwnd(), MSS);
        let (least, ssthresh) = (least(&script, congestion, window), script.end.tcb.cc.ssthresh());
        assert!((least..window).contains(&ssthresh), "{congestion:?}: {window}, then {ssthresh}");
    }
}

#[test]
fn an_echo_on_the_last_ack_reduces_by_the_flight_that_was_marked() {
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
            let sent = message(&mut script, MESSAGE);
            acknowledge(&mut script, &sent);
        }
        let window = script.end.tcb.cwnd();
        let sent = message(&mut script, MESSAGE);
        acknowledge(&mut script, &sent[..MESSAGE - 1]);
        script.ack = end(&sent[MESSAGE - 1]);
        let fields = script.fields();
        script.send(Fields { flags: fields.flags | Flags::ECE, ..fields });
        assert_eq!(script.end.tcb.stats().ece_reductions, 1);
        let (least, cwnd) = (least(&script, congestion, window), script.end.tcb.cwnd());
        assert!((least..window).contains(&cwnd), "{congestion:?}: {window}, then {cwnd}");
    }
}

/// RFC 5681 section 3.1: for Reno it is the flight that counts, and that of a lone segment is one.
#[test]
fn the_flight_of_a_lone_segment_is_not_that_of_the_message_before() {
    let mut script = warm(Algorithm::NewReno);
    let lone = message(&mut script, 1);
    let probe = script.fire();
    assert_eq!(probe[0].seq, lone[0].seq);
    acknowledge(&mut script, &probe);
    let next = message(&mut script, 1);
    acknowledge(&mut script, &next);
    assert_eq!(script.end.tcb.stats().tlp_repairs, 1);
    assert_eq!(script.end.tcb.cwnd(), 2 * MSS);
}

/// The time in which the other end answers with a message of its own is no idle time.
#[test]
fn a_pause_of_some_round_trips_keeps_the_window() {
    let mut script = warm(Algorithm::Cubic);
    let window = script.end.tcb.cwnd();
    let rto = script.end.tcb.rtt.rto(&script.end.tcb.cfg);
    assert!(rto < 10 * MILLISECOND, "{rto} ns");
    script.wait_us(100_000);
    assert_eq!(message(&mut script, MESSAGE).len(), MESSAGE);
    assert_eq!(script.end.tcb.cwnd(), window);
}

/// One message of many loses a segment near its end: those after it are hardly slower.
#[test]
fn messages_after_a_loss_take_a_round_trip_more_at_most() {
    const RTT_NS: u64 = MILLISECOND;
    // Without and with a fall back to the initial window.
    for pauses in [false, true] {
        for lost in [MESSAGE - 1, MESSAGE - 2, MESSAGE - 12] {
            let cfg = Config { recv_window: 1 << 20, ..Config::default() };
            let mut pair = Pair::new([cfg.clone(), cfg], RTT_NS / 2, 1);
            pair.server().tcb.open_window();
            pair.rate = 1_000_000_000;
            let octets = u64::from(MSS) * MESSAGE as u64;
            let exchange = |pair: &mut Pair| {
                let took = pair.write(octets);
                pair.run(SECOND, |pair| pair.ends[0].as_ref().unwrap().tcb.all_acked());
                if pauses {
                    // Until no timer runs.
                    pair.settle(2 * SECOND);
                }
                took
            };
            for _ in 0..20 {
                exchange(&mut pair);
            }
            let before = exchange(&mut pair);
            (pair.pass, pair.lose) = (lost, 1);
            exchange(&mut pair);
            assert_eq!(pair.lose, 0);
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
