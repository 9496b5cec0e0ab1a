//! Goodput and tail loss recovery in virtual time against the committed table, `goodput.tsv`;
//! request/response times against another, `exchange.tsv`.
//!
//! 1 Gb/s, a queue of one bandwidth-delay product; the maximum is 94.14 %, a payload of 1,448 bytes
//! in 1,538 bytes on the wire. The rows of 20 ms with little loss show one second, not the steady
//! state: so few losses have not yet reduced the window of a full pipe. At 100 us the serialization
//! time of a window adds to the RTT.
//!
//! `FERROWARP_UPDATE=1` rewrites both tables.

use ferrowarp_proto::tcp::Algorithm;
use ferrowarp_tests::sim::bulk_transfer::{TailLoss, cases, measure_tail_loss, median, render};
use ferrowarp_tests::sim::request_response;
use ferrowarp_tests::sim::seeds::parallel_map;

/// Seeds per case.
const SEEDS: u64 = 3;
/// Allowed difference of a number from the table: relative, and absolute.
const TOLERANCE: (f64, f64) = (0.1, 1.0);

/// The rows of all cases.
fn measure_all<C: Copy + Sync, R: Send>(
    cases: &[C],
    measure: impl Fn(&C) -> R + Sync,
) -> Vec<(C, R)> {
    cases.iter().copied().zip(parallel_map(cases, measure)).collect()
}

/// Compares a table with the committed one, or rewrites it.
fn compare(name: &str, table: &str) {
    let path = format!("{}/{name}", env!("CARGO_MANIFEST_DIR"));
    println!("{table}");
    if std::env::var_os("FERROWARP_UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, table).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differences = differences(&committed, table);
    assert!(
        differences.is_empty(),
        "differs from tests/{name}; to take the new one: FERROWARP_UPDATE=1 cargo test -p \
         ferrowarp-tests --test sim goodput::\n{}",
        differences.join("\n")
    );
}

/// Lines whose numbers differ by more than the tolerance.
fn differences(old: &str, new: &str) -> Vec<String> {
    if old.lines().count() != new.lines().count() {
        return vec!["the tables have different rows".into()];
    }
    let differs = |(old, new): &(&str, &str)| {
        old.split('\t').zip(new.split('\t')).any(|(old, new)| {
            match (old.parse::<f64>(), new.parse::<f64>()) {
                (Ok(old), Ok(new)) => (old - new).abs() > TOLERANCE.1 + TOLERANCE.0 * old.abs(),
                _ => old != new,
            }
        })
    };
    let pairs = old.lines().zip(new.lines()).filter(differs);
    pairs.map(|(old, new)| format!("- {old}\n+ {new}")).collect()
}

#[test]
fn goodput_matches_the_committed_table() {
    let rows = measure_all(&cases(), |case| median(case, SEEDS));
    let tails: Vec<(u64, TailLoss)> =
        [20, 100, 1000].map(|rtt_us| (rtt_us, measure_tail_loss(rtt_us, 1000))).into();
    let table = render(&rows, &tails);
    for (case, row) in &rows {
        // Payload of 1,448 in 1,538 bytes on the wire.
        let most = 1448.0 / 1538.0;
        if case.loss == 0.0 {
            assert!(row.goodput > 0.9 * most, "{case:?}: {row:?}");
            assert!(row.timeouts == 0.0, "{case:?}: {row:?}");
        }
        // Minimum of RFC 5681 (Mathis et al.) with random losses; every algorithm has to reach
        // that.
        let loss = case.loss / 100.0;
        let mathis = 1448.0 * 1.22 / (case.rtt_us as f64 * 1e-6 * loss.sqrt()) / 125e6;
        if case.algorithm != Algorithm::Dctcp && loss > 0.0 {
            assert!(row.goodput > 0.4 * mathis.min(most), "{case:?}: {row:?}, Mathis {mathis:.3}");
        }
        assert!(row.spurious < 0.002, "{case:?}: {row:?}");
    }
    for (rtt_us, tail) in &tails {
        assert_eq!(tail.by_timeout, 0, "RTT {rtt_us} us: {tail:?}");
        // An ACK of data before the tail restarts the PTO of two round trips (RFC 8985 section
        // 7.2); the probe itself takes half a round trip.
        assert!(tail.p99_us < (7 * rtt_us / 2 + 1000) as f64, "RTT {rtt_us} us: {tail:?}");
    }
    compare("goodput.tsv", &table);
}

#[test]
fn exchange_times_match_the_committed_table() {
    let rows = measure_all(&request_response::cases(), |case| request_response::measure(case, 1));
    compare("exchange.tsv", &request_response::render(&rows));
    for (case, row) in &rows {
        // Serialization of both messages, and a round trip.
        let wire_us = 2.0 * f64::from(case.len) * 8.0 / 1000.0;
        let least = case.rtt_us as f64 + wire_us;
        assert!(row.p50_us >= least, "{case:?}: {row:?}");
        if case.loss == 0.0 {
            assert!(row.timeouts == 0.0, "{case:?}: {row:?}");
        }
        // TLPs and SACK find nearly all losses.
        assert!(row.timeouts < 10.0, "{case:?}: {row:?}");
    }
}
