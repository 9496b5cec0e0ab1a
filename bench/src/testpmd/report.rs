//! The results as Markdown and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::tap::Rates;
use crate::baseline::report::{host_json, host_table};
use crate::paired::interval::{COVERAGE_MIN, MedianInterval};
use crate::paired::pairs::Paired;

/// A pair of runs.
#[derive(Clone, Copy, Debug)]
pub enum Pair {
    /// Over `memif`: payload of the stack, frames of testpmd, in Gb/s.
    Memif {
        /// Of the stack.
        ours: f64,
        /// Of testpmd.
        testpmd: f64,
    },
    /// Over `tap`: packets at the receiver's interface, and payload of the stack in Gb/s.
    Tap {
        /// Of the stack.
        ours: Rates,
        /// Its payload.
        payload_gbit_s: f64,
        /// Of testpmd.
        testpmd: Rates,
    },
}

impl Pair {
    /// Returns the figures that are compared: the stack's, testpmd's.
    #[must_use]
    pub const fn figures(&self) -> [f64; 2] {
        match self {
            Self::Memif { ours, testpmd } => [*ours, *testpmd],
            Self::Tap { ours, testpmd, .. } => [ours.mpps, testpmd.mpps],
        }
    }
}

/// A device with an MTU, and its pairs.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name, by which `--rows` selects it.
    pub name: &'static str,
    /// MTU in bytes.
    pub mtu: u16,
    /// What is compared, with its unit.
    pub unit: &'static str,
    /// The share that is wanted at least.
    pub wanted: f64,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

/// Returns the rows, without results.
#[must_use]
pub fn rows() -> Vec<Row> {
    let row = |name, mtu, unit, wanted| Row { name, mtu, unit, wanted, pairs: Vec::new() };
    vec![
        row("memif-1500", 1500, "Gb/s", 0.8),
        row("memif-9000", 9000, "Gb/s", 0.8),
        row("tap-1500", 1500, "M packets/s", 0.95),
    ]
}

impl Row {
    /// Returns the stack's share of testpmd's figure, with its interval over the pairs.
    #[must_use]
    pub fn share(&self) -> Option<MedianInterval> {
        self.figures().ratio()
    }

    /// Returns testpmd's figures and the stack's.
    fn figures(&self) -> Paired {
        let pair = |pair: &Pair| {
            let [ours, testpmd] = pair.figures();
            [testpmd, ours]
        };
        self.pairs.iter().map(pair).collect()
    }

    fn kept(&self, share: &MedianInterval) -> &'static str {
        let is_open = share.low < self.wanted && share.high >= self.wanted;
        match share.low >= self.wanted {
            _ if is_open || share.coverage < COVERAGE_MIN => "open",
            true => "yes",
            false => "no",
        }
    }
}

const METHOD: &str = "# Beside testpmd\n\n\
    Written by `bench/testpmd`. `dpdk-testpmd` sends frames that it builds once for each buffer, \
    and drops what it receives: what DPDK's driver of the device leaves to whoever uses it. It \
    has the same device with the same arguments, frames of the same length (IP packets of the \
    MTU), bursts of 32 and 2,048 buffers, and like the stack a core for the receiver and one for \
    the sender.\n\n\
    *memif*: two processes. The stack: `iwperf write-bw`, 64 KiB RDMA Writes, CRC on, TCP \
    checksums in software; its figure is confirmed payload, without any header, and its ACKs \
    cross the link as well. testpmd: bytes of whole frames that the receiver got from the sender, \
    one way. So the share has in it the headers (4 % at MTU 1500), the ACKs, and all work on the \
    bytes beyond the driver's own copies.\n\n\
    *tap*: two tap interfaces of the kernel in a bridge, in a namespace of its own. testpmd sends \
    into one and receives from the other; the stack does the same with `iwperf write-bw`. Each \
    packet is a system call at each end, and the bridging is part of the sender's. The figure is \
    packets per second at the receiver's interface, both directions together, from the kernel's \
    counters: for testpmd those that it receives, for the stack segments and ACKs, because an ACK \
    takes the same two calls as a segment. The tap driver sends at most 1,500 bytes, so there is \
    one MTU.\n";

/// Formats method, machine and results.
#[must_use]
pub fn markdown(rows: &[Row], seconds: f64, missing: Option<&str>) -> String {
    let mut text = METHOD.to_owned();
    let _ = write!(
        text,
        "\nIn each pair both are measured one after the other for {seconds} s, in reverse order in \
         every other pair. Given are medians; the share has its interval by order statistics (95 \
         % from 6 pairs on). A limit is kept (yes) or not (no) if the whole interval says so.\n\n\
         To repeat: `bench/testpmd`; in less than a minute: `bench/testpmd --quick`.\n\n"
    );
    text.push_str(&host_table());
    if let Some(reason) = missing {
        let _ = write!(text, "\nNot measured: {reason}.\n");
    }
    text.push('\n');
    text.push_str(&table(rows));
    text
}

/// Formats the tables of results.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = "| row | unit | stack | testpmd | share | wanted | kept | pairs |\n\
                    |---|---|---:|---:|---|---|---|---:|\n"
        .to_owned();
    for row in rows {
        let Row { name, unit, wanted, pairs, .. } = row;
        let figures = row.figures();
        let (Some(share), Some(stack), Some(testpmd)) =
            (figures.ratio(), figures.figure(1), figures.figure(0))
        else {
            let _ = writeln!(text, "| {name} | {unit} | | | failed | at least {wanted} | | 0 |");
            continue;
        };
        let _ = writeln!(
            text,
            "| {name} | {unit} | {:.3} | {:.3} | {} | at least {wanted} | {} | {} |",
            stack.median,
            testpmd.median,
            share.describe(3),
            row.kept(&share),
            pairs.len()
        );
    }
    for row in rows {
        let taps = row.pairs.iter().filter_map(|pair| match pair {
            Pair::Tap { ours, payload_gbit_s, testpmd } => Some((ours, payload_gbit_s, testpmd)),
            Pair::Memif { .. } => None,
        });
        let taps: Vec<_> = taps.collect();
        let median = |figure: &dyn Fn(&(&Rates, &f64, &Rates)) -> f64| {
            MedianInterval::of(taps.iter().map(figure).collect()).map_or(f64::NAN, |it| it.median)
        };
        if !taps.is_empty() {
            let _ = writeln!(
                text,
                "\n{}: of the stack's packets {:.3} M/s are segments, with {:.2} Gb/s of payload; \
                 testpmd's frames are {:.2} Gb/s.",
                row.name,
                median(&|(ours, _, _)| ours.to_receiver_mpps),
                median(&|(_, payload, _)| **payload),
                median(&|(_, _, testpmd)| testpmd.gbit_s)
            );
        }
    }
    text
}

/// Returns all pairs as JSON.
#[must_use]
pub fn json(rows: &[Row], seconds: f64, failures: &[String]) -> Value {
    let rates = |rates: &Rates| {
        json!({ "mpps": rates.mpps, "to_receiver_mpps": rates.to_receiver_mpps,
            "gbit_s": rates.gbit_s })
    };
    let pair = |pair: &Pair| match pair {
        Pair::Memif { ours, testpmd } => {
            json!({ "stack_payload_gbit_s": ours, "testpmd_gbit_s": testpmd })
        }
        Pair::Tap { ours, payload_gbit_s, testpmd } => {
            json!({ "stack": rates(ours), "stack_payload_gbit_s": payload_gbit_s,
                "testpmd": rates(testpmd) })
        }
    };
    let row = |row: &Row| {
        let share = row.share().map(|it| {
            json!({ "median": it.median, "interval": [it.low, it.high], "coverage": it.coverage,
                "kept": row.kept(&it) })
        });
        json!({ "row": row.name, "mtu": row.mtu, "unit": row.unit, "wanted": row.wanted,
            "share": share, "pairs": row.pairs.iter().map(pair).collect::<Vec<_>>() })
    };
    json!({ "machine": host_json(), "seconds": seconds,
        "rows": rows.iter().map(row).collect::<Vec<_>>(), "failures": failures })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_kept_by_the_whole_interval() {
        let mut row = rows().remove(0);
        row.pairs = vec![Pair::Memif { ours: 17.0, testpmd: 20.0 }; 6];
        let text = table(&[row.clone()]);
        let line = "| memif-1500 | Gb/s | 17.000 | 20.000 | 0.850 (0.850 to 0.850) | at least 0.8 \
                    | yes | 6 |";
        assert!(text.contains(line), "{text}");
        row.pairs[0] = Pair::Memif { ours: 10.0, testpmd: 20.0 };
        assert_eq!(row.kept(&row.share().unwrap()), "open");
        row.pairs.fill(Pair::Memif { ours: 10.0, testpmd: 20.0 });
        assert_eq!(row.kept(&row.share().unwrap()), "no");
    }

    #[test]
    fn packets_of_both_directions_are_compared_over_tap() {
        let mut row = rows().remove(2);
        let ours = Rates { mpps: 0.3, to_receiver_mpps: 0.2, gbit_s: 2.4 };
        let testpmd = Rates { mpps: 0.3, to_receiver_mpps: 0.3, gbit_s: 3.6 };
        row.pairs = vec![Pair::Tap { ours, payload_gbit_s: 2.3, testpmd }];
        let text = table(&[row]);
        assert!(text.contains("| tap-1500 | M packets/s | 0.300 | 0.300 | 1.000 "), "{text}");
        assert!(text.contains("0.200 M/s are segments, with 2.30 Gb/s of payload"), "{text}");
    }
}
