//! Random segments: fields around the edges of both windows, at any time, in any state. Nothing
//! panics, queues stay bounded, the window is never retracted, output ends.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{
    Config, Contiguous, Delivered, Fields, Flags, HeapFrame, OooPolicy, Options, Script, Seq,
};
use crate::device::ChecksumMode;
use crate::tcp::{Algorithm, EcnMode, PathMtuConfig, Probing, State, TooBig};
use crate::wire::tcp::{Ecn, MAX_HEADER_LEN};

const ALGORITHMS: [Algorithm; 3] = [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp];
const PROBING: [Probing; 3] = [Probing::Off, Probing::Auto, Probing::Always];

/// A sequence number near one of `marks`.
fn near(rng: &mut SmallRng, marks: &[Seq]) -> Seq {
    let mark = marks[rng.random_range(0..marks.len())];
    match rng.random_range(0..8) {
        0 => Seq(rng.random()),
        1 => mark + rng.random_range(0..100_000u32),
        2 => mark - rng.random_range(0..100_000u32),
        3 | 4 => mark + rng.random_range(0..3000u32),
        5 => mark - rng.random_range(0..3u32),
        _ => mark,
    }
}

fn random_fields(rng: &mut SmallRng, script: &Script) -> Fields {
    let tcb = &script.end.tcb;
    let rcv = [tcb.rcv.nxt, tcb.rcv.adv, tcb.peer.irs, tcb.peer.fin_seq.unwrap_or(tcb.rcv.nxt)];
    let snd = [tcb.snd.una, tcb.snd.nxt, tcb.local.iss, tcb.write_seq()];
    let flags = match rng.random_range(0..12) {
        0 => Flags(rng.random()),
        1 => Flags::ACK | Flags::FIN,
        2 => Flags::SYN,
        3 => Flags::SYN | Flags::ACK,
        4 => Flags::ACK | Flags::ECE,
        5 => Flags::ACK | Flags::CWR,
        _ => Flags::ACK,
    };
    let mut options = Options::default();
    if tcb.ts_on && rng.random_range(0..20) > 0 {
        let clock = tcb.ts.tsval(script.now);
        let val = tcb.ts.recent.wrapping_add(rng.random_range(0..3u32)).wrapping_sub(1);
        options.ts = Some((val, clock.wrapping_sub(rng.random_range(0..2000u32))));
    }
    for _ in 0..rng.random_range(0..4) {
        let block = (near(rng, &snd), near(rng, &snd));
        options.sack.push(block);
    }
    Fields {
        seq: near(rng, &rcv),
        ack: near(rng, &snd),
        flags,
        window: [0, 1, 100, 5000, 65_535][rng.random_range(0..5)],
        options,
        ecn: [Ecn::NotEct, Ecn::Ect0, Ecn::Ce][rng.random_range(0..3)],
    }
}

/// Delivers any segment; the delivered bytes are not verified.
fn deliver(script: &mut Script, fields: &Fields, payload_len: usize) {
    let mut buf = vec![7; MAX_HEADER_LEN + payload_len];
    let len = script.template.emit(&mut buf, fields, payload_len, ChecksumMode::Software);
    let frame = HeapFrame::new(&buf[..len]);
    let seg = frame.parse();
    let action = script.end.choose_ooo_action();
    let (tcb, pool) = (&mut script.end.tcb, &mut script.end.pool);
    let (edge, nxt, synchronized) = (tcb.rcv.adv, tcb.rcv.nxt, tcb.state().is_synchronized());
    let mut taken = 0;
    match tcb.handle_segment(script.now, &seg, frame) {
        Delivered::Nothing => {}
        Delivered::InOrder { bytes, .. } => {
            assert!(!bytes.is_empty() && bytes.end <= len && bytes.start >= seg.payload.start);
            taken += bytes.len();
        }
        Delivered::OutOfOrder { frame, offer } => {
            let (first, bytes) = (offer.seq(), offer.bytes());
            assert!(!bytes.is_empty() && bytes.end <= len && bytes.start >= seg.payload.start);
            assert_eq!((first - seg.seq) as usize, bytes.start - seg.payload.start);
            match action {
                0 => drop(tcb.buffer_ooo(pool, offer, frame)),
                1 => tcb.consumed_ooo(pool, offer),
                _ => tcb.drop_ooo(offer),
            }
        }
    }
    while let Some(next) = tcb.next_contiguous() {
        taken += match next {
            Contiguous::Buffered { segment, bytes } => {
                pool.release(segment);
                bytes.len()
            }
            Contiguous::Consumed { len, .. } => len as usize,
        };
    }
    tcb.release_ooo(pool);
    assert!(tcb.ooo_segments() > 0 || (pool.frames(), pool.bytes()) == (0, 0));
    if synchronized {
        assert!(tcb.rcv.adv >= edge, "the window shrank");
        let fin = usize::from(tcb.peer.fin_received);
        let moved = (tcb.rcv.nxt - nxt) as usize;
        assert!(moved == taken || moved == taken + fin, "bytes are counted as delivered");
    }
    tcb.scoreboard.check(tcb.sack);
    assert!(tcb.snd.una <= tcb.snd.nxt);
}

fn run(seed: u64) -> State {
    let mut rng = SmallRng::seed_from_u64(seed);
    let cfg = Config {
        timestamps: rng.random(),
        sack: rng.random_range(0..4) > 0,
        max_ooo_segments: 8,
        max_records: 16,
        keepalive_ns: rng.random::<bool>().then_some(1_000_000_000),
        congestion: ALGORITHMS[rng.random_range(0..3)],
        ecn: EcnMode::Request,
        path_mtu: PathMtuConfig {
            probe: PROBING[rng.random_range(0..3)],
            floor_v4: rng.random_range(0..1500),
            ..PathMtuConfig::default()
        },
        ..Config::default()
    };
    let mut script = if rng.random_range(0..5) == 0 {
        Script::connecting(&cfg).0
    } else {
        let mss = [1, 64, 100, 536, 1460, 9000][rng.random_range(0..6)];
        let wscale = [None, Some(0), Some(7), Some(14)][rng.random_range(0..4)];
        Script::established(&cfg, Options { mss: Some(mss), wscale, ..Script::full_options() })
    };
    script.end.tcb.ecn.enabled |= rng.random::<bool>();
    script.end.tcb.update_fast_path();
    script.end.ooo_policy = OooPolicy::Random(SmallRng::seed_from_u64(!seed));
    for _ in 0..400 {
        match rng.random_range(0..28) {
            0 => script.end.to_write += rng.random_range(0..20_000u64),
            1 => {
                if script.end.tcb.deadline().is_some() {
                    script.fire();
                }
            }
            2 => script.wait_us(rng.random_range(0..10_000)),
            10 if rng.random_range(0..60) == 0 => {
                // Up to three wraps of the timestamp clock.
                script.wait_us(rng.random_range(0..3 << 32));
            }
            // The host was stopped for a while.
            11 if rng.random_range(0..10) == 0 && script.end.tcb.deadline().is_some() => {
                script.now = script.end.tcb.deadline().unwrap().max(script.now);
                script.wait_us(rng.random_range(0..3_000_000));
                script.end.timeout(script.now);
            }
            // Only one frame is available.
            12 => drop(script.end.transmit_one(script.now)),
            // No frame is available.
            13 if script.end.tcb.deadline().is_some() => {
                script.now = script.end.tcb.deadline().unwrap().max(script.now);
                script.end.timeout(script.now);
            }
            3 => script.end.tcb.add_unconsumed(rng.random_range(0..5000)),
            4 => script.end.tcb.consume(rng.random_range(0..8000)),
            5 => script.end.tcb.open_window(),
            6 if rng.random_range(0..20) == 0 => script.end.tcb.close(),
            7 if rng.random_range(0..20) == 0 => {
                let error = TooBig {
                    seq: script.end.tcb.snd.una + rng.random_range(0..2000),
                    ack: None,
                    mtu: rng.random::<bool>().then(|| rng.random_range(0..1600)),
                    packet_len: rng.random_range(0..2000),
                };
                script.end.tcb.packet_too_big(script.now, &error);
            }
            8 if rng.random_range(0..60) == 0 => script.end.tcb.shut_receive(),
            9 => {
                let fields = Fields { ack: script.end.tcb.snd.nxt, ..script.fields() };
                let seq = script.end.tcb.rcv.nxt;
                deliver(&mut script, &Fields { seq, ..fields }, 0);
            }
            _ => {
                let fields = random_fields(&mut rng, &script);
                let len = [0, 1, 500, 1448][rng.random_range(0..4)];
                deliver(&mut script, &fields, len);
            }
        }
        if rng.random_range(0..3) > 0 {
            script.output();
        }
        let tcb = &script.end.tcb;
        assert!(tcb.scoreboard.len() as u32 <= 17 + tcb.stats().resegments);
        assert!(tcb.assembler.ranges().len() <= 8);
        if tcb.is_closed() {
            assert!(tcb.deadline().is_none() && !tcb.unsent_or_unacked());
        }
    }
    script.end.tcb.state()
}

#[test]
fn random_segments_violate_no_invariant() {
    let mut survived = 0;
    for seed in 0..1500 {
        println!("seed {seed}");
        survived += u32::from(run(seed) != State::Closed);
    }
    // Enough connections stay open long enough for the test to be meaningful.
    assert!(survived > 100, "{survived}");
}
