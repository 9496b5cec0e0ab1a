//! The one model of results: a report of a case has rows, and a row compares two series of samples
//! or shows one.

use serde::{Deserialize, Serialize};

use crate::interval::{COVERAGE_MIN, MedianInterval};

/// Newest run of a case on a machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) case: String,
    pub(crate) date: String,
    pub(crate) seconds: f64,
    /// Properties of the machine, name and value.
    pub(crate) machine: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// Figure of one subject, or of a subject and a reference measured in the same rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Title of the table that the row belongs to; empty in a case with one table.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) table: String,
    pub(crate) name: String,
    /// Unit, and what it is the unit of.
    pub(crate) figure: String,
    pub(crate) subject: Series,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reference: Option<Series>,
    #[serde(default, skip_serializing_if = "Kind::is_ratio")]
    pub(crate) kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<Limit>,
}

/// Samples of one contender, one for each round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) values: Vec<f64>,
}

impl Series {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), values: vec![] }
    }
}

/// How a subject is compared with its reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    #[default]
    Ratio,
    Difference,
}

impl Kind {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_ratio(&self) -> bool {
        *self == Self::Ratio
    }
}

/// Limit of the ratio or difference, or of the figure itself without a reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
    /// Limits that each sample keeps, not only their median: a rule, or a single measurement.
    EachAtLeast(f64),
    /// As [`Self::EachAtLeast`].
    EachAtMost(f64),
}

impl Row {
    /// Returns the values that the limit applies to: ratios or differences of the rounds, or the
    /// samples themselves.
    pub(crate) fn judged(&self) -> Vec<f64> {
        let Some(reference) = &self.reference else { return self.subject.values.clone() };
        let both = self.subject.values.iter().zip(&reference.values);
        both.map(|(subject, reference)| match self.kind {
            Kind::Ratio => subject / reference,
            Kind::Difference => subject - reference,
        })
        .collect()
    }

    /// Judges the limit: "yes" or "no" if the whole interval keeps or breaks it; "open" if it is
    /// within the interval, or the samples are too few for one of 95 %. `None` without a limit or
    /// samples.
    pub(crate) fn kept(&self) -> Option<&'static str> {
        let (limit, judged) = (self.limit?, self.judged());
        let MedianInterval { low, high, coverage, .. } = MedianInterval::of(&judged)?;
        let rule = |is_kept| Some(if is_kept { "yes" } else { "no" });
        let (is_kept, is_broken) = match limit {
            Limit::AtLeast(limit) => (low >= limit, high < limit),
            Limit::AtMost(limit) => (high <= limit, low > limit),
            Limit::EachAtLeast(limit) => return rule(judged.iter().all(|&value| value >= limit)),
            Limit::EachAtMost(limit) => return rule(judged.iter().all(|&value| value <= limit)),
        };
        Some(match (is_kept, is_broken) {
            (true, _) if coverage >= COVERAGE_MIN => "yes",
            (_, true) if coverage >= COVERAGE_MIN => "no",
            _ => "open",
        })
    }
}

impl Report {
    /// Formats the report as JSON with a line for each row, so that a change shows its rows.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        let head = serde_json::to_string(&Self { rows: vec![], ..self.clone() })?;
        let rows: Vec<String> =
            self.rows.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        let head = head.trim_end_matches("[]}");
        Ok(format!("{head}[\n{}\n]}}\n", rows.join(",\n")))
    }
}

/// Rounds to five significant digits: more is noise, and takes space.
pub(crate) fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// Formats a size: 64, 4 KiB, 1 MiB.
pub(crate) fn size_name(size: u64) -> String {
    match size {
        0..1024 => size.to_string(),
        1024..1_048_576 => format!("{} KiB", size / 1024),
        _ => format!("{} MiB", size / 1_048_576),
    }
}

/// Returns the name of a row for options and tables: `write-bw-64K-1500`.
pub(crate) fn row_name(test: &str, size: u64, mtu: u16) -> String {
    let size = size_name(size).replace(" KiB", "K").replace(" MiB", "M");
    format!("{test}-{size}-{mtu}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(subject: &[f64], reference: f64, limit: Option<Limit>) -> Row {
        let series = |name: &str, values: Vec<f64>| Series { name: name.to_owned(), values };
        Row {
            table: String::new(),
            name: "write-bw-64K-1500".to_owned(),
            figure: "Gb/s".to_owned(),
            subject: series("ours", subject.to_vec()),
            reference: Some(series("bound", vec![reference; subject.len()])),
            kind: Kind::Ratio,
            limit,
        }
    }

    #[test]
    fn limit_is_kept_only_by_the_whole_interval() {
        let kept = |shares: [f64; 3], limit| row(&shares.repeat(2), 1.0, Some(limit)).kept();
        assert_eq!(kept([0.70, 0.75, 0.8], Limit::AtLeast(0.7)), Some("yes"));
        assert_eq!(kept([0.60, 0.65, 0.69], Limit::AtLeast(0.7)), Some("no"));
        assert_eq!(kept([0.60, 0.75, 0.8], Limit::AtLeast(0.7)), Some("open"));
        assert_eq!(kept([0.70, 0.75, 0.8], Limit::AtMost(0.8)), Some("yes"));
        assert_eq!(kept([0.70, 0.75, 0.8], Limit::AtMost(0.6)), Some("no"));
        assert_eq!(kept([0.1, 0.2, 1.1], Limit::EachAtMost(1.0)), Some("no"));
        assert_eq!(kept([0.7, 0.9, 1.0], Limit::EachAtLeast(0.75)), Some("no"));
        // Three values give no interval of 95 %.
        assert_eq!(row(&[0.8; 3], 1.0, Some(Limit::AtLeast(0.7))).kept(), Some("open"));
        assert_eq!(row(&[0.8], 1.0, Some(Limit::EachAtMost(1.0))).kept(), Some("yes"));
        assert_eq!(row(&[0.8; 9], 1.0, None).kept(), None);
    }

    #[test]
    fn reports_survive_json() {
        let report = Report {
            case: "bound".to_owned(),
            rows: vec![row(&[rounded(1.234_567_8), 2.0], 4.0, Some(Limit::AtMost(3.0)))],
            ..Report::default()
        };
        let text = report.json().unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
        let read: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(read.rows[0].subject.values, [1.2346, 2.0]);
        assert_eq!((read.rows[0].judged()[1], read.rows[0].limit), (0.5, report.rows[0].limit));
    }

    #[test]
    fn sizes_use_binary_units() {
        assert_eq!([64, 4096, 1 << 20].map(size_name), ["64", "4 KiB", "1 MiB"]);
        assert_eq!(row_name("write-bw", 65_536, 1500), "write-bw-64K-1500");
    }
}
