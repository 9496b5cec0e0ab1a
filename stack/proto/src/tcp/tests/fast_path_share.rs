//! Fast path eligibility: the share of a connection's segments that header prediction handles.

use super::pair::Pair;
use super::recovery::end_seq;
use super::{Config, Fields, Script};
use crate::tcp::header_prediction::tests::Counts;
use crate::tcp::{Algorithm, EcnMode, PathMtuConfig, TooBig};
use crate::time::{MICROSECOND, MILLISECOND};
use crate::wire::tcp::{Ecn, Flags, MAX_HEADER_LEN};

const ALGORITHMS: [Algorithm; 3] = [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Dctcp];

/// The shares of segments on the fast path, received segments and sent data segments, in a bulk
/// transfer over a path without loss.
fn fast_path_shares(cfg: &Config) -> [f64; 2] {
    const RECORDS: u64 = 2000;
    let mut pair = Pair::new([cfg.clone(), cfg.clone()], 10 * MICROSECOND, 1);
    pair.server().tcb.open_window();
    pair.bits_per_second = 10_000_000_000;
    pair.client().checks_scoreboard = false;
    pair.write(1448 * 100);
    pair.run_idle(MILLISECOND);
    let received = |pair: &mut Pair| {
        let stats = pair.ends.iter().flatten().map(|end| end.tcb.stats());
        stats.fold([0; 2], |[all, slow], stats| {
            [all + u64::from(stats.segments_in), slow + u64::from(stats.slow_path_in)]
        })
    };
    let ([before, slow_before], counts) = (received(&mut pair), Counts::now());
    pair.write(1448 * RECORDS);
    pair.run_idle(MILLISECOND);
    let ([after, slow_after], counts) = (received(&mut pair), Counts::now() - counts);
    assert_eq!(counts.received, (after - before) - (slow_after - slow_before));
    [counts.received as f64 / (after - before) as f64, counts.sent as f64 / RECORDS as f64]
}

#[test]
fn connections_with_ecn_take_the_fast_path() {
    for congestion in ALGORITHMS {
        for ecn in [EcnMode::Off, EcnMode::Request] {
            let shares = fast_path_shares(&Config { congestion, ecn, ..Config::default() });
            assert!(shares.iter().all(|share| *share > 0.9), "{congestion:?} {ecn:?}: {shares:?}");
        }
    }
}

/// An established client that has negotiated ECN.
fn ecn_established(congestion: Algorithm) -> Script {
    let cfg = Config { congestion, ecn: EcnMode::Request, ..Config::default() };
    let (mut script, _) = Script::connecting(&cfg);
    let flags = Flags::SYN | Flags::ACK | Flags::ECE;
    let fields = Fields { flags, options: Script::full_options(), ..script.fields() };
    script.seq += 1;
    script.ts = fields.options.ts;
    script.send(fields);
    assert!(script.end.tcb.ecn.enabled);
    script
}

/// Sends a record that is acknowledged, and checks whether data and ACK take the fast path.
fn exchange(script: &mut Script, flags: Flags, fast: [bool; 2]) {
    let before = Counts::now();
    let sent = script.write(1000);
    assert_eq!(sent[0].ecn, Ecn::Ect0);
    script.wait_us(100);
    script.ack = end_seq(&sent[0]);
    script.ts.as_mut().unwrap().1 = sent[0].options.ts.unwrap().0;
    let fields = script.fields();
    script.send(Fields { flags: fields.flags | flags, ..fields });
    let counts = Counts::now() - before;
    assert_eq!([counts.sent > 0, counts.received > 0], fast);
}

/// The peer sends a record; returns true if it took the fast path.
fn receive(script: &mut Script, ecn: Ecn, flags: Flags) -> bool {
    let before = Counts::now();
    let fields = script.fields();
    script.send_data(Fields { ecn, flags: fields.flags | flags, ..fields }, 100);
    script.seq += 100;
    (Counts::now() - before).received > 0
}

/// A port may refuse the frame whose headers were made: what they acknowledge is due as before.
#[test]
fn train_of_which_nothing_is_sent_acknowledges_nothing() {
    let mut script = Script::established(&Config::default(), Script::full_options());
    script.end.tcb.open_window();
    script.output();
    for _ in 0..3 {
        script.deliver(&script.fields(), 1000);
        script.seq += 1000;
    }
    script.wait_us(10);
    let before = format!("{:?}", script.end.tcb);
    let mut headers = [0; MAX_HEADER_LEN];
    let train = script.end.tcb.begin_tso_train(script.now, &mut headers, 1000, 2);
    script.end.tcb.end_train(script.now, train);
    assert_eq!(format!("{:?}", script.end.tcb), before);
    let out = script.output();
    assert_eq!((out.len(), out[0].ack), (1, script.seq), "the ACK is still due");
}

#[test]
fn ece_takes_the_slow_path_until_the_reduction_ends() {
    for congestion in ALGORITHMS {
        let mut script = ecn_established(congestion);
        exchange(&mut script, Flags::default(), [true; 2]);
        exchange(&mut script, Flags::ECE, [true, false]);
        assert_eq!(script.end.tcb.stats().ece_reductions, 1);
        // The next segment carries CWR; its ACK ends the reduction.
        exchange(&mut script, Flags::default(), [false; 2]);
        exchange(&mut script, Flags::default(), [true; 2]);
    }
}

#[test]
fn ce_takes_the_slow_path_until_the_echo_ends() {
    for congestion in ALGORITHMS {
        let mut script = ecn_established(congestion);
        assert!(receive(&mut script, Ecn::Ect0, Flags::default()));
        assert!(!receive(&mut script, Ecn::Ce, Flags::default()));
        assert_eq!(script.end.tcb.stats().ce_in, 1);
        assert!(!receive(&mut script, Ecn::Ect0, Flags::default()), "the echo is pending");
        // The echo of DCTCP ends with the CE marks, that of RFC 3168 with CWR.
        assert!(!receive(&mut script, Ecn::Ect0, Flags::CWR));
        script.output();
        assert!(receive(&mut script, Ecn::Ect0, Flags::default()), "{congestion:?}");
    }
}

/// RFC 8257 section 3.3: alpha decays by a sixteenth per window without marks, on either path.
#[test]
fn dctcp_alpha_is_updated_on_the_fast_path() {
    let mut script = ecn_established(Algorithm::Dctcp);
    let part = |script: &Script| {
        let mut cc = script.end.tcb.cc;
        let before = cc.cwnd();
        cc.on_ece(0, 1448);
        f64::from(before - cc.cwnd()) / f64::from(before)
    };
    assert!((part(&script) - 0.5).abs() < 0.01, "everything counts as marked at first");
    for _ in 0..64 {
        exchange(&mut script, Flags::default(), [true; 2]);
    }
    // (15/16)^64 is 0.016; the reduction is half of that.
    assert!(part(&script) < 0.01, "{}", part(&script));
}

#[test]
fn lowered_path_mtu_keeps_the_fast_path_until_a_probe_is_due() {
    const RAISE_US: u64 = 1_000_000;
    let path_mtu = PathMtuConfig { raise_ns: RAISE_US * 1000, ..PathMtuConfig::default() };
    let cfg = Config { path_mtu, idle_restart: false, ..Config::default() };
    let mut script = Script::established(&cfg, Script::full_options());
    script.write(1448 * 4);
    let start = script.now;
    let error =
        TooBig { seq: script.end.tcb.snd.una, ack: None, mtu: Some(1400), packet_len: 1500 };
    assert!(script.end.tcb.packet_too_big(start, &error));
    let acknowledge = |script: &mut Script, bytes: u64| {
        let sent = script.write(bytes);
        script.wait_us(100);
        script.ack = script.end.tcb.snd.nxt;
        script.ts.as_mut().unwrap().1 = sent.last().unwrap().options.ts.unwrap().0;
        script.send(script.fields());
        sent
    };
    acknowledge(&mut script, 1348 * 4);
    let (before, rounds) = (Counts::now(), 20);
    for _ in 0..rounds {
        let sent = acknowledge(&mut script, 1348 * 4);
        assert!(sent.iter().all(|seg| seg.payload.len() == 1348));
    }
    let counts = Counts::now() - before;
    assert!(counts.sent >= 4 * rounds * 9 / 10, "{counts:?}");
    assert!(counts.received >= rounds * 9 / 10, "{counts:?}");
    // The raise timer expired: one of the next segments is a path MTU probe.
    script.wait_us(RAISE_US);
    acknowledge(&mut script, 1348 * 4);
    let sent = acknowledge(&mut script, 1448 * 4);
    assert!(sent.iter().any(|seg| seg.payload.len() == 1448), "no probe");
    assert_eq!(script.end.tcb.stats().pmtu_probes, 1);
    assert_eq!(script.end.tcb.path_mtu(), 1500, "and it passed");
}
