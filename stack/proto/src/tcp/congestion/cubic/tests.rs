//! RFC 9438 section by section, and the integers against the formulas in floating point.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{TIME_BITS, compute_k, cube_root};
use crate::tcp::congestion::{AckSample, Congestion};
use crate::tcp::settings::Algorithm;
use crate::time::{Instant, MILLISECOND, SECOND};
use crate::wire::seq::Seq;

const MSS: u32 = 1460;

/// Controller and path on which every byte of the window is acknowledged once per round trip.
struct Path {
    cc: Congestion,
    now: Instant,
    rtt_ns: u64,
    mss: u32,
}

impl Path {
    fn new(rtt_ns: u64, mss: u32) -> Self {
        let cc = Congestion::new(Algorithm::Cubic, mss);
        Self { cc, now: Instant::from_nanos(SECOND), rtt_ns, mss }
    }

    /// After slow start and a loss, at a window of `segments`.
    fn reduced_to(segments: u32, rtt_ns: u64) -> Self {
        let mut path = Self::new(rtt_ns, MSS);
        path.ack(segments * MSS * 10 / 7 - path.cc.cwnd());
        path.cc.on_loss(path.cc.cwnd(), MSS);
        path
    }

    fn ack(&mut self, bytes: u32) {
        self.cc.on_ack(&AckSample {
            now: self.now,
            bytes,
            mss: self.mss,
            srtt_ns: self.rtt_ns,
            rtt_ns: None,
            snd_una: Seq(0),
            snd_nxt: Seq(0),
            recovering: false,
        });
    }

    /// One round trip of ACKs, one per two segments.
    fn round(&mut self) {
        let window = self.cc.cwnd();
        let acks = (window / (2 * self.mss)).max(1);
        for _ in 0..acks {
            self.now = self.now + self.rtt_ns / u64::from(acks);
            self.ack(window / acks);
        }
    }

    fn rounds_until(&mut self, limit: u32, done: impl Fn(&Self) -> bool) -> u32 {
        let rounds = (0..limit).take_while(|_| {
            let over = done(self);
            if !over {
                self.round();
            }
            !over
        });
        u32::try_from(rounds.count()).unwrap()
    }

    fn segments(&self) -> f64 {
        f64::from(self.cc.cwnd()) / f64::from(self.mss)
    }
}

/// The formulas of RFC 9438 as written there, in segments and seconds.
#[derive(Clone, Copy, Debug)]
struct Model {
    cwnd: f64,
    ssthresh: f64,
    w_max: f64,
    prior: f64,
    est: f64,
    k: f64,
    epoch: Option<f64>,
    updated: f64,
}

const C: f64 = 0.4;
const BETA: f64 = 0.7;

impl Model {
    fn w_cubic(&self, t: f64) -> f64 {
        C * (t - self.k).powi(3) + self.w_max
    }

    fn ack(&mut self, now: f64, rtt: f64, segments: f64) {
        if self.cwnd < self.ssthresh {
            self.cwnd = (self.cwnd + segments).min(self.ssthresh);
            return;
        }
        if self.epoch.is_none() {
            self.epoch = Some(now);
            self.updated = now;
            self.est = self.cwnd;
            if self.w_max == 0.0 {
                self.prior = self.prior.max(self.cwnd);
            }
            self.w_max = self.w_max.max(self.cwnd);
            self.k = ((self.w_max - self.cwnd) / C).cbrt();
        }
        let gap = now - self.updated;
        if gap > 2.0 * rtt {
            self.epoch = self.epoch.map(|epoch| epoch + gap - rtt);
        }
        self.updated = now;
        let t = now - self.epoch.unwrap();
        let alpha = if self.est < self.prior { 3.0 * (1.0 - BETA) / (1.0 + BETA) } else { 1.0 };
        self.est += alpha * segments / self.cwnd;
        if self.w_cubic(t) < self.est {
            self.cwnd = self.cwnd.max(self.est);
        } else {
            let target = self.w_cubic(t + rtt).clamp(self.cwnd, 1.5 * self.cwnd);
            self.cwnd += (target - self.cwnd) / self.cwnd * segments;
        }
    }

    fn loss(&mut self) {
        let fast_convergence = (1.0 + BETA) / 2.0;
        self.w_max = if self.cwnd < self.w_max { self.cwnd * fast_convergence } else { self.cwnd };
        self.prior = self.cwnd;
        self.ssthresh = (self.cwnd * BETA).max(2.0);
        self.cwnd = self.ssthresh;
        self.epoch = None;
    }

    fn timeout(&mut self) {
        self.loss();
        self.w_max = 0.0;
        self.cwnd = 1.0;
    }
}

#[test]
fn integer_cubic_matches_the_formulas() {
    for seed in 0..60 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mss = [536, 1460, 8960][rng.random_range(0..3)];
        let rtt_ns = 10u64.pow(rng.random_range(4..9)) * rng.random_range(1..10);
        let mut path = Path::new(rtt_ns, mss);
        path.cc.window.ssthresh = mss * rng.random_range(20..400);
        let segments = |bytes: u32| f64::from(bytes) / f64::from(mss);
        let mut model = Model {
            cwnd: segments(path.cc.cwnd()),
            ssthresh: segments(path.cc.window.ssthresh),
            w_max: 0.0,
            prior: 0.0,
            est: 0.0,
            k: 0.0,
            epoch: None,
            updated: 0.0,
        };
        let per_round = rng.random_range(2..200);
        let mut worst: f64 = 0.0;
        for step in 0..40_000 {
            path.now = path.now + rtt_ns / per_round;
            if rng.random_range(0..5000) == 0 {
                path.now = path.now + rtt_ns * rng.random_range(1..100);
            }
            let bytes = path.cc.cwnd() / u32::try_from(per_round).unwrap();
            path.ack(bytes);
            let seconds = |ns: u64| ns as f64 / 1e9;
            model.ack(seconds(path.now.as_nanos()), seconds(rtt_ns), segments(bytes));
            let flight = path.cc.cwnd() - bytes;
            match rng.random_range(0..8000) {
                0..4 => {
                    path.cc.on_loss(flight, mss);
                    model.loss();
                }
                4 => {
                    path.cc.on_timeout(flight, mss, true);
                    model.timeout();
                }
                _ => {}
            }
            // With a window of a few segments, 1 % is less than the step of an ACK. The window is
            // updated once a 64th of it was acknowledged, in which it grows by up to 0.8 %.
            let error = (path.segments() - model.cwnd).abs() / model.cwnd.max(10.0);
            worst = worst.max(error);
            assert!(error < 0.018, "seed {seed} step {step}: {} {model:?}", path.segments());
            if path.cc.cwnd() > 1 << 30 {
                break;
            }
        }
        println!("seed {seed}: mss {mss} rtt {rtt_ns} ns: within {worst:.5}");
    }
}

#[test]
fn cube_root_rounds_down() {
    for n in (0..2000u32).chain([65_535, 1 << 20, (1 << 26) - 1]) {
        let cube = u128::from(n).pow(3);
        assert_eq!(cube_root(cube), n);
        assert_eq!(cube_root(cube + 3 * u128::from(n)), n);
        if n > 0 {
            assert_eq!(cube_root(cube - 1), n - 1);
        }
    }
    // 100 segments below W_max: (100 / 0.4)^(1/3) = 6.2996 s.
    let k = f64::from(compute_k(100 * MSS, MSS)) / f64::from(1 << TIME_BITS);
    assert!((k - 6.2996).abs() < 1e-4, "{k}");
    assert_eq!(compute_k(0, MSS), 0);
    assert!(compute_k(u32::MAX, 64) > 0);
}

/// Sections 4.2, 4.4 and 4.5: concave up to W_max, which is reached at K; convex beyond.
#[test]
fn growth_is_concave_to_w_max_then_convex() {
    let mut path = Path::reduced_to(700, 100 * MILLISECOND);
    // K = cbrt(300 / 0.4) = 9.09 s.
    let mut windows = vec![path.segments()];
    for _ in 0..180 {
        path.round();
        windows.push(path.segments());
    }
    let growth = |at: usize| windows[at + 1] - windows[at];
    assert!(growth(2) > growth(20) && growth(20) > growth(60), "concave");
    assert!((windows[91] - 1000.0).abs() < 2.0, "{} at K", windows[91]);
    assert!(growth(100) < growth(120) && growth(120) < growth(170), "convex");
    // At twice K the curve is as far above W_max as it began below.
    assert!((windows[180] - 1290.0).abs() < 20.0, "{}", windows[180]);
}

/// Section 4.3: on short paths CUBIC grows as Reno does, and never slower.
#[test]
fn reno_friendly_region_on_short_rtt() {
    let mut path = Path::reduced_to(70, 2 * MILLISECOND);
    let rounds = path.rounds_until(1000, |path| path.segments() >= 100.0);
    // 9/17 of a segment per round trip, up to the window before the reduction.
    assert!((54..=60).contains(&rounds), "{rounds}");
    let rounds = path.rounds_until(1000, |path| path.segments() >= 130.0);
    assert!((28..=32).contains(&rounds), "{rounds}: then a whole segment");
}

/// Section 4.6: seven tenths of the window, however little of it was in flight, and at least two
/// segments.
#[test]
fn loss_reduces_cwnd_by_beta() {
    let mut path = Path::new(MILLISECOND, MSS);
    path.ack(100_000 - path.cc.cwnd());
    path.cc.on_loss(100_000, MSS);
    assert_eq!((path.cc.cwnd(), path.cc.ssthresh()), (70_000, 70_000));
    path.cc.on_loss(1000, MSS);
    assert_eq!((path.cc.cwnd(), path.cc.ssthresh()), (49_000, 49_000));
    path.cc.on_ece(1000, MSS);
    assert_eq!((path.cc.cwnd(), path.cc.ssthresh()), (34_300, 34_300));
    for _ in 0..20 {
        path.cc.on_loss(1000, MSS);
    }
    assert_eq!(path.cc.cwnd(), 2 * MSS);
}

/// Section 4.7: if the window is below the former W_max, the next one is lower than the window was.
#[test]
fn fast_convergence_lowers_w_max() {
    let mut path = Path::reduced_to(700, 100 * MILLISECOND);
    path.rounds_until(200, |path| path.segments() >= 900.0);
    let window = path.segments();
    path.cc.on_loss(path.cc.cwnd(), MSS);
    let crate::tcp::congestion::control::AlgorithmState::Cubic(cubic) = path.cc.algorithm else {
        panic!("CUBIC")
    };
    let w_max = f64::from(cubic.w_max) / f64::from(MSS);
    assert!((w_max - 0.85 * window).abs() < 0.1, "{w_max} {window}");
}

/// Section 4.8: after a timeout W_max is the window at which slow start ends.
#[test]
fn timeout_resets_w_max() {
    let mut path = Path::reduced_to(700, 100 * MILLISECOND);
    path.cc.on_timeout(path.cc.cwnd(), MSS, true);
    path.cc.on_timeout(MSS, MSS, false);
    assert_eq!(path.cc.cwnd(), MSS);
    let rounds = path.rounds_until(100, |path| !path.cc.in_slow_start());
    assert!((8..=10).contains(&rounds), "{rounds}: doubling");
    assert!((path.segments() - 490.0).abs() < 1.0, "seven tenths, {}", path.segments());
    path.round();
    let crate::tcp::congestion::control::AlgorithmState::Cubic(cubic) = path.cc.algorithm else {
        panic!("CUBIC")
    };
    assert_eq!((cubic.k, cubic.w_max), (0, cubic.cwnd_prior.min(cubic.w_max)));
    assert!((f64::from(cubic.w_max) / f64::from(MSS) - 490.0).abs() < 1.0);
}

/// Section 4.9: the undo of a spurious congestion event restores everything.
#[test]
fn undo_restores_cubic_state() {
    let mut path = Path::reduced_to(700, 100 * MILLISECOND);
    for _ in 0..40 {
        path.round();
    }
    let mut other = Path { ..path };
    let prior = path.cc;
    path.cc.on_loss(path.cc.cwnd(), MSS);
    path.cc.on_timeout(path.cc.cwnd(), MSS, true);
    path.now = path.now + path.rtt_ns;
    other.now = path.now;
    path.cc.restore(prior);
    for _ in 0..100 {
        path.round();
        other.round();
        assert_eq!(path.cc.cwnd(), other.cc.cwnd());
    }
}

/// Sections 4.2 and 5.8: while the window is not in use, the time of the cubic does not advance.
#[test]
fn idle_time_does_not_advance_the_epoch() {
    let mut path = Path::reduced_to(700, 100 * MILLISECOND);
    for _ in 0..30 {
        path.round();
    }
    let mut idle = Path { ..path };
    idle.now = idle.now + 60 * SECOND;
    for _ in 0..100 {
        path.round();
        idle.round();
        let ratio = idle.segments() / path.segments();
        assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
    }
}

/// Section 4.10: when HyStart++ ends slow start, W_max is the window.
#[test]
fn hystart_exit_starts_at_w_max() {
    let mut path = Path::new(100 * MILLISECOND, MSS);
    path.cc.window.ssthresh = path.cc.cwnd();
    path.round();
    let crate::tcp::congestion::control::AlgorithmState::Cubic(cubic) = path.cc.algorithm else {
        panic!("CUBIC")
    };
    assert_eq!((cubic.k, cubic.w_max), (0, 14_600));
}
