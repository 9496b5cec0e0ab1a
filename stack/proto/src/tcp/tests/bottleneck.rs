//! Two connections over a path with a slow link in the middle, in virtual time: its queue is
//! finite, drops what does not fit, and marks CE above a threshold.

use std::collections::BTreeMap;

use super::{Config, Endpoint, Event, HeapFrame};
use crate::tcp::Algorithm;
use crate::time::{Instant, MILLISECOND, SECOND};
use crate::wire::checksum;
use crate::wire::tcp::{Ecn, Flags};

/// Bytes on the wire in addition to a frame: preamble, frame check sequence, gap.
const OVERHEAD: u64 = 24;

/// The path. Side 0 sends through the queue; the other direction has none.
pub(super) struct Bottleneck {
    pub(super) now: Instant,
    ends: [Option<Endpoint>; 2],
    cfg: [Config; 2],
    pub(super) bits_per_second: u64,
    /// One-way delay.
    pub(super) delay_ns: u64,
    /// Capacity of the queue in bytes, and the threshold above which it marks.
    pub(super) queue_max: u64,
    pub(super) mark_above: Option<u64>,
    /// When the link will have sent all queued frames.
    free_at: Instant,
    /// Frames in flight by arrival time; the counter keeps those of equal times in order.
    wire: BTreeMap<(Instant, u64), (usize, HeapFrame)>,
    count: u64,
    pub(super) drops: u64,
    pub(super) marks: u64,
    pub(super) cwr: u64,
    /// Times and lengths of the data frames that side 0 sent.
    pub(super) departures: Vec<(Instant, usize)>,
}

impl Bottleneck {
    pub(super) fn new(cfg: [Config; 2]) -> Self {
        let now = Instant::from_nanos(SECOND);
        Self {
            now,
            ends: [Some(without_scoreboard_checks(Endpoint::client(&cfg[0], 1000, now))), None],
            cfg,
            bits_per_second: 10_000_000_000,
            delay_ns: MILLISECOND,
            queue_max: u64::MAX,
            mark_above: None,
            free_at: now,
            wire: BTreeMap::new(),
            count: 0,
            drops: 0,
            marks: 0,
            cwr: 0,
            departures: Vec::new(),
        }
    }

    pub(super) fn end(&mut self, side: usize) -> &mut Endpoint {
        self.ends[side].as_mut().expect("connected")
    }

    fn forward(&mut self, from: usize, frame: HeapFrame) {
        let (seg, len) = (frame.parse(), frame.bytes.len());
        if from == 0 && !seg.payload.is_empty() {
            self.departures.push((self.now, len));
            self.cwr += u64::from(seg.flags.has(Flags::CWR));
        }
        let mut frame = frame;
        let mut sent = self.now;
        if from == 0 {
            let queued = self.free_at.since(self.now) * self.bits_per_second / (8 * SECOND);
            if queued + len as u64 > self.queue_max {
                self.drops += 1;
                return;
            }
            if seg.ecn == Ecn::Ect0 && self.mark_above.is_some_and(|above| queued > above) {
                self.marks += 1;
                frame = ce_marked(&frame);
            }
            let wire_ns = (len as u64 + OVERHEAD) * 8 * SECOND / self.bits_per_second;
            self.free_at = self.free_at.max(self.now) + wire_ns;
            sent = self.free_at;
        }
        self.count += 1;
        self.wire.insert((sent + self.delay_ns, self.count), (1 - from, frame));
    }

    /// Advances to the next event, at most to `limit`, and handles it.
    fn step(&mut self, limit: Instant) {
        for side in 0..2 {
            let frames = self.ends[side].as_mut().map(|end| end.transmit(self.now));
            for frame in frames.into_iter().flatten() {
                self.forward(side, frame);
            }
        }
        let arrival = self.wire.first_key_value().map(|(key, _)| key.0);
        let timers = self.ends.iter().flatten().filter_map(|end| end.tcb.deadline());
        let next = arrival.into_iter().chain(timers).min().unwrap_or(limit);
        self.now = self.now.max(next.min(limit));
        while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
            let (to, frame) = entry.remove();
            match &mut self.ends[to] {
                Some(end) => end.receive(self.now, &frame),
                none => {
                    let end = Endpoint::server(&self.cfg[to], &frame.parse(), 9000, self.now);
                    *none = Some(without_scoreboard_checks(end));
                }
            }
        }
        for end in self.ends.iter_mut().flatten() {
            end.timeout(self.now);
        }
    }

    pub(super) fn connect(&mut self) {
        let limit = self.now + 10 * SECOND;
        let open = |end: &Option<Endpoint>| {
            end.as_ref().is_some_and(|end| end.events.contains(&Event::Established))
        };
        while !self.ends.iter().all(open) {
            assert!(self.now < limit, "the handshake takes too long");
            self.step(limit);
        }
        self.end(1).tcb.open_window();
        // The peer receives the larger window.
        for _ in 0..4 {
            self.step(self.now + 2 * self.delay_ns);
        }
    }

    /// Runs for `ns`.
    fn wait(&mut self, ns: u64) {
        let limit = self.now + ns;
        while self.now < limit {
            self.step(limit);
        }
    }

    /// Side 0 sends all it can for `ns`; returns the payload received as a fraction of the link's
    /// rate.
    pub(super) fn run(&mut self, ns: u64) -> f64 {
        self.end(0).to_write = u64::MAX / 2;
        let before = self.end(1).read;
        self.wait(ns);
        self.end(0).to_write = 0;
        let bytes = self.end(1).read - before;
        (bytes * 8) as f64 / (self.bits_per_second as f64 * ns as f64 / SECOND as f64)
    }
}

/// Without the scoreboard checks: with thousands of records they would take minutes.
fn without_scoreboard_checks(end: Endpoint) -> Endpoint {
    Endpoint { checks_scoreboard: false, ..end }
}

/// The frame with CE set and the IPv4 header checksum corrected.
fn ce_marked(frame: &HeapFrame) -> HeapFrame {
    let mut bytes = frame.bytes.to_vec();
    bytes[15] |= 3;
    bytes[24..26].fill(0);
    let sum = !checksum::sum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    HeapFrame::new(&bytes)
}

/// A path of 1 Gb/s and 20 ms, with windows that exceed its bandwidth-delay product.
fn long_fat(congestion: Algorithm) -> Bottleneck {
    let cfg = Config {
        congestion,
        recv_window: 16 << 20,
        max_records: 20_000,
        max_ooo_segments: 20_000,
        ..Config::default()
    };
    let mut link = Bottleneck::new([cfg.clone(), cfg]);
    link.bits_per_second = 1_000_000_000;
    link.delay_ns = 10 * MILLISECOND;
    link
}

#[test]
fn cubic_fills_a_long_fat_pipe() {
    let mut link = long_fat(Algorithm::Cubic);
    // Half of the bandwidth-delay product.
    link.queue_max = 1_250_000;
    link.connect();
    let rates: Vec<f64> = (0..6).map(|_| link.run(500 * MILLISECOND)).collect();
    let stats = link.end(0).tcb.stats();
    println!("{rates:.3?}, {} dropped, {stats:?}", link.drops);
    let mean = rates[1..].iter().sum::<f64>() / 5.0;
    assert!(mean > 0.9, "{rates:.3?}");
    assert_eq!(stats.timeouts, 0);
    // Only the queue loses packets, and it seldom overflows.
    assert!(link.drops * 50 < stats.segments_out.into(), "{} dropped", link.drops);
}

/// HyStart++ ends slow start on rising delay alone.
#[test]
fn hystart_ends_slow_start_without_loss() {
    let mut link = long_fat(Algorithm::Cubic);
    link.connect();
    let start = link.now;
    while link.end(0).tcb.cc.ssthresh() == u32::MAX {
        link.run(MILLISECOND);
        assert!(link.now.since(start) < 2 * SECOND, "no end of slow start");
    }
    assert_eq!((link.drops, link.end(0).tcb.stats().retransmits), (0, 0));
    let window = link.end(0).tcb.cwnd();
    println!("{window} after {} ms", link.now.since(start) / MILLISECOND);
    assert!(window > 2_500_000, "{window}: not before the path was full");
}

/// Data frames sent at or after `from`: time since then, and bytes.
fn departures(link: &Bottleneck, from: Instant) -> Vec<(u64, usize)> {
    let all = link.departures.iter().filter(|(at, _)| *at >= from);
    all.map(|(at, len)| (at.since(from), *len)).collect()
}

#[test]
fn pacing_spreads_cwnd_over_the_rtt() {
    for pacing in [true, false] {
        let cfg = Config {
            pacing,
            congestion: Algorithm::NewReno,
            recv_window: 16 << 20,
            idle_restart: false,
            ..Config::default()
        };
        let mut link = Bottleneck::new([cfg.clone(), cfg]);
        link.delay_ns = 10 * MILLISECOND;
        link.connect();
        while link.end(0).tcb.cwnd() < 300_000 {
            link.run(5 * MILLISECOND);
        }
        // After a pause everything is acknowledged; then a whole window may be sent.
        link.wait(SECOND);
        let (window, start) = (link.end(0).tcb.cwnd() as usize, link.now);
        link.run(20 * MILLISECOND);
        let sent = departures(&link, start);
        let bytes: usize = sent.iter().map(|(_, len)| len).sum();
        assert!(bytes > window * 9 / 10, "{bytes} of {window}");
        let burst = |from: u64, to: u64| -> usize {
            sent.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, len)| len).sum()
        };
        let most = (1..200).map(|i| burst(i * 100_000, (i + 1) * 100_000)).max().unwrap();
        let first = burst(0, 100_000);
        let paced = link.end(0).tcb.stats().paced;
        if pacing {
            // Slow start: twice the window per round trip.
            let half = burst(0, 5 * MILLISECOND) as f64 / window as f64;
            assert!((0.4..0.7).contains(&half), "{half} of the window in a quarter of the time");
            assert!(most <= 2 * 15_140, "{most} bytes within 100 us");
            // A message of 64 KiB is sent at once when nothing is in flight.
            assert!((65_536..75_000).contains(&first), "{first} bytes at first");
            assert!(paced > 10);
        } else {
            assert!(first as f64 > 0.9 * window as f64, "{first} of {window} at once");
            assert_eq!(paced, 0);
        }
    }
}

/// A sender that waits for pacing counts as cwnd-limited although cwnd is not filled: an ACK that
/// arrives meanwhile lets it grow.
#[test]
fn paced_sender_counts_as_cwnd_limited() {
    let cfg = Config { recv_window: 16 << 20, idle_restart: false, ..Config::default() };
    let mut link = Bottleneck::new([cfg.clone(), cfg]);
    link.delay_ns = 10 * MILLISECOND;
    link.connect();
    while link.end(0).tcb.cwnd() < 300_000 {
        link.run(5 * MILLISECOND);
    }
    link.wait(SECOND);
    link.run(2 * MILLISECOND);
    let tcb = &link.end(0).tcb;
    assert!(tcb.pipe() < tcb.cwnd() / 2);
    assert!(tcb.cc.cwnd_limited);
}

/// RFC 7661: an unused cwnd shows nothing about the capacity of the path.
#[test]
fn unused_cwnd_does_not_grow() {
    for congestion in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp] {
        let mut link = long_fat(congestion);
        link.connect();
        let window = link.end(0).tcb.cwnd();
        for _ in 0..100 {
            link.end(0).to_write = 3000;
            link.wait(25 * MILLISECOND);
        }
        assert!(link.end(0).tcb.all_acked());
        assert_eq!(link.end(0).tcb.cwnd(), window, "{congestion:?}");
        link.run(300 * MILLISECOND);
        assert!(link.end(0).tcb.cwnd() > 20 * window, "the window grows once cwnd limits");
    }
}

#[test]
fn short_paths_are_not_paced() {
    let cfg = Config { recv_window: 4 << 20, ..Config::default() };
    let mut link = Bottleneck::new([cfg.clone(), cfg]);
    link.delay_ns = 100_000;
    link.connect();
    assert!(link.run(50 * MILLISECOND) > 0.5);
    assert_eq!(link.end(0).tcb.stats().paced, 0);
}

/// The path becomes a hundred times as long: by its queue at first, which the window filled.
#[test]
fn receive_window_follows_a_longer_path_and_not_its_queue() {
    let cfg = Config { max_records: 8192, ..Config::default() };
    let mut link = Bottleneck::new([cfg.clone(), cfg]);
    link.bits_per_second = 200_000_000;
    link.delay_ns = MILLISECOND / 2;
    link.connect();
    link.run(5 * SECOND);
    assert_eq!(link.end(1).tcb.window_limit(), 256 * 1024, "ten times what the path holds");
    link.delay_ns = 50 * MILLISECOND;
    let before = link.run(SECOND);
    link.run(5 * SECOND);
    let after = link.run(SECOND);
    assert!(before < 0.11 && after > 0.2, "{before:.3} {after:.3}");
    let (window, cwnd) = (link.end(1).tcb.window_limit(), link.end(0).tcb.cwnd());
    assert!(window > 2 * cwnd, "the peer's cwnd is the limit: {window} {cwnd}");
}
