//! Goodput of bulk transfer over a link of 1 Gb/s in virtual time, and recovery time of tail
//! losses.

use std::fmt::Write as _;

use ferrowarp_proto::tcp::{Algorithm, EcnMode};
use ferrowarp_proto::time::{Instant, MICROSECOND, MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::ConnParam;
use ferrowarp_proto::verbs::wc::WcStatus;

use super::heap_device::PoolSizes;
use super::link::Faults;
use super::pairs::{CQ, Connected, qp_init};
use super::world::{EndOptions, WorldOptions};

/// Link rate in bytes per second.
const RATE: u64 = 125_000_000;
/// Length of a Write in bytes.
const WRITE_LEN: u32 = 256 * 1024;
/// Writes outstanding.
const DEPTH: usize = 64;

/// Test case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Frame loss in percent.
    pub loss: f64,
    /// Round-trip time without queueing.
    pub rtt_us: u64,
}

/// Result of a test case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// TCP payload delivered in order, as a share of the link rate.
    pub goodput: f64,
    /// Segments retransmitted, as a share of all segments sent.
    pub retransmitted: f64,
    /// Segments retransmitted spuriously: without new data for the receiver. As a share of all
    /// segments sent.
    pub spurious: f64,
    /// Retransmission timeouts per second.
    pub timeouts: f64,
}

/// The test cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Dctcp] {
        for rtt_us in [100, 1000, 20_000] {
            for loss in [0.0, 0.01, 0.1, 1.0, 3.0] {
                cases.push(Case { algorithm, loss, rtt_us });
            }
        }
    }
    cases
}

/// A connection that transfers Writes.
struct Transfer {
    pair: Connected,
    posted: u64,
    completed: u64,
}

/// Connects queue pairs for a measurement. Data are checked elsewhere; without CRCs it takes less
/// time.
pub(super) fn connect(options: &WorldOptions) -> Connected {
    let mut param = ConnParam::default();
    param.crc = false;
    Connected::new(options, qp_init(4 * DEPTH, DEPTH), &[param.clone(), param])
}

impl Transfer {
    fn connect(options: &WorldOptions) -> Self {
        Self { pair: connect(options), posted: 0, completed: 0 }
    }

    fn write(&mut self, len: u32) {
        self.pair.write(0, self.posted, len, 0, true);
        self.posted += 1;
    }

    fn poll(&mut self) {
        while let Some(wc) = self.pair.world.ends[0].queues.poll(CQ) {
            assert_eq!(wc.status, WcStatus::Success);
            self.completed = wc.wr_id + 1;
        }
    }

    /// TCP payload received in order at end 1, FPDU headers included.
    fn received(&self) -> u64 {
        self.pair.world.ends[1].engine.tcp_stats(self.pair.qps[1]).expect("connected").bytes_in
    }
}

/// Measures bulk transfer of one case with one seed.
///
/// # Panics
/// If a request fails.
#[must_use]
pub fn measure(case: &Case, seed: u64) -> Row {
    let end = EndOptions {
        congestion: case.algorithm,
        ecn: EcnMode::Request,
        windows: (256 * 1024, 16 << 20),
        ..EndOptions::DEFAULT
    };
    let bdp = RATE * case.rtt_us / 1_000_000;
    let is_dctcp = case.algorithm == Algorithm::Dctcp;
    let mut options = WorldOptions {
        arena_len: WRITE_LEN as usize,
        tcp: [end; 2],
        pools: PoolSizes { data: 1 << 16, reserve: 64, control: 4096 },
        ..WorldOptions::new(seed)
    };
    options.faults = Faults {
        loss: case.loss / 100.0,
        delay_ns: case.rtt_us * MICROSECOND / 2,
        rate: Some(RATE),
        // Short paths: the buffer of a switch port. Long paths: the bandwidth-delay product.
        queue: Some(bdp.max(128 * 1024)),
        mark: is_dctcp.then_some((bdp / 4).max(30_000)),
        ..Faults::NONE
    };
    let mut transfer = Transfer::connect(&options);
    // The warm-up is left out: up to some hundred round trips, as far as time allows.
    let (warm, span) = match case.rtt_us {
        0..1000 => (50 * MILLISECOND, 100 * MILLISECOND),
        1000..10_000 => (100 * MILLISECOND, 200 * MILLISECOND),
        _ => (1000 * MILLISECOND, 1000 * MILLISECOND),
    };
    run(&mut transfer, warm);
    let before = (transfer.received(), stats(&transfer));
    run(&mut transfer, span);
    let after = (transfer.received(), stats(&transfer));
    let bytes = (after.0 - before.0) as f64;
    let sent = (after.1.0.segments_out - before.1.0.segments_out).max(1) as f64;
    Row {
        goodput: bytes * 1e9 / (span as f64 * RATE as f64),
        retransmitted: (after.1.0.retransmits - before.1.0.retransmits) as f64 / sent,
        spurious: (after.1.1.duplicates_in - before.1.1.duplicates_in) as f64 / sent,
        timeouts: (after.1.0.timeouts - before.1.0.timeouts) as f64 * 1e9 / span as f64,
    }
}

fn stats(transfer: &Transfer) -> (ferrowarp_proto::tcp::Stats, ferrowarp_proto::tcp::Stats) {
    let stats = |end: usize| {
        transfer.pair.world.ends[end].engine.tcp_stats(transfer.pair.qps[end]).expect("up")
    };
    (stats(0), stats(1))
}

fn run(transfer: &mut Transfer, span_ns: u64) {
    let end = transfer.pair.world.now + span_ns;
    while transfer.pair.world.now < end {
        while transfer.posted < transfer.completed + DEPTH as u64 {
            transfer.write(WRITE_LEN);
        }
        transfer.pair.world.step();
        transfer.poll();
    }
}

/// Returns the median over `seeds` of each number by itself.
#[must_use]
pub fn median(case: &Case, seeds: u64) -> Row {
    let rows: Vec<Row> = (0..seeds).map(|seed| measure(case, 1 + seed)).collect();
    let of = |pick: fn(&Row) -> f64| {
        let mut values: Vec<f64> = rows.iter().map(pick).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Row {
        goodput: of(|row| row.goodput),
        retransmitted: of(|row| row.retransmitted),
        spurious: of(|row| row.spurious),
        timeouts: of(|row| row.timeouts),
    }
}

/// Result of the tail loss measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TailLoss {
    /// Microseconds from the loss until all data have arrived: median and 99th percentile.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
    /// Tail loss probes that repaired a loss.
    pub by_probe: u64,
    /// Retransmission timeouts.
    pub by_timeout: u64,
}

/// One burst of this many loses its tail.
const LOSS_EVERY: u64 = 5;

/// Sends bursts of several lengths over a path of `rtt_us`; every fifth one loses its last segment.
///
/// # Panics
/// If a burst does not arrive.
#[must_use]
pub fn measure_tail_loss(rtt_us: u64, bursts: u64) -> TailLoss {
    let mut options = WorldOptions { arena_len: 1 << 20, ..WorldOptions::new(rtt_us) };
    options.faults = Faults { delay_ns: rtt_us * MICROSECOND / 2, ..Faults::NONE };
    let mut transfer = Transfer::connect(&options);
    // Warm-up, until the peer's ACK delay has been measured.
    for _ in 0..50 {
        transfer.write(10_000);
        run_until_delivered(&mut transfer);
    }
    let before = stats(&transfer).0;
    let mut times = Vec::new();
    for burst in 0..bursts {
        let len = 1000 + u32::try_from(burst % 8).expect("short") * 1400;
        transfer.write(len);
        let is_lost = burst.is_multiple_of(LOSS_EVERY);
        if is_lost {
            transfer.pair.world.drop_next_tail();
        }
        let arrived = run_until_delivered(&mut transfer);
        // With a small window a burst takes several round trips: time counts from the loss.
        if let Some(lost_at) = transfer.pair.world.tail_dropped_at.take().filter(|_| is_lost) {
            times.push(arrived.since(lost_at) as f64 / 1000.0);
        }
        // Varied, to avoid synchronization with timers.
        let pause = transfer.pair.world.now + (1 + burst * 7 % 13) * MILLISECOND;
        while transfer.pair.world.now < pause {
            if !transfer.pair.world.step() {
                transfer.pair.world.now = pause;
            }
        }
    }
    let after = stats(&transfer).0;
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    TailLoss {
        p50_us: at(50),
        p99_us: at(99),
        by_probe: u64::from(after.tlp_repairs - before.tlp_repairs),
        by_timeout: u64::from(after.timeouts - before.timeouts),
    }
}

/// Runs until all data are delivered; returns the time. (A Write completes once TCP has accepted
/// its bytes.)
fn run_until_delivered(transfer: &mut Transfer) -> Instant {
    let limit = transfer.pair.world.now + 10 * SECOND;
    loop {
        let now = transfer.pair.world.now;
        assert!(now < limit, "a burst does not arrive");
        transfer.pair.world.step();
        transfer.poll();
        let sent = stats(transfer).0.bytes_out;
        if transfer.completed == transfer.posted && transfer.received() == sent {
            return now;
        }
    }
}

/// Renders the table as it is committed.
#[must_use]
pub fn render(rows: &[(Case, Row)], tails: &[(u64, TailLoss)]) -> String {
    let mut out =
        String::from("# algorithm\tRTT us\tloss %\tgoodput %\tresent %\tspurious %\ttimeouts/s\n");
    for (case, row) in rows {
        let percent = |share: f64| format!("{:.2}", share * 100.0);
        writeln!(
            out,
            "{}\t{}\t{}\t{}\t{}\t{}\t{:.1}",
            format!("{:?}", case.algorithm).to_lowercase(),
            case.rtt_us,
            case.loss,
            percent(row.goodput),
            percent(row.retransmitted),
            percent(row.spurious),
            row.timeouts
        )
        .expect("a string takes all");
    }
    out.push_str("# tail\tRTT us\tp50 us\tp99 us\tby probe\tby timeout\n");
    for (rtt_us, tail) in tails {
        let TailLoss { p50_us, p99_us, by_probe, by_timeout } = tail;
        writeln!(out, "tail\t{rtt_us}\t{p50_us:.0}\t{p99_us:.0}\t{by_probe}\t{by_timeout}")
            .expect("a string takes all");
    }
    out
}
