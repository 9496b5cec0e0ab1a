//! Tests of SYN cookies: encoded options, validity, and rejected ACKs.

use core::net::SocketAddr;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{LIFETIME_NS, PERIOD_NS, SynCookies, encode_options};
use crate::tcp::{Config, EcnMode, IssAndTsOffset};
use crate::time::{Instant, MICROSECOND, SECOND};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Fields, Flags, FourTuple, Options, Segment};

fn syn(options: Options) -> Segment {
    let local: SocketAddr = "198.18.0.2:4420".parse().unwrap();
    let remote: SocketAddr = "198.18.0.1:40000".parse().unwrap();
    Segment {
        tuple: FourTuple { local, remote },
        seq: Seq(0xffff_ffff),
        ack: Seq(0),
        flags: Flags::SYN,
        window: 64_000,
        ecn: Default::default(),
        options,
        payload: 0..0,
    }
}

fn all_options() -> Options {
    Options {
        mss: Some(1460),
        wscale: Some(7),
        sack_permitted: true,
        ts: Some((77, 0)),
        ..Options::default()
    }
}

/// The ACK of `answer`, with payload.
fn ack_of(syn: &Segment, answer: &Fields) -> Segment {
    Segment {
        seq: syn.seq + 1,
        ack: answer.seq + 1,
        flags: Flags::ACK,
        options: Options::timestamps(answer.options.ts.map(|(val, _)| (78, val))),
        payload: 66..100,
        ..syn.clone()
    }
}

const ISS_TS: IssAndTsOffset = IssAndTsOffset { iss: Seq(0), ts_offset: 0xffff_ffff };

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

#[test]
fn all_option_combinations_round_trip() {
    let (cookies, cfg) = (SynCookies::new(1), Config::default());
    let scales = (0..=14).map(Some).chain([None]);
    for (wscale, sack_permitted) in scales.flat_map(|scale| [(scale, true), (scale, false)]) {
        for mss in [Some(64), Some(1460), Some(8960), None] {
            // Just before, and after, the timestamp clock wraps.
            for now in [at(0), at(MICROSECOND), at(40 * MICROSECOND), at(999 * SECOND)] {
                let syn = syn(Options { mss, wscale, sack_permitted, ..all_options() });
                let answer = cookies.syn_ack(now, &cfg, &syn, ISS_TS);
                assert_eq!(answer.flags, Flags::SYN | Flags::ACK);
                assert_eq!(answer.ack, Seq(0));
                assert_eq!(answer.options.wscale.is_some(), wscale.is_some());
                assert_eq!(answer.options.sack_permitted, sack_permitted);
                let ack = ack_of(&syn, &answer);
                let later = now + 300 * MICROSECOND;
                let verified = cookies.verify(later, &cfg, &ack, ISS_TS).unwrap();
                let (kept, cookie) = (verified.syn, verified.cookie);
                let age = later.since(verified.sent_at.unwrap());
                assert!((300..=364).contains(&(age / MICROSECOND)), "{age}");
                assert_eq!((kept.seq, kept.flags, cookie), (syn.seq, Flags::SYN, answer.seq));
                assert_eq!(kept.options.mss, mss.or(Some(536)));
                assert_eq!(kept.options.wscale, wscale);
                assert_eq!(kept.options.sack_permitted, sack_permitted);
                assert!(kept.options.ts.is_some() && kept.payload.is_empty());
            }
        }
    }
}

#[test]
fn ecn_round_trips_only_if_negotiated() {
    let cookies = SynCookies::new(1);
    let asks = Flags::SYN | Flags::ECE | Flags::CWR;
    for (flags, ecn, ts, negotiated) in [
        (asks, EcnMode::Accept, Some((1, 0)), true),
        (asks, EcnMode::Request, Some((1, 0)), true),
        (asks, EcnMode::Off, Some((1, 0)), false),
        (asks, EcnMode::Accept, None, false),
        (Flags::SYN | Flags::ECE, EcnMode::Accept, Some((1, 0)), false),
        (Flags::SYN, EcnMode::Accept, Some((1, 0)), false),
    ] {
        let cfg = Config { ecn, ..Config::default() };
        let syn = Segment { flags, ..syn(Options { ts, ..all_options() }) };
        let answer = cookies.syn_ack(at(5), &cfg, &syn, ISS_TS);
        assert_eq!(answer.flags.has(Flags::ECE), negotiated);
        assert!(!answer.flags.has(Flags::CWR));
        let kept = cookies.verify(at(6), &cfg, &ack_of(&syn, &answer), ISS_TS).unwrap().syn;
        assert_eq!(kept.flags, if negotiated { asks } else { Flags::SYN });
    }
}

#[test]
fn without_timestamps_only_mss_round_trips() {
    let (cookies, cfg) = (SynCookies::new(1), Config::default());
    let no_timestamps = Config { timestamps: false, ..Config::default() };
    for (cfg, ts) in [(&cfg, None), (&no_timestamps, Some((1, 0)))] {
        for (mss, kept_mss) in [(1460, 1460), (1459, 1440), (9000, 8960), (3, 64)] {
            let syn = syn(Options { mss: Some(mss), ts, ..all_options() });
            let answer = cookies.syn_ack(at(5), cfg, &syn, ISS_TS);
            let options = &answer.options;
            assert_eq!((options.wscale, options.sack_permitted, options.ts), (None, false, None));
            let ack = ack_of(&syn, &answer);
            let verified = cookies.verify(at(6), cfg, &ack, ISS_TS).unwrap();
            assert_eq!(verified.sent_at, None);
            let kept = verified.syn;
            let options = kept.options;
            assert_eq!((options.mss, options.wscale), (Some(kept_mss), None));
            assert!(!options.sack_permitted);
        }
    }
}

#[test]
fn encoded_tsval_is_never_ahead_of_the_clock() {
    for clock in [0, 1, 63, 64, 1000, u32::MAX, u32::MAX - 63] {
        for options in 0..64 {
            let value = encode_options(clock, options);
            assert_eq!(value & 63, options);
            assert!(clock.wrapping_sub(value) < 64, "{clock} {options}");
        }
    }
}

#[test]
fn cookie_is_valid_for_one_to_two_periods() {
    let (cookies, cfg) = (SynCookies::new(1), Config::default());
    for ts in [Some((77, 0)), None] {
        let syn = syn(Options { ts, ..all_options() });
        for sent_at in [at(0), at(PERIOD_NS - 1), at(7 * PERIOD_NS + 5)] {
            let ack = ack_of(&syn, &cookies.syn_ack(sent_at, &cfg, &syn, ISS_TS));
            let counts = |age| cookies.verify(sent_at + age, &cfg, &ack, ISS_TS).is_some();
            assert!(counts(0) && counts(PERIOD_NS));
            assert!(!counts(LIFETIME_NS + SECOND) && !counts(100 * PERIOD_NS));
        }
    }
}

#[test]
fn any_changed_field_invalidates_cookie() {
    let (cookies, cfg) = (SynCookies::new(1), Config::default());
    let syn = syn(all_options());
    let now = at(SECOND);
    let answer = cookies.syn_ack(now, &cfg, &syn, ISS_TS);
    let good = ack_of(&syn, &answer);
    let counts = |ack: &Segment| cookies.verify(now, &cfg, ack, ISS_TS).is_some();
    assert!(counts(&good));
    assert!(SynCookies::new(2).verify(now, &cfg, &good, ISS_TS).is_none(), "another engine's");
    for change in [
        |ack: &mut Segment| ack.ack += 1,
        |ack: &mut Segment| ack.ack += 8,
        |ack: &mut Segment| ack.seq += 1,
        |ack: &mut Segment| ack.tuple.remote.set_port(40_001),
        |ack: &mut Segment| ack.tuple.local.set_port(4421),
        |ack: &mut Segment| ack.options.ts = None,
        |ack: &mut Segment| ack.options.ts.as_mut().unwrap().1 ^= 0x10,
        |ack: &mut Segment| ack.options.ts.as_mut().unwrap().1 ^= 0x8000_0000,
    ] {
        let mut ack = good.clone();
        change(&mut ack);
        assert!(!counts(&ack));
    }
}

#[test]
fn cookie_covers_whole_ipv6_address() {
    let (cookies, cfg) = (SynCookies::new(1), Config::default());
    let mut syn = syn(all_options());
    syn.tuple.local = "[2001:2::2]:4420".parse().unwrap();
    syn.tuple.remote = "[2001:2::1]:40000".parse().unwrap();
    let good = ack_of(&syn, &cookies.syn_ack(at(5), &cfg, &syn, ISS_TS));
    assert!(cookies.verify(at(6), &cfg, &good, ISS_TS).is_some());
    for other in ["[2001:2::3]:40000", "[2001:3::1]:40000", "[3001:2::1]:40000"] {
        let mut ack = good.clone();
        ack.tuple.remote = other.parse().unwrap();
        assert!(cookies.verify(at(6), &cfg, &ack, ISS_TS).is_none(), "{other}");
    }
}

#[test]
fn guessed_cookies_are_rejected() {
    let (cookies, cfg) = (SynCookies::new(1), Config::default());
    let mut rng = SmallRng::seed_from_u64(1);
    let mut hits = 0;
    for _ in 0..2_000_000 {
        let mut ack = syn(Options::default());
        ack.flags = Flags::ACK;
        ack.seq = Seq(rng.random());
        ack.ack = Seq(rng.random());
        hits += u32::from(cookies.verify(at(SECOND), &cfg, &ack, ISS_TS).is_some());
    }
    // The expected number is 2,000,000 / 2^28 = 0.007.
    assert_eq!(hits, 0);
}

#[test]
fn cookies_of_one_peer_have_independent_bits() {
    let (cookies, cfg) = (SynCookies::new(1), Config::default());
    let mut values: Vec<u32> = (0..4096)
        .map(|i| {
            let mut syn = syn(all_options());
            syn.seq = Seq(i);
            cookies.syn_ack(at(5), &cfg, &syn, ISS_TS).seq.0 >> 3
        })
        .collect();
    // Each bit is set in about half of them.
    for bit in 0..29 {
        let count = values.iter().filter(|value| *value >> bit & 1 == 1).count();
        assert!((1800..2300).contains(&count), "bit {bit}: {count}");
    }
    values.sort_unstable();
    values.dedup();
    assert!(values.len() > 4090);
}
