//! Path MTU discovery: Packet Too Big, black hole detection, probes.

use super::sim::{Faults, Router, Sim};
use super::{Config, Event, Fields, Options, Script, TxDemand, at_us};
use crate::tcp::pmtu::PathMtu;
use crate::tcp::{PathMtuConfig, Probing, TooBig};
use crate::time::{MILLISECOND, SECOND};
use crate::wire::seq::Seq;
use crate::wire::tcp::{SackBlock, Segment};

/// An established connection over a link with an MTU of 1500: EMSS 1448.
fn script(path_mtu: PathMtuConfig) -> Script {
    let cfg = Config { path_mtu, ..Config::default() };
    let mut script = Script::established(&cfg, Script::full_options());
    script.window = 60_000;
    script.send(script.fields());
    script
}

fn lens(segments: &[Segment]) -> Vec<usize> {
    segments.iter().map(|seg| seg.payload.len()).collect()
}

/// A Packet Too Big about the first outstanding byte.
fn too_big(script: &Script, mtu: Option<u16>) -> TooBig {
    TooBig { seq: script.end.tcb.snd.una, ack: None, mtu, packet_len: 1500 }
}

#[test]
fn ptb_for_data_not_in_flight_is_ignored() {
    let mut script = script(PathMtuConfig::default());
    script.write(1448 * 4);
    let now = script.now;
    let good = too_big(&script, Some(1400));
    let (una, nxt) = (script.end.tcb.snd.una, script.end.tcb.snd.nxt);
    let rcv_nxt = script.end.tcb.rcv.nxt;
    let tcb = &mut script.end.tcb;
    for seq in [una - 1, nxt, nxt + 1, una + 0x8000_0000] {
        assert!(!tcb.packet_too_big(now, &TooBig { seq, ..good }), "{seq:?}");
    }
    for ack in [rcv_nxt + 1, rcv_nxt - (1 << 30), rcv_nxt + 0x8000_0000] {
        assert!(!tcb.packet_too_big(now, &TooBig { ack: Some(ack), ..good }), "{ack:?}");
    }
    for (mtu, packet_len) in [(1500, 1500), (1501, 1500), (1400, 1400), (9000, 20_000)] {
        let error = TooBig { mtu: Some(mtu), packet_len, ..good };
        assert!(!tcb.packet_too_big(now, &error), "{mtu} is not smaller than {packet_len}");
    }
    assert_eq!((tcb.emss(), tcb.poll_event()), (1448, None));
    assert!(tcb.packet_too_big(now, &TooBig { seq: nxt - 1, ack: Some(rcv_nxt), ..good }));
    assert_eq!((tcb.emss(), tcb.path_mtu()), (1348, 1400));
    assert_eq!((tcb.poll_event(), tcb.poll_event()), (Some(Event::EmssChanged), None));
    assert!(!tcb.packet_too_big(now, &good), "the same again");
    let prior = tcb.cwnd();
    let again = script.output();
    assert_eq!(lens(&again), [1348, 100, 1348, 100, 1348, 100, 1348, 100]);
    assert_eq!(script.end.tcb.cwnd(), prior, "no sign of congestion");
}

// req-test: MPA-163
#[test]
fn path_mtu_is_not_lowered_below_floor() {
    let mut v4 = script(PathMtuConfig::default());
    v4.write(3000);
    let error = too_big(&v4, Some(70));
    assert!(v4.end.tcb.packet_too_big(v4.now, &error));
    assert_eq!(v4.end.tcb.path_mtu(), 576);
    let mut low = script(PathMtuConfig { floor_v4: 0, ..PathMtuConfig::default() });
    low.write(3000);
    let error = too_big(&low, Some(1));
    assert!(low.end.tcb.packet_too_big(low.now, &error));
    assert_eq!((low.end.tcb.path_mtu(), low.end.tcb.emss()), (68, 16));
    let again = low.output();
    assert!(again.iter().all(|seg| seg.payload.len() <= 16));
    let mut without_icmp = script(PathMtuConfig { icmp: false, ..PathMtuConfig::default() });
    without_icmp.write(3000);
    let error = too_big(&without_icmp, Some(1400));
    assert!(!without_icmp.end.tcb.packet_too_big(without_icmp.now, &error));

    let cfg = PathMtuConfig::default();
    let mut v6 = PathMtu::new(&cfg, 9000, true);
    let error = |mtu| TooBig { seq: Seq(0), ack: None, mtu: Some(mtu), packet_len: 9000 };
    assert!(!v6.on_packet_too_big(at_us(0), &error(1279), &cfg), "RFC 8201 section 4");
    assert!(v6.on_packet_too_big(at_us(0), &error(1280), &cfg));
    assert_eq!(v6.plpmtu(), 1280);
    let cfg = PathMtuConfig { floor_v6: 1400, ..cfg };
    let mut v6 = PathMtu::new(&cfg, 9000, true);
    assert!(v6.on_packet_too_big(at_us(0), &error(1300), &cfg));
    assert_eq!(v6.plpmtu(), 1400);
}

#[test]
fn ptb_without_mtu_selects_next_plateau() {
    let cfg = PathMtuConfig { floor_v4: 68, ..PathMtuConfig::default() };
    let mut path = PathMtu::new(&cfg, u16::MAX, false);
    let mut packet_len = u32::from(u16::MAX);
    for size in [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296, 68] {
        let error = TooBig { seq: Seq(0), ack: None, mtu: None, packet_len };
        assert!(path.on_packet_too_big(at_us(0), &error, &cfg));
        assert_eq!(path.plpmtu(), size);
        packet_len = size.into();
    }
    let error = TooBig { seq: Seq(0), ack: None, mtu: None, packet_len: 68 };
    assert!(!path.on_packet_too_big(at_us(0), &error, &cfg));
}

#[test]
fn path_mtu_changes_by_ptb_are_limited() {
    let cfg = PathMtuConfig::default();
    let mut path = PathMtu::new(&cfg, 9000, false);
    let error = |mtu| TooBig { seq: Seq(0), ack: None, mtu: Some(mtu), packet_len: 9000 };
    let changes =
        (0..100).filter(|n| path.on_packet_too_big(at_us(0), &error(8999 - n), &cfg)).count();
    assert_eq!((changes, path.plpmtu()), (16, 9000 - 16));
}

#[test]
fn black_hole_lowers_path_mtu_step_by_step() {
    let mut script = script(PathMtuConfig::default());
    let out = script.write(1448 * 3);
    let (start, mut sizes) = (out[0].seq, Vec::new());
    for _ in 0..8 {
        let again = script.fire();
        // The peer will acknowledge the last copy.
        script.ts = again.last().and_then(|seg| seg.options.ts).map(|(val, _)| (100, val));
        // A tail loss probe retransmits the last record.
        sizes.extend(again.iter().filter(|seg| seg.seq == start).map(|seg| seg.payload.len()));
    }
    assert_eq!(sizes[..6], [1448, 1448, 1228, 972, 524, 524]);
    assert_eq!((script.end.tcb.path_mtu(), script.end.tcb.stats().black_holes), (576, 3));
    // The peer responds: the previous size is probed first, once all losses are repaired.
    script.ack += 524;
    for _ in 0..20 {
        let again = script.send(script.fields());
        assert!(again.iter().all(|seg| seg.payload.len() <= 524));
        script.ack = again.last().map_or(script.ack, |seg| seg.seq + seg.seq_len());
    }
    assert!(script.end.tcb.all_acked());
    let changes = script.end.events.iter().filter(|event| **event == Event::EmssChanged).count();
    assert_eq!(changes, 3);
    script.end.events.clear();
    let out = script.write(1448);
    assert_eq!(lens(&out), [1448]);
    script.ack += 1448;
    script.send(script.fields());
    assert_eq!(
        (script.end.tcb.emss(), script.end.events.as_slice()),
        (1448, &[Event::EmssChanged][..])
    );
}

/// While no frame is free, the same retransmission is planned again and again.
#[test]
fn each_retransmission_lowers_path_mtu_by_one_step() {
    let mut script = script(PathMtuConfig::default());
    script.write(1448);
    // Retransmissions into a closed window say nothing of the path.
    script.window = 0;
    script.send(script.fields());
    for _ in 0..8 {
        script.fire();
    }
    script.window = 60_000;
    script.send(script.fields());
    script.now = script.end.tcb.deadline().expect("the RTO");
    script.end.timeout(script.now);
    for _ in 0..5 {
        let _ = script.end.tcb.next_transmit(script.now, TxDemand::Nothing);
        assert_eq!(script.end.tcb.emss(), 1228);
    }
}

/// The peer SACKs segments as large as the one that is lost: that takes more losses to be taken for
/// a black hole, but not for each size again.
#[test]
fn black_hole_among_sacked_segments_lowers_path_mtu_at_each_timeout() {
    let mut script = script(PathMtuConfig::default());
    let out = script.write(1448 * 4);
    let start = out[0].seq;
    let again = sack_all_but_first(&mut script, &out);
    let mut sizes: Vec<_> =
        again.iter().filter(|seg| seg.seq == start).map(|seg| seg.payload.len()).collect();
    for _ in 0..8 {
        let again = script.fire();
        sizes.extend(again.iter().filter(|seg| seg.seq == start).map(|seg| seg.payload.len()));
    }
    assert_eq!(sizes[..8], [1448, 1448, 1448, 1448, 1228, 972, 524, 524]);
    assert_eq!((script.end.tcb.path_mtu(), script.end.tcb.stats().black_holes), (576, 3));
}

#[test]
fn small_records_and_zero_window_are_not_black_holes() {
    let mut small = script(PathMtuConfig { floor_v4: 600, ..PathMtuConfig::default() });
    small.write(500);
    let mut closed = script(PathMtuConfig::default());
    closed.write(1448);
    closed.window = 0;
    closed.send(closed.fields());
    let mut off = script(PathMtuConfig { probe: Probing::Off, ..PathMtuConfig::default() });
    off.write(1448 * 2);
    for script in [&mut small, &mut closed, &mut off] {
        for _ in 0..8 {
            script.fire();
        }
        assert_eq!(script.end.tcb.emss(), 1448);
    }
}

/// The peer SACKs all segments except the first.
fn sack_all_but_first(script: &mut Script, sent: &[Segment]) -> Vec<Segment> {
    let last = sent.last().expect("several");
    let block: SackBlock = (sent[1].seq, last.seq + last.seq_len());
    let mut fields: Fields = script.fields();
    fields.options = Options { ts: fields.options.ts, ..Options::default() };
    fields.options.sack.push(block);
    script.send(fields)
}

#[test]
fn lost_pmtu_probe_does_not_reduce_cwnd() {
    let always = PathMtuConfig { probe: Probing::Always, ..PathMtuConfig::default() };
    let mut script = script(always);
    assert_eq!(script.end.tcb.emss(), 1228);
    // MTU 1500 three times; then 1492, 1480 and 1420, also common; then sizes in between, until the
    // gain is too small.
    let sizes = [1448, 1448, 1448, 1440, 1440, 1440, 1428, 1428, 1428, 1368, 1368, 1368];
    let between = [1296, 1296, 1296, 1260, 1260, 1260];
    for (round, size) in sizes.into_iter().chain(between).enumerate() {
        let cwnd = script.end.tcb.cwnd();
        let sent = script.write(1228 * 6);
        assert_eq!((sent[0].payload.len(), sent[1].payload.len()), (size, 1228), "round {round}");
        script.wait_us(100);
        let again = sack_all_but_first(&mut script, &sent);
        assert_eq!(lens(&again), [1228, size - 1228], "round {round}");
        assert_eq!(script.end.tcb.cwnd(), cwnd, "round {round}");
        let last = sent.last().expect("several");
        script.ack = last.seq + last.seq_len();
        script.wait_us(100);
        script.ts = again[1].options.ts.map(|(val, _)| (100, val));
        script.send(script.fields());
        assert!(script.end.tcb.all_acked());
    }
    let stats = script.end.tcb.stats();
    assert_eq!((stats.pmtu_probes, stats.pmtu_probes_lost, stats.fast_recoveries), (18, 18, 0));
    assert_eq!(script.write(1228 * 2)[0].payload.len(), 1228, "the search has ended");
    script.ack += 1228 * 2;
    script.send(script.fields());
    assert!(script.end.events.is_empty());
    // Later the path may have changed.
    script.wait_us(600_000_000);
    assert_eq!(script.write(1448)[0].payload.len(), 1448);
    script.ack += 1448;
    script.send(script.fields());
    assert_eq!((script.end.tcb.path_mtu(), script.end.events.len()), (1500, 1));
    let stats = script.end.tcb.stats();
    assert_eq!(stats.pmtu_probes - stats.pmtu_probes_lost, 1);
}

#[test]
fn loss_beside_pmtu_probe_reduces_cwnd() {
    let always = PathMtuConfig { probe: Probing::Always, ..PathMtuConfig::default() };
    let mut script = script(always);
    let sent = script.write(1228 * 8);
    let cwnd = script.end.tcb.cwnd();
    let rest: Vec<Segment> = sent[1..].to_vec();
    sack_all_but_first(&mut script, &rest);
    assert_eq!(script.end.tcb.stats().fast_recoveries, 1);
    assert!(script.end.tcb.cwnd() < cwnd);
}

#[test]
fn ptb_for_probe_sets_next_probe_size() {
    let always = PathMtuConfig { probe: Probing::Always, ..PathMtuConfig::default() };
    let mut script = script(always);
    let sent = script.write(1228 * 4);
    assert_eq!(sent[0].payload.len(), 1448);
    let error = too_big(&script, Some(1400));
    assert!(script.end.tcb.packet_too_big(script.now, &error));
    assert_eq!((script.end.tcb.emss(), script.end.events.len()), (1228, 0));
    assert_eq!(lens(&script.output()), [1228, 220]);
    script.ack = script.end.tcb.snd.nxt;
    script.send(script.fields());
    assert_eq!(script.write(1348)[0].payload.len(), 1348);
    script.ack += 1348;
    script.send(script.fields());
    assert_eq!(script.end.tcb.path_mtu(), 1400);
}

#[test]
fn pmtu_probe_waits_for_enough_data() {
    let always = PathMtuConfig { probe: Probing::Always, ..PathMtuConfig::default() };
    let mut script = script(always);
    script.end.record_len = 100;
    let out = script.write(5000);
    assert!(out.iter().all(|seg| seg.payload.len() == 100));
    assert_eq!(script.end.tcb.stats().pmtu_probes, 0);
}

/// Transfers data while the path MTU goes from 9000 to 1500, to 600 and back to 9000.
fn run_over_changing_path(seed: u64, icmp_reports_mtu: Option<bool>, lose: u32, cfg: &Config) {
    println!("seed {seed} replies {icmp_reports_mtu:?} lost {lose}");
    let faults = Faults { lose, ..Faults::default() };
    let mut sim = Sim::new(seed, faults, [cfg.clone(), cfg.clone()]);
    sim.connect();
    for side in 0..2 {
        let end = sim.end(side);
        end.to_write = u64::MAX >> 8;
        end.tcb.open_window();
    }
    let options = if cfg.timestamps { 12 } else { 0 };
    for mtu in [9000, 1500, 600, 9000] {
        sim.router = (mtu < 9000).then_some(Router { mtu, icmp_reports_mtu });
        // Least path MTU to be reached: exactly what a router reports, else what is worth a probe.
        let least = match (mtu, icmp_reports_mtu) {
            (9000, _) | (_, Some(true)) => mtu,
            (1500, None) => 1500,
            (1500, _) => 1492,
            _ => 576,
        };
        for side in 0..2 {
            sim.run_until("segment size", |ends| {
                let tcb = &ends[side].as_ref().expect("connected").tcb;
                (least..=mtu).contains(&tcb.path_mtu())
            });
            let emss = usize::from(sim.end(side).tcb.path_mtu()) - 40 - options;
            assert_eq!(sim.end(side).tcb.emss(), emss);
        }
        let goals = [0, 1].map(|side| sim.end(side).read + 30_000);
        sim.run_until("transfer", |ends| {
            let read = |side: usize| ends[side].as_ref().map_or(0, |end| end.read);
            read(0) >= goals[0] && read(1) >= goals[1]
        });
    }
    for side in 0..2 {
        sim.end(side).to_write = 0;
    }
    sim.run_until("end", |ends| ends.iter().flatten().all(|end| end.tcb.all_acked()));
    let (left, right) = (sim.end(0).read, sim.end(1).read);
    assert_eq!((sim.end(0).written, sim.end(1).written), (right, left));
    for side in 0..2 {
        let stats = sim.end(side).tcb.stats();
        assert!(stats.resegments > 0 && stats.pmtu_probes > 0);
        assert!(icmp_reports_mtu.is_some() || stats.black_holes > 0);
        assert!(sim.end(side).events.contains(&Event::EmssChanged));
        sim.end(side).tcb.close();
    }
}

#[test]
fn path_mtu_follows_a_changing_path() {
    for seed in 0..15 {
        let icmp_reports_mtu = [Some(true), Some(false), None][(seed % 3) as usize];
        let lose = if seed % 2 == 0 { 0 } else { 5 };
        let path_mtu = PathMtuConfig { raise_ns: 5 * MILLISECOND, ..PathMtuConfig::default() };
        let cfg = Config {
            mss: 8960,
            recv_window: 40_000,
            recv_window_max: 40_000,
            timestamps: seed % 5 > 0,
            sack: seed % 7 > 0,
            user_timeout_ns: 1000 * SECOND,
            path_mtu,
            ..Config::default()
        };
        run_over_changing_path(seed, icmp_reports_mtu, lose, &cfg);
    }
}
