//! The results as Markdown.

use std::fmt::Write as _;
use std::fs::read_to_string;
use std::process::Command;

use serde_json::Value;

use super::measure::BOUND_MESSAGE_LEN;
use super::plan::Plan;
use super::result::{CellResult, Table, Target};
use super::runner::Sample;
use crate::median::median;

/// Messages below this size in bytes are reported with their rate.
const SMALL: u64 = 1024;

/// Returns hardware and software of the measurements, one line each.
#[must_use]
pub fn host_info() -> Vec<(&'static str, String)> {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split(' ').any(|found| found == flag);
    let release = read_to_string("/etc/os-release").unwrap_or_default();
    let system = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let hugepages = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    vec![
        ("Processor", processor.unwrap_or_default()),
        ("AVX-512, VPCLMULQDQ", format!("{}, {}", has("avx512f"), has("vpclmulqdq"))),
        ("Virtual machine", has("hypervisor").to_string()),
        ("Cores", std::thread::available_parallelism().map_or(0, Into::into).to_string()),
        ("System", system.unwrap_or_default().trim_matches('"').to_owned()),
        ("Kernel", kernel.trim().to_owned()),
        ("Hugepages of 2 MiB", read_to_string(hugepages).unwrap_or_default().trim().to_owned()),
        ("Load average at the start", first_words(&read_to_string("/proc/loadavg"), 3)),
        ("Scheduling", scheduling().to_owned()),
        ("DPDK", ferrowarp::dpdk_version().to_owned()),
        ("Rust", output("rustc", &["--version"])),
        ("Stack", format!("ferrowarp {}", env!("CARGO_PKG_VERSION"))),
    ]
}

/// Formats [`host_info`] as a table.
#[must_use]
pub fn host_table() -> String {
    let mut text = "| machine | |\n|---|---|\n".to_owned();
    for (name, value) in host_info() {
        line(&mut text, &format!("| {name} | {value} |"));
    }
    text
}

/// Returns [`host_info`] as a JSON object.
#[must_use]
pub fn host_json() -> Value {
    host_info().into_iter().map(|(name, value)| (name, Value::from(value))).collect()
}

fn first_words(text: &std::io::Result<String>, count: usize) -> String {
    let text = text.as_deref().unwrap_or_default();
    text.split(' ').take(count).collect::<Vec<_>>().join(" ")
}

/// Returns the scheduling policy of this program, which its children inherit (`man 5 proc`, field
/// 41 of `stat`): on a busy machine, `chrt -f 10` gives the runs priority.
fn scheduling() -> &'static str {
    let stat = read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is a name in parentheses, which may contain any character.
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    match rest.split(' ').nth(38) {
        Some("0") => "ordinary",
        Some("1") => "real time, first in first out",
        Some("2") => "real time, round robin",
        _ => "unknown",
    }
}

fn output(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output();
    out.map_or_else(
        |_| "absent".to_owned(),
        |out| String::from_utf8_lossy(&out.stdout).trim().to_owned(),
    )
}

/// Formats all tables of a run.
#[must_use]
pub fn tables(plan: &Plan, tables: &[Table]) -> String {
    let mut text = String::new();
    for table in tables {
        write_table(&mut text, plan, table);
    }
    text
}

/// Formats targets and results: median, lowest and highest of the rounds.
#[must_use]
pub fn target_table(targets: &[Target]) -> String {
    let mut text = "| test | bytes | where | MTU | wanted | median | lowest to highest |\n\
                    |---|---:|---|---:|---:|---:|---:|\n"
        .to_owned();
    for Target { test, topology, mtu, size, threshold, measured: cell } in targets {
        let is_latency = test.ends_with("-lat");
        let value = |sample: &Sample| if is_latency { sample.p50_us } else { sample.gbit_s };
        let (unit, bound) = if is_latency { ("us", "at most") } else { ("Gb/s", "at least") };
        let Some(middle) = cell.median(value) else { continue };
        let least = cell.samples.iter().map(value).fold(f64::INFINITY, f64::min);
        let most = cell.samples.iter().map(value).fold(0.0, f64::max);
        let title = topology.title();
        line(
            &mut text,
            &format!(
                "| {test}, {unit} | {size} | {title} | {mtu} | {bound} {threshold} | {middle:.2} \
                 | {least:.2} to {most:.2} |"
            ),
        );
    }
    line(&mut text, "");
    text
}

fn write_table(text: &mut String, plan: &Plan, table: &Table) {
    let checksum =
        table.rows.iter().flat_map(|(_, cells)| cells).find_map(|cell| cell.samples.first());
    let checksum = checksum.map_or("", |sample| sample.checksum.as_str());
    line(text, &format!("### {}, MTU {}", table.topology.title(), table.mtu));
    line(text, "");
    line(text, &format!("TCP and IP checksums: {checksum}. {}", bound_line(table)));
    line(text, "");
    let mut head = "| test |".to_owned();
    for &size in &plan.sizes {
        let _ = write!(head, " {} |", size_name(size));
    }
    line(text, &head);
    line(text, &format!("|---|{}", "---:|".repeat(plan.sizes.len())));
    for (test, cells) in &table.rows {
        let mut row = format!("| {test}, {} |", if test.ends_with("-bw") { "Gb/s" } else { "us" });
        for (cell, &size) in cells.iter().zip(&plan.sizes) {
            let _ = write!(row, " {} |", format_cell(test, size, cell));
        }
        line(text, &row);
    }
    line(text, "");
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

fn bound_line(table: &Table) -> String {
    let all: Vec<f64> = table
        .rows
        .iter()
        .flat_map(|(_, cells)| cells)
        .flat_map(|cell| cell.bound.clone())
        .collect();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().copied().fold(0.0, f64::max);
    match median(all) {
        Some(middle) => format!(
            "Frozen bound of {} messages on the same cores: {middle:.1} Gb/s \
             ({least:.1} to {most:.1}).",
            size_name(BOUND_MESSAGE_LEN as u64)
        ),
        None => "The frozen bound was not measured.".to_owned(),
    }
}

/// Formats a cell. Bandwidth: median, in parentheses its share of the bound, or the rate of small
/// messages. Latency: median and 99th percentile.
fn format_cell(test: &str, size: u64, cell: &CellResult) -> String {
    if test.ends_with("-lat") {
        let (Some(p50), Some(p99)) = (cell.median(|s| s.p50_us), cell.median(|s| s.p99_us)) else {
            return "failed".to_owned();
        };
        return format!("{p50:.2} (p99 {p99:.2})");
    }
    let Some(middle) = cell.median(|s| s.gbit_s) else { return "failed".to_owned() };
    let shares = cell.samples.iter().zip(&cell.bound).map(|(sample, bare)| sample.gbit_s / bare);
    let share = median(shares.collect()).unwrap_or(0.0) * 100.0;
    if size < SMALL {
        let rate = cell.median(|s| s.rate_mops).unwrap_or(0.0);
        format!("{middle:.2} ({rate:.2} M/s)")
    } else if middle >= 10.0 {
        format!("{middle:.1} ({share:.0} %)")
    } else {
        format!("{middle:.2} ({share:.1} %)")
    }
}

/// Formats a size: 64, 4 KiB, 1 MiB.
#[must_use]
pub fn size_name(size: u64) -> String {
    match size {
        0..1024 => size.to_string(),
        1024..1_048_576 => format!("{} KiB", size / 1024),
        _ => format!("{} MiB", size / 1_048_576),
    }
}

/// Returns the name of a row for options and tables: `write-bw-64K-1500`.
#[must_use]
pub fn row_name(test: &str, size: u64, mtu: u16) -> String {
    let size = size_name(size).replace(" KiB", "K").replace(" MiB", "M");
    format!("{test}-{size}-{mtu}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::plan::Topology;

    #[test]
    fn table_shows_medians_and_failures() {
        let sample = |gbit_s, p50_us| Sample {
            gbit_s,
            p50_us,
            p99_us: 2.0 * p50_us,
            checksum: "none".to_owned(),
            ..Sample::default()
        };
        let fast = CellResult {
            samples: vec![sample(10.0, 0.0), sample(30.0, 0.0), sample(20.0, 0.0)],
            bound: vec![40.0; 3],
        };
        let quick = CellResult { samples: vec![sample(0.1, 1.25)], bound: vec![] };
        let table = Table {
            topology: Topology::OneCore(0),
            mtu: 1500,
            rows: vec![
                ("write-bw", vec![fast]),
                ("write-lat", vec![quick]),
                ("read-bw", vec![CellResult::default()]),
            ],
        };
        let plan = Plan {
            tables: vec![],
            sizes: vec![65_536],
            rounds: 3,
            seconds: 1.0,
            bound_seconds: 0.1,
        };
        let text = tables(&plan, &[table]);
        for expected in [
            "### `ring`, one core, MTU 1500",
            "Frozen bound of 64 KiB messages on the same cores: 40.0 Gb/s",
            "| test | 64 KiB |",
            "| write-bw, Gb/s | 20.0 (50 %) |",
            "| write-lat, us | 1.25 (p99 2.50) |",
            "| read-bw, Gb/s | failed |",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
    }

    #[test]
    fn host_info_has_scheduling_load_and_rust() {
        let info = host_info();
        let value = |name| info.iter().find(|(found, _)| *found == name).unwrap().1.as_str();
        assert_ne!(value("Scheduling"), "unknown");
        assert_eq!(value("Load average at the start").split(' ').count(), 3);
        assert!(value("Rust").starts_with("rustc "));
    }

    #[test]
    fn target_table_shows_median_and_range() {
        let mut promised = crate::baseline::result::targets(0, Some([0, 1]));
        for (gbit_s, p50_us) in [(14.0, 0.0), (13.0, 0.0), (16.0, 0.0)] {
            promised[0].measured.samples.push(Sample { gbit_s, p50_us, ..Sample::default() });
        }
        promised[2].measured.samples.push(Sample { p50_us: 1.5, ..Sample::default() });
        let text = target_table(&promised);
        assert!(text.contains("| 1500 | at least 12 | 14.00 | 13.00 to 16.00 |"), "{text}");
        assert!(text.contains("| 1500 | at most 2.5 | 1.50 | 1.50 to 1.50 |"), "{text}");
        assert!(!text.contains("| 9000 |"), "nothing was measured: {text}");
    }

    #[test]
    fn size_name_uses_binary_units() {
        assert_eq!([64, 4096, 65_536, 1 << 20].map(size_name), ["64", "4 KiB", "64 KiB", "1 MiB"]);
    }
}
