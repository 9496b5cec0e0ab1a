//! Reports as Markdown: one alone, and the page of all reports of a machine.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::cases::ALL;
use crate::interval::MedianInterval;
use crate::machine::LOAD;
use crate::model::{Kind, Limit, Report, Row, Series};

/// Formats the tables of a report, its notes and its failures.
pub(crate) fn tables(report: &Report) -> String {
    let mut text = String::new();
    for rows in report.rows.chunk_by(|a, b| a.table == b.table) {
        if !rows[0].table.is_empty() {
            let _ = write!(text, "### {}\n\n", rows[0].table);
        }
        table(&mut text, rows);
        text.push('\n');
    }
    if !report.notes.is_empty() {
        let notes = report.notes.iter().map(|note| format!("| {note} |\n"));
        let _ = writeln!(text, "| notes |\n|---|\n{}", notes.collect::<String>());
    }
    for failure in &report.failures {
        let _ = write!(text, "Failed: {failure}\n\n");
    }
    text
}

fn table(text: &mut String, rows: &[Row]) {
    let is_compared = rows.iter().any(|row| row.reference.is_some());
    let has_limit = rows.iter().any(|row| row.limit.is_some());
    let mut head = vec!["row", "figure"];
    head.extend(if is_compared { &["subject", "reference", "ratio"][..] } else { &["median"] });
    head.extend(if has_limit { &["limit", "kept"][..] } else { &[] });
    head.push("runs");
    let _ = writeln!(text, "| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        let mut cells = vec![row.name.clone(), row.figure.clone()];
        if is_compared {
            cells.push(named(&row.subject));
            cells.push(row.reference.as_ref().map_or_else(String::new, named));
        }
        let judged = MedianInterval::of(&row.judged());
        cells.push(judged.map_or_else(
            || "failed".to_owned(),
            |judged| {
                let unit = if row.kind == Kind::Difference { unit(&row.figure) } else { "" };
                let MedianInterval { median, low, high, .. } = judged;
                let [median, low, high] = [median, low, high].map(digits);
                match row.subject.values.len() {
                    1 => format!("{median}{unit}"),
                    _ => format!("{median}{unit} ({low} to {high})"),
                }
            },
        ));
        if has_limit {
            cells.push(row.limit.map_or_else(String::new, |limit| match limit {
                Limit::AtLeast(value) => format!("at least {value}"),
                Limit::AtMost(value) => format!("at most {value}"),
                Limit::EachAtLeast(value) => format!("each at least {value}"),
                Limit::EachAtMost(value) => format!("each at most {value}"),
            }));
            cells.push(row.kept().unwrap_or_default().to_owned());
        }
        cells.push(row.subject.values.len().to_string());
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
}

/// Formats name and median of a series.
fn named(series: &Series) -> String {
    let median = MedianInterval::of(&series.values).map(|interval| digits(interval.median));
    format!("{} {}", series.name, median.unwrap_or_default()).trim_end().to_owned()
}

/// Returns the unit of a figure: its first word, with a space before it.
fn unit(figure: &str) -> &str {
    if figure.starts_with("us") { " us" } else { "" }
}

/// Formats a number with three significant digits.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.1.. | 0.0 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// Formats one report with its machine.
pub(crate) fn alone(report: &Report, title: &str) -> String {
    let Report { case, date, seconds, .. } = report;
    let method = format!("bench/methods/{case}.md");
    let mut text =
        format!("# {title}\n\nMethod: {method}. {date}: {seconds} s for each measurement.\n\n");
    text.push_str(&machine(&report.machine));
    text.push_str(&tables(report));
    text.trim_end().to_owned() + "\n"
}

fn machine(properties: &[(String, String)]) -> String {
    let rows = properties.iter().map(|(name, value)| format!("| {name} | {value} |\n"));
    format!("| machine | |\n|---|---|\n{}\n", rows.collect::<String>())
}

/// Reads the reports in the folder of a machine, in the order of the cases.
pub(crate) fn reports(folder: &Path) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = std::fs::read_to_string(&path)?;
            let report: Report =
                serde_json::from_str(&text).with_context(|| path.display().to_string())?;
            reports.push(report);
        }
    }
    let place = |report: &Report| ALL.iter().position(|case| case.name == report.case);
    reports.sort_by_key(|report| (place(report).unwrap_or(ALL.len()), report.case.clone()));
    Ok(reports)
}

/// Formats the page of a machine; `name` is that of its folder, beside which the page lies.
pub(crate) fn of_machine(folder: &Path, name: &str, reports: &[Report]) -> Result<String> {
    let newest = reports.iter().max_by_key(|report| &report.date).context("no reports")?;
    let mut text = format!(
        "# Results on {name}\n\nWritten by `bench/run` from the newest run of each case in \
         [{name}/]({name}/). [The columns](../methods/README.md).\n\n"
    );
    text.push_str(&machine(&newest.machine));
    for report in reports {
        let case = ALL.iter().find(|case| case.name == report.case);
        let title = case.map_or(report.case.as_str(), |case| case.title);
        let Report { case, date, seconds, .. } = report;
        let _ = write!(
            text,
            "## {title}\n\n[Method](../methods/{case}.md). {date}: {seconds} s for each \
             measurement{}.\n\n",
            differences(&report.machine, &newest.machine)
        );
        if folder.join(format!("{case}.svg")).exists() {
            let _ = write!(text, "![{title}]({name}/{case}.svg)\n\n");
        }
        text.push_str(&tables(report));
    }
    Ok(text.trim_end().to_owned() + "\n")
}

/// Describes the properties in which the machine of a report differs from the page's.
fn differences(own: &[(String, String)], page: &[(String, String)]) -> String {
    let other = own.iter().filter(|property| !page.contains(property));
    let other = other.map(|(name, value)| {
        let name = if name == LOAD { "load" } else { name };
        format!("; {name}: {value}")
    });
    other.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::row;

    fn report() -> Report {
        let mut alone = row(&[311.2, 304.0, 328.0], 1.0, Some(Limit::EachAtMost(300.0)));
        (alone.table, alone.reference) = ("Alone".to_owned(), None);
        let mut tail = row(&[0.5, 0.6], 1.0, None);
        (tail.kind, tail.figure) = (Kind::Difference, "us, p99 - p50".to_owned());
        Report {
            case: "bound".to_owned(),
            date: "2026-01-02".to_owned(),
            machine: vec![("Cores".to_owned(), "2".to_owned())],
            rows: vec![row(&[35.0; 9], 50.0, Some(Limit::AtLeast(0.7))), tail, alone],
            ..Report::default()
        }
    }

    #[test]
    fn tables_have_ratio_interval_and_limit() {
        let text = tables(&report());
        for expected in [
            "| row | figure | subject | reference | ratio | limit | kept | runs |",
            "| write-bw-64K-1500 | Gb/s | ours 35.0 | bound 50.0 | 0.700 (0.700 to 0.700) | at \
             least 0.7 | yes | 9 |",
            "| us, p99 - p50 | ours 0.550 | bound 1.00 | -0.450 us (-0.500 to -0.400) |  |  | 2 |",
            "### Alone\n\n| row | figure | median | limit | kept | runs |",
            "| Gb/s | 311 (304 to 328) | each at most 300 | no | 3 |",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
    }

    #[test]
    fn page_has_the_newest_machine_and_what_differs() {
        let folder = ferrowarp_tests::process::temp_dir().unwrap();
        let older = Report {
            case: "vhost".to_owned(),
            date: "2026-01-01".to_owned(),
            machine: vec![("Cores".to_owned(), "1".to_owned())],
            ..report()
        };
        for report in [&report(), &older] {
            let path = folder.path().join(format!("{}.json", report.case));
            std::fs::write(path, report.json().unwrap()).unwrap();
        }
        let reports = reports(folder.path()).unwrap();
        let text = of_machine(folder.path(), "here", &reports).unwrap();
        assert!(text.contains("| Cores | 2 |"), "{text}");
        let order =
            ["## Share of the bound", "2026-01-02", "## vhost", "2026-01-01", "; Cores: 1."];
        let places = order.map(|part| text.find(part).expect(part));
        assert!(places.is_sorted(), "{text}");
    }
}
