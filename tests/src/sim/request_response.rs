//! Request/response over a lossy link of 1 Gb/s in virtual time: latency of an exchange of two
//! messages, and goodput.

use std::fmt::Write as _;

use ferrowarp_proto::time::{MICROSECOND, MILLISECOND, SECOND};
use ferrowarp_proto::verbs::wc::{WcOpcode, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, RecvWr, SendWr};

use super::bulk_transfer;
use super::heap_device::PoolSizes;
use super::link::Faults;
use super::pairs::{CQ, Connected};
use super::world::WorldOptions;

/// Link rate in bytes per second.
const RATE: u64 = 125_000_000;
/// Exchanges before the measurement, so that windows and round-trip times are in steady state.
const WARM_UP: usize = 20;

/// Test case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Length of the request, and of the response, in bytes.
    pub len: u32,
    /// Round-trip time without queueing.
    pub rtt_us: u64,
    /// Frame loss in percent.
    pub loss: f64,
    /// The requester pauses between exchanges, for longer than the retransmission timeout.
    pub pauses: bool,
}

impl Case {
    /// Nanoseconds between a response and the next request.
    fn pause_ns(&self) -> u64 {
        if self.pauses { 10 * MILLISECOND + 4 * self.rtt_us * MICROSECOND } else { 0 }
    }

    /// Number of exchanges measured; one in a hundred lies beyond the 99th percentile.
    const fn count(&self) -> usize {
        if self.len < 1024 { 4000 } else { 1500 }
    }
}

/// Result of a test case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Bytes of both messages over the time of their exchange, in Mb/s; pauses are left out.
    pub goodput: f64,
    /// Microseconds from the request until the response is complete: median and 99th percentile.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
    /// Retransmission timeouts of both ends, per thousand exchanges.
    pub timeouts: f64,
}

/// The test cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for len in [64, 16 * 1024, 64 * 1024] {
        for rtt_us in [50, 1000, 20_000] {
            for loss in [0.0, 0.1, 1.0] {
                for pauses in [false, true] {
                    cases.push(Case { len, rtt_us, loss, pauses });
                }
            }
        }
    }
    cases
}

/// Measures one case with one seed.
///
/// # Panics
/// If a message is lost or takes more than ten seconds.
#[must_use]
pub fn measure(case: &Case, seed: u64) -> Row {
    let bdp = RATE * case.rtt_us / 1_000_000;
    let mut options = WorldOptions {
        arena_len: case.len as usize,
        pools: PoolSizes { data: 4096, reserve: 64, control: 1024 },
        ..WorldOptions::new(seed)
    };
    options.faults = Faults {
        loss: case.loss / 100.0,
        delay_ns: case.rtt_us * MICROSECOND / 2,
        rate: Some(RATE),
        queue: Some(bdp.max(128 * 1024)),
        ..Faults::NONE
    };
    let mut pair = bulk_transfer::connect(&options);
    // Each end posts a receive before the other may send.
    post_recv(&mut pair, 0, case.len);
    post_recv(&mut pair, 1, case.len);
    for _ in 0..WARM_UP {
        exchange(&mut pair, case);
    }
    let before = timeouts(&pair);
    let mut times: Vec<u64> = (0..case.count()).map(|_| exchange(&mut pair, case)).collect();
    let total: u64 = times.iter().sum();
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100] as f64 / 1000.0;
    let bits = 16.0 * f64::from(case.len) * times.len() as f64;
    Row {
        goodput: bits * 1000.0 / total as f64,
        p50_us: at(50),
        p99_us: at(99),
        timeouts: f64::from(timeouts(&pair) - before) * 1000.0 / times.len() as f64,
    }
}

fn timeouts(pair: &Connected) -> u32 {
    let of = |end: usize| pair.world.ends[end].engine.tcp_stats(pair.qps[end]).expect("connected");
    of(0).timeouts + of(1).timeouts
}

/// Runs one exchange and returns its duration in nanoseconds; then pauses.
fn exchange(pair: &mut Connected, case: &Case) -> u64 {
    let start = pair.world.now;
    send(pair, 0, case.len);
    receive(pair, 1, case.len);
    send(pair, 1, case.len);
    receive(pair, 0, case.len);
    let took = pair.world.now.since(start);
    let pause = case.pause_ns();
    if pause > 0 {
        pair.world.run_for(pause);
    }
    took
}

fn post_recv(pair: &mut Connected, end: usize, len: u32) {
    let sg_list = [pair.sge(end, len)].into();
    let engine = &mut pair.world.ends[end].engine;
    engine.post_recv(pair.qps[end], RecvWr { wr_id: 0, sg_list }).expect("a free slot");
}

fn send(pair: &mut Connected, end: usize, len: u32) {
    let payload = Payload::Gather([pair.sge(end, len)].into());
    let operation = Operation::Send { payload, solicited: false, invalidate: None };
    let wr = SendWr { wr_id: 0, operation, signaled: true, fence: false };
    pair.world.ends[end].engine.post_send(pair.qps[end], wr).expect("a free slot");
}

/// Waits until `end` has received the message, then posts a receive for the next.
fn receive(pair: &mut Connected, end: usize, len: u32) {
    let received = pair.world.run_until(10 * SECOND, |world| {
        let mut received = false;
        for end in &world.ends {
            while let Some(wc) = end.queues.poll(CQ) {
                assert_eq!(wc.status, WcStatus::Success);
                received |= wc.opcode == WcOpcode::Recv;
            }
        }
        received
    });
    assert!(received, "a message does not arrive");
    post_recv(pair, end, len);
}

/// Renders the table as it is committed.
#[must_use]
pub fn render(rows: &[(Case, Row)]) -> String {
    let mut out = String::from(
        "# bytes\tRTT us\tloss %\tpauses\tgoodput Mb/s\tp50 us\tp99 us\ttimeouts per 1000\n",
    );
    for (Case { len, rtt_us, loss, pauses }, row) in rows {
        let pauses = if *pauses { "yes" } else { "no" };
        let Row { goodput, p50_us, p99_us, timeouts } = row;
        writeln!(
            out,
            "{len}\t{rtt_us}\t{loss}\t{pauses}\t{goodput:.3}\t{p50_us:.1}\t{p99_us:.1}\t\
             {timeouts:.2}"
        )
        .expect("a string takes all");
    }
    out
}
