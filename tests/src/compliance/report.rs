//! Coverage report: rules, tags, exceptions and open rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use super::catalogue::{self, CATALOGUES, Rule};
use super::scan::{Kind, Tag, Tags};
use crate::peer::invalid_data;

/// Maximum number of rules that one test may claim.
const CLAIMS_MAX: usize = 5;
/// Kinds of exceptions. `n/a`: a rule that only permits, or cannot fail. `foreign`: a rule about
/// MPA over another TCP than this stack's.
const EXCEPTION_KINDS: [&str; 2] = ["n/a", "foreign"];
/// Levels in the summary, with their keywords.
const LEVELS: [(&str, &[&str]); 4] = [
    ("MUST", &["MUST", "MUST NOT"]),
    ("SHOULD", &["SHOULD", "SHOULD NOT"]),
    ("MAY", &["MAY"]),
    ("FACT", &["FACT"]),
];

const COVERAGE: &str = "tests/compliance/coverage.tsv";
const OPEN: &str = "tests/compliance/open.tsv";
const EXCEPTIONS: &str = "tests/compliance/exceptions.tsv";
const COVERAGE_TITLES: &str = "id\tlevel\tscope\tcode\ttests";
const OPEN_TITLES: &str = "id";
const EXCEPTION_TITLES: &str = "id\tkind\treason";

/// Reason why a rule needs no test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// `n/a` or `foreign`.
    pub kind: String,
    /// The reason, as text.
    pub reason: String,
}

/// Status of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleStatus {
    /// Guarded by a test.
    Tested,
    /// Needs no test: see [`Exception`].
    Excepted,
    /// Neither tested nor excepted.
    Open,
}

/// All rules with their status.
#[derive(Debug)]
pub struct TraceReport {
    /// The rules.
    pub rules: Vec<Rule>,
    /// The tags in the sources.
    pub tags: Vec<Tag>,
    exceptions: BTreeMap<String, Exception>,
    open: BTreeSet<String>,
    coverage: String,
    tag_errors: Vec<String>,
}

impl TraceReport {
    /// Reads catalogues, tables and sources under `root`.
    ///
    /// # Errors
    /// I/O errors, and `InvalidData` for malformed tables.
    pub fn read(root: &Path) -> io::Result<Self> {
        let Tags { tags, errors: complaints } = Tags::read(root)?;
        let mut exceptions = BTreeMap::new();
        for line in read_table(root, EXCEPTIONS, EXCEPTION_TITLES)? {
            let columns: Vec<_> = line.split('\t').collect();
            let [id, kind, reason] = columns[..] else {
                return Err(invalid_data(format!("{EXCEPTIONS}: not three columns: {line}")));
            };
            let exception = Exception { kind: kind.to_owned(), reason: reason.to_owned() };
            if exceptions.insert(id.to_owned(), exception).is_some() {
                return Err(invalid_data(format!("{EXCEPTIONS}: {id} stands there twice")));
            }
        }
        Ok(Self {
            rules: catalogue::read(root)?,
            tags,
            exceptions,
            open: read_table(root, OPEN, OPEN_TITLES)?.into_iter().collect(),
            coverage: fs::read_to_string(root.join(COVERAGE))?,
            tag_errors: complaints,
        })
    }

    /// Returns all errors in tags and tables.
    #[must_use]
    pub fn errors(&self) -> Vec<String> {
        let mut found = self.tag_errors.clone();
        let known: BTreeSet<_> = self.rules.iter().map(|row| row.id.as_str()).collect();
        let is_unknown = |id: &&String| !known.contains(id.as_str());
        let mut claims: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for tag in &self.tags {
            for id in tag.ids.iter().filter(is_unknown) {
                found.push(format!("{}: {id} is in no catalogue", tag.location()));
            }
            if tag.kind == Kind::Test {
                let ids = tag.ids.iter().map(String::as_str);
                claims.entry(tag.location()).or_default().extend(ids);
            }
        }
        for (place, ids) in claims.iter().filter(|(_, ids)| ids.len() > CLAIMS_MAX) {
            found.push(format!("{place}: claims {} rules, at most {CLAIMS_MAX}", ids.len()));
        }
        for id in self.exceptions.keys().filter(is_unknown) {
            found.push(format!("{EXCEPTIONS}: {id} is in no catalogue"));
        }
        for id in self.open.iter().filter(is_unknown) {
            found.push(format!("{OPEN}: {id} is in no catalogue"));
        }
        for (id, exception) in &self.exceptions {
            let is_kind = EXCEPTION_KINDS.contains(&exception.kind.as_str());
            if !is_kind || exception.reason.split(' ').count() < 3 {
                let kinds = EXCEPTION_KINDS.join(" or ");
                found.push(format!("{EXCEPTIONS}: {id} is not {kinds}, with a reason"));
            }
        }
        for row in &self.rules {
            found.extend(self.rule_error(row).map(|what| format!("{}: {what}", row.id)));
        }
        if self.coverage != self.coverage_table() {
            found.push(format!("{COVERAGE} is stale: FERROWARP_UPDATE=1 rewrites it"));
        }
        found
    }

    fn rule_error(&self, row: &Rule) -> Option<&'static str> {
        let is_tested = self.is_tested(&row.id);
        let is_excepted = self.exceptions.contains_key(&row.id);
        let is_open = self.open.contains(&row.id);
        match (row.is_binding(), is_tested, is_excepted, is_open) {
            (false, _, false, false) | (true, true, false, false) => None,
            (true, false, true, false) | (true, false, false, true) => None,
            (false, ..) => Some("does not bind the stack: neither excepted nor open"),
            (_, true, true, _) => Some("has a test, so it needs no exception"),
            (_, true, _, true) => Some("has a test: delete it from the open rows"),
            (_, _, true, true) => Some("is excepted: delete it from the open rows"),
            (true, false, false, false) => Some("has no test, is not excepted and was not open"),
        }
    }

    fn is_tested(&self, id: &str) -> bool {
        self.tagged(id, Kind::Test).next().is_some()
    }

    /// Returns the tags of one kind that name a rule.
    pub fn tagged<'a>(&'a self, id: &'a str, kind: Kind) -> impl Iterator<Item = &'a Tag> {
        self.tags.iter().filter(move |tag| tag.kind == kind && tag.ids.iter().any(|own| own == id))
    }

    /// Returns the status of a rule.
    #[must_use]
    pub fn status(&self, id: &str) -> RuleStatus {
        if self.is_tested(id) {
            RuleStatus::Tested
        } else if self.exceptions.contains_key(id) {
            RuleStatus::Excepted
        } else {
            RuleStatus::Open
        }
    }

    /// Rewrites the coverage table, and removes rows that are no longer open.
    ///
    /// # Errors
    /// I/O errors; `InvalidData` if a rule of the table is missing from the catalogues or no longer
    /// has scope `stack`.
    pub fn update(&mut self, root: &Path) -> io::Result<()> {
        for line in self.coverage.lines().skip(1) {
            let [id, _, scope, ..] = line.split('\t').collect::<Vec<_>>()[..] else {
                return Err(invalid_data(format!("{COVERAGE}: not five columns: {line}")));
            };
            if !self.rules.iter().any(|row| row.id == id && (row.is_binding() || scope != "stack"))
            {
                let text = format!(
                    "{COVERAGE}: {id} is missing from the catalogues or no longer has scope \
                     `stack`; delete its line if this is intended"
                );
                return Err(invalid_data(text));
            }
        }
        self.coverage = self.coverage_table();
        fs::write(root.join(COVERAGE), &self.coverage)?;
        let mut open = std::mem::take(&mut self.open);
        open.retain(|id| self.status(id) == RuleStatus::Open);
        self.open = open;
        let mut text = format!("{OPEN_TITLES}\n");
        for row in self.rules.iter().filter(|row| self.open.contains(&row.id)) {
            text.push_str(&row.id);
            text.push('\n');
        }
        fs::write(root.join(OPEN), text)
    }

    fn coverage_table(&self) -> String {
        let mut text = format!("{COVERAGE_TITLES}\n");
        for row in &self.rules {
            let places = |kind| {
                let places: BTreeSet<_> = self.tagged(&row.id, kind).map(Tag::location).collect();
                places.into_iter().collect::<Vec<_>>().join(" ")
            };
            let (code, tests) = (places(Kind::Code), places(Kind::Test));
            let Rule { id, level, scope, .. } = row;
            let line = format!("{id}\t{level}\t{scope}\t{code}\t{tests}");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Counts the rules that bind the stack by document and level.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = String::new();
        let titles = ["document", "level", "rows", "tested", "excepted", "open"];
        let mut line = |cells: [&str; 6]| {
            let [document, level, rest @ ..] = cells;
            let _ = write!(text, "{document:<9} {level:<7}");
            for cell in rest {
                let _ = write!(text, "{cell:>10}");
            }
            text.push('\n');
        };
        line(titles);
        let mut total = [0; 4];
        for (document, _) in CATALOGUES {
            for (level, keywords) in LEVELS {
                let mut counts = [0; 4];
                let is_here = |row: &&Rule| {
                    row.is_binding() && row.document == document && keywords.contains(&&*row.level)
                };
                for row in self.rules.iter().filter(is_here) {
                    counts[0] += 1;
                    counts[1 + self.status(&row.id) as usize] += 1;
                }
                for (sum, count) in total.iter_mut().zip(counts) {
                    *sum += count;
                }
                let [rows, tested, excepted, open] = counts.map(|count| count.to_string());
                line([document, level, &rows, &tested, &excepted, &open]);
            }
        }
        let [rows, tested, excepted, open] = total.map(|count| count.to_string());
        line(["all", "", &rows, &tested, &excepted, &open]);
        text
    }
}

/// Reads a table without its titles.
pub(super) fn read_table(root: &Path, file: &str, titles: &str) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(root.join(file))?;
    let mut lines = text.lines();
    if lines.next() != Some(titles) {
        return Err(invalid_data(format!("{file}: the first line does not name the columns")));
    }
    Ok(lines.map(str::to_owned).collect())
}
