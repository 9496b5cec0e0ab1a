//! The results as Markdown and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::rows::{Pair, Row};
use crate::baseline::report::{host_json, host_table};

const METHOD: &str = "# vhost-user beside memif\n\n\
    Written by `bench/vhost`. Two processes, `iwperf server` and its client, with a core each: \
    over `vhost:SOCKET` at the server with `virtio-user:SOCKET` at the client, and over `memif`. \
    Both pairs of devices pass frames through shared memory; CRC is on, and the stack computes the \
    checksums of TCP and IP in software over both. What differs is who copies a frame, read in the \
    sources of DPDK 22.11:\n\n\
    *memif*: the driver at each end (`drivers/net/memif/rte_eth_memif.c`, without its option \
    `zero-copy`). The sender's copies each frame from its mbuf to a buffer of the link, the \
    receiver's from there to one of its own mbufs: two copies of each frame, one on each core. A \
    ring has 512 buffers in each direction.\n\n\
    *vhost*: the back end alone, in both directions (`lib/vhost/virtio_net.c`). It maps the memory \
    of the virtio driver, and copies frames out of the mbufs that the driver sends and into those \
    that it has for received ones; the driver passes descriptors of its mbufs and copies no frame \
    (`drivers/net/virtio/virtio_rxtx.c`). One copy of each frame, on the server's core, whoever \
    sends it. A ring has 256 descriptors in each direction.\n\n\
    So with `write-bw`, where the client sends and the server receives, the copies of all frames, \
    ACKs included, are the server's over vhost, and over memif the client has half of them. \
    Bandwidth is confirmed payload, without any header; M/s are messages, in millions per second; \
    the latency of Writes is half a round trip, that of Reads a whole one.\n";

/// Formats method, machine and results.
#[must_use]
pub fn markdown(rows: &[Row], seconds: f64) -> String {
    let mut text = METHOD.to_owned();
    let _ = write!(
        text,
        "\nIn each pair both are measured one after the other for {seconds} s, in reverse order in \
         every other pair. Given are medians, and that of the ratios of the pairs with its \
         interval by order statistics (95 % from 6 pairs on): above 1, vhost has more bandwidth, \
         more messages, or the longer latency. No limit is set.\n\n\
         To repeat: `bench/vhost`; in less than a minute: `bench/vhost --quick`.\n\n"
    );
    text.push_str(&host_table());
    text.push('\n');
    text.push_str(&table(rows));
    text
}

/// Formats the table of results.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = "| row | unit | vhost | memif | vhost / memif | pairs |\n\
                    |---|---|---:|---:|---|---:|\n"
        .to_owned();
    for row in rows {
        let (name, unit, figures) = (&row.name, row.figure.unit(), row.figures());
        let (Some(vhost), Some(memif), Some(ratio)) =
            (figures.figure(1), figures.figure(0), figures.ratio())
        else {
            let _ = writeln!(text, "| {name} | {unit} | | | failed | 0 |");
            continue;
        };
        let _ = writeln!(
            text,
            "| {name} | {unit} | {:.3} | {:.3} | {} | {} |",
            vhost.median,
            memif.median,
            ratio.describe(3),
            row.pairs.len()
        );
    }
    text
}

/// Returns all pairs as JSON.
#[must_use]
pub fn json(rows: &[Row], seconds: f64, failures: &[String]) -> Value {
    let pair = |it: &Pair| json!({ "vhost": it.vhost.figures(), "memif": it.memif.figures() });
    let row = |row: &Row| {
        let ratio = row.figures().ratio().map(|it| {
            json!({ "median": it.median, "interval": [it.low, it.high], "coverage": it.coverage })
        });
        json!({ "row": row.name, "test": row.test, "size_bytes": row.size, "mtu": row.mtu,
            "unit": row.figure.unit(), "ratio": ratio,
            "pairs": row.pairs.iter().map(pair).collect::<Vec<_>>() })
    };
    json!({ "machine": host_json(), "seconds": seconds,
        "rows": rows.iter().map(row).collect::<Vec<_>>(), "failures": failures })
}

#[cfg(test)]
mod tests {
    use super::super::rows::rows;
    use super::*;
    use crate::baseline::runner::Sample;

    /// A row with a pair for each figure over vhost; those over memif are 10.
    fn row(index: usize, sample: impl Fn(f64) -> Sample, vhost: &[f64]) -> Row {
        let mut row = rows().remove(index);
        let pair = |&it: &f64| Pair { vhost: sample(it), memif: sample(10.0) };
        row.pairs = vhost.iter().map(pair).collect();
        row
    }

    #[test]
    fn table_has_medians_and_the_interval_of_the_ratio() {
        let rate = |gbit_s| Sample { gbit_s, ..Sample::default() };
        let latency = |p50_us| Sample { p50_us, ..Sample::default() };
        let rows = [
            row(1, rate, &[12.0, 20.0, 15.0, 14.0, 16.0, 13.0]),
            row(4, latency, &[5.0; 2]),
            row(5, latency, &[]),
        ];
        let text = table(&rows);
        for expected in [
            "| write-bw-64K-9000 | Gb/s | 14.500 | 10.000 | 1.450 (1.200 to 2.000) | 6 |",
            "| write-lat-64-1500 | us, p50 | 5.000 | 10.000 | 0.500 (0.500 to 0.500) | 2 |",
            "| read-lat-64-1500 | us, p50 | | | failed | 0 |",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert!(markdown(&rows, 1.0).ends_with(&text));
    }

    #[test]
    fn json_has_every_pair() {
        let rate = |rate_mops| Sample { rate_mops, ..Sample::default() };
        let value = json(&[row(3, rate, &[5.0, 20.0])], 1.0, &["lost".to_owned()]);
        let row = &value["rows"][0];
        assert_eq!(row["ratio"]["interval"], json!([0.5, 2.0]));
        assert_eq!(row["pairs"][1]["vhost"]["rate_mops"], 20.0);
        assert_eq!(row["pairs"][1]["memif"]["rate_mops"], 10.0);
        assert_eq!((&row["size_bytes"], &value["failures"][0]), (&json!(64), &json!("lost")));
    }
}
