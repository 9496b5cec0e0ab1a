//! The results as Markdown.

use std::fmt::Write as _;

use super::results::{Cell, Comparison, Entry, Figure, Metric};
use super::{Setting, Test};
use crate::baseline::report::size_name;

/// Formats a comparison: what was run, and its tables.
#[must_use]
pub fn section(comparison: &Comparison) -> String {
    let mut text =
        format!("## {}\n\n{}\n\n", comparison.setting.title(), about(comparison.setting));
    text.push_str(&programs(comparison));
    text.push_str("### Ratios\n\n");
    text.push_str(&ratios(comparison, true));
    text.push_str(&bandwidths(comparison));
    text.push_str(&rates(comparison));
    text.push_str(&latencies(comparison));
    text
}

/// Says how to read the figures of a setting.
fn about(setting: Setting) -> &'static str {
    match setting {
        Setting::TwoProcesses => {
            "Server and client are pinned to a core each. Ours exchange packets of at most one MTU \
             through shared memory (`memif`), with CRC and with TCP and IP checksums in software; \
             the peers over TCP use the kernel's loopback in a network namespace of its own, whose \
             MTU is 65,536 and which neither segments nor checksums."
        }
        Setting::OneCore { .. } => {
            "Both ends in one process on one core, over two DPDK ports connected by rings; a frame \
             is handed over without a copy. The same driver code is below both stacks, and neither \
             computes checksums or CRC."
        }
        Setting::Guest { .. } => {
            "Both ends in a Linux guest with one processor, which is emulated. Its time counts \
             instructions, one for each nanosecond: the figures say how many instructions both \
             ends and everything between them take, and do not depend on the host. siw's ends are \
             two processes that sleep while they wait (perftest's `-e`, for Sends only), connected \
             by the guest's loopback with this MTU; ours share a process over `ring`. siw offers \
             no CRC to siw. A long copy by the kernel is one instruction for each byte where it is \
             `rep movsb`; ours are made in pieces without it, which counts fewer: at MTU 9000 the \
             ratio of bandwidth overstates."
        }
    }
}

fn programs(comparison: &Comparison) -> String {
    let mut text = "| | version | what runs |\n|---|---|---|\n".to_owned();
    for Entry { peer, version, .. } in &comparison.entries {
        let _ = writeln!(text, "| {} | {version} | {} |", peer.name(), peer.description());
    }
    for (name, reason) in &comparison.missing {
        let _ = writeln!(text, "| {name} | | not measured: {reason} |");
    }
    text.push('\n');
    text
}

/// Columns of the table of ratios, as far as they were measured.
fn ratio_columns(comparison: &Comparison) -> Vec<(String, Test, Metric)> {
    let mut columns = Vec::new();
    if let Some(size) = comparison.ping_pong_size() {
        let title = format!("latency, {} bytes, p50", size_name(size));
        columns.push((title, Test::PingPong { size }, Metric::P50));
    }
    for size in comparison.sizes() {
        let test = Test::Stream { size, connections: 1 };
        match size {
            64 => columns.push(("rate, 64 bytes".to_owned(), test, Metric::Rate)),
            65_536 | 1_048_576 => {
                columns.push((format!("bandwidth, {}", size_name(size)), test, Metric::Bandwidth));
            }
            _ => {}
        }
    }
    columns
}

/// Formats the ratios of ours to each peer, round by round, with their spread or without.
#[must_use]
pub fn ratios(comparison: &Comparison, with_spread: bool) -> String {
    let columns = ratio_columns(comparison);
    let mut text = "| ours / peer |".to_owned();
    for (title, ..) in &columns {
        let _ = write!(text, " {title} |");
    }
    let _ = writeln!(text, "\n|---|{}", "---:|".repeat(columns.len()));
    let (ours, others): (Vec<&Entry>, Vec<&Entry>) =
        comparison.entries.iter().partition(|entry| entry.peer.is_ours());
    for own in &ours {
        for other in &others {
            let cells: Vec<String> = columns
                .iter()
                .map(|&(_, test, metric)| ratio(comparison, own, other, test, metric, with_spread))
                .collect();
            if cells.iter().all(String::is_empty) {
                continue;
            }
            let names = format!("{} / {}", own.peer.name(), other.peer.name());
            let _ = writeln!(text, "| {names} | {} |", cells.join(" | "));
        }
    }
    text.push('\n');
    text
}

/// Formats a ratio; empty if either was not measured. A peer that reports no median is compared by
/// the mean.
fn ratio(
    comparison: &Comparison,
    own: &Entry,
    other: &Entry,
    test: Test,
    metric: Metric,
    with_spread: bool,
) -> String {
    let of = |metric| comparison.cell(own, test)?.ratio(comparison.cell(other, test)?, metric);
    let (found, note) = match of(metric) {
        None if metric == Metric::P50 => (of(Metric::Mean), " (mean)"),
        found => (found, ""),
    };
    found.map_or_else(String::new, |Figure { median, min, max }| {
        if with_spread {
            format!("**{}**{note}, {} to {}", digits(median), digits(min), digits(max))
        } else {
            format!("{}{note}", digits(median))
        }
    })
}

fn bandwidths(comparison: &Comparison) -> String {
    let sizes = comparison.sizes();
    let titles: Vec<String> = sizes.iter().map(|&size| size_name(size)).collect();
    let tests = sizes.iter().map(|&size| Test::Stream { size, connections: 1 });
    let columns: Vec<_> = tests.map(|test| (test, Metric::Bandwidth)).collect();
    format!("### Bandwidth by message size, Gb/s\n\n{}", table(comparison, &titles, &columns))
}

fn rates(comparison: &Comparison) -> String {
    let (counts, Some(&size)) = (comparison.connection_counts(), comparison.sizes().first()) else {
        return String::new();
    };
    if counts.is_empty() {
        return String::new();
    }
    let titles: Vec<String> = counts.iter().map(ToString::to_string).collect();
    let tests = counts.iter().map(|&connections| Test::Stream { size, connections });
    let columns: Vec<_> = tests.map(|test| (test, Metric::Rate)).collect();
    let table = table(comparison, &titles, &columns);
    format!(
        "### Messages of {size} bytes by queue pairs or connections, millions per second\n\n{table}"
    )
}

fn latencies(comparison: &Comparison) -> String {
    let Some(size) = comparison.ping_pong_size() else { return String::new() };
    let metrics: Vec<Metric> = [Metric::Mean].into_iter().chain(Metric::PERCENTILES).collect();
    let titles: Vec<String> = metrics.iter().map(|metric| metric.title().to_owned()).collect();
    let columns: Vec<_> = metrics.iter().map(|&metric| (Test::PingPong { size }, metric)).collect();
    let table = table(comparison, &titles, &columns);
    format!("### Latency of {size} bytes, half a round trip, us\n\n{table}")
}

/// Formats a table with a row for each peer: medians, lowest to highest.
fn table(comparison: &Comparison, titles: &[String], columns: &[(Test, Metric)]) -> String {
    let mut text = format!("| | {} |\n|---|{}\n", titles.join(" | "), "---:|".repeat(titles.len()));
    for entry in &comparison.entries {
        let figure = |&(test, metric): &(Test, Metric)| {
            let cell = comparison.cell(entry, test)?;
            cell_text(cell, metric, entry.peer.supports(test))
        };
        let cells: Vec<Option<String>> = columns.iter().map(figure).collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let cells: Vec<String> = cells.into_iter().map(Option::unwrap_or_default).collect();
        let _ = writeln!(text, "| {} | {} |", entry.peer.name(), cells.join(" | "));
    }
    text.push('\n');
    text
}

/// Formats a cell; none if it does not exist.
fn cell_text(cell: &Cell, metric: Metric, is_supported: bool) -> Option<String> {
    match cell.figure(metric) {
        Some(Figure { median, min, max }) => {
            Some(format!("**{}**, {} to {}", digits(median), digits(min), digits(max)))
        }
        None if is_supported && cell.rounds.iter().all(Option::is_none) => {
            Some("failed".to_owned())
        }
        None => None,
    }
}

/// Formats a number with three significant digits.
#[must_use]
pub fn digits(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.1.. => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// Replaces what stands between the two marks in `document`.
///
/// # Errors
/// If a mark is absent.
pub fn replace_marked(document: &str, text: &str) -> anyhow::Result<String> {
    let (begin, end) = ("<!-- bench-peers: begin -->\n", "<!-- bench-peers: end -->");
    let missing = |mark: &str| anyhow::anyhow!("no line {} in it", mark.trim());
    let (head, rest) = document.split_once(begin).ok_or_else(|| missing(begin))?;
    let (_, tail) = rest.split_once(end).ok_or_else(|| missing(end))?;
    Ok(format!("{head}{begin}{text}{end}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{results, rounds};

    #[test]
    fn section_has_medians_ratios_and_missing_peers() {
        let mut comparisons = [results::tests::comparison()];
        rounds::run(&mut comparisons, 3, 0.0, None, &mut vec![]);
        let text = section(&comparisons[0]);
        for expected in [
            "## Two processes on two cores",
            "| other | 1.0 | description of other |",
            "| absent | | not measured: apt-get install it |",
            "| ours / peer | latency, 64 bytes, p50 | rate, 64 bytes | bandwidth, 64 KiB |",
            "| ferrowarp / other | **0.500**, 0.500 to 0.500 | **2.00**, 2.00 to 2.00 |",
            "| | 64 | 64 KiB |",
            "| ferrowarp | **1.02**, 1.02 to 1.02 | **1049**, 1049 to 1049 |",
            "| | 1 | 16 |",
            "| | mean | p50 | p90 | p99 | p99.9 |",
            "| other | **5.00**, 5.00 to 5.00 |",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        let short = ratios(&comparisons[0], false);
        assert!(short.contains("| ferrowarp / other | 0.500 | 2.00 | 2.00 |"), "{short}");
    }

    #[test]
    fn failed_runs_are_shown() {
        let mut comparison = results::tests::comparison();
        comparison.entries[1].cells[0].rounds = vec![None, None];
        let text = section(&comparison);
        assert!(text.contains("| other | failed |"), "{text}");
    }

    #[test]
    fn digits_are_three() {
        let expected = ["1234", "12.3", "1.23", "0.123", "0.0123"];
        assert_eq!([1234.0, 12.34, 1.234, 0.1234, 0.01234].map(digits), expected);
    }

    #[test]
    fn marked_text_is_replaced() {
        let document = "a\n<!-- bench-peers: begin -->\nold\n<!-- bench-peers: end -->\nb\n";
        let text = replace_marked(document, "new\n").unwrap();
        assert_eq!(text, document.replace("old", "new"));
        assert!(replace_marked("a", "new").is_err());
    }
}
