//! Mutants by name, and the list of those that survived the tests of their rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use super::mutate::{self, Mutant};
use super::report::{self, TraceReport};
use super::scan::{Kind, Tag};
use crate::peer::invalid_data;

const SURVIVORS: &str = "tests/compliance/survivors.tsv";
const TITLES: &str = "id\tmutant\tkind\treason";
/// Kinds of survivors. `equivalent`: no test of the rule can notice it. `caught`: the reason names
/// the test that notices it since.
const KINDS: [&str; 2] = ["equivalent", "caught"];

/// A mutant with a name that does not depend on the lines around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedMutant {
    /// File, item, and the change, as in the list of survivors.
    pub name: String,
    /// Path of the source, from the root.
    pub file: String,
    /// The mutant.
    pub mutant: Mutant,
}

/// Returns the mutants of a tagged line, in order of lines.
///
/// # Errors
/// I/O errors.
pub fn named_mutants(root: &Path, tag: &Tag) -> io::Result<Vec<NamedMutant>> {
    let text = fs::read_to_string(root.join(&tag.file))?;
    let named = |mutant: Mutant| NamedMutant {
        name: format!("{}: {}", tag.location(), mutant.description.replace('\t', " ")),
        file: tag.file.clone(),
        mutant,
    };
    Ok(mutate::mutants(&text, tag.line).into_iter().map(named).collect())
}

/// A mutant that survived the tests of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Survivor {
    id: String,
    name: String,
    kind: String,
    reason: String,
}

/// The list of survivors.
#[derive(Debug)]
pub struct Survivors(Vec<Survivor>);

impl Survivors {
    /// Reads the list under `root`.
    ///
    /// # Errors
    /// I/O errors, and `InvalidData` for a malformed table.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut rows = Vec::new();
        for line in report::read_table(root, SURVIVORS, TITLES)? {
            let [id, name, kind, reason] = line.split('\t').collect::<Vec<_>>()[..] else {
                return Err(invalid_data(format!("{SURVIVORS}: not four columns: {line}")));
            };
            let [id, name, kind, reason] = [id, name, kind, reason].map(str::to_owned);
            rows.push(Survivor { id, name, kind, reason });
        }
        Ok(Self(rows))
    }

    /// True for a mutant that the tests of the rule cannot notice.
    #[must_use]
    pub fn is_equivalent(&self, id: &str, name: &str) -> bool {
        self.0.iter().any(|row| row.kind == "equivalent" && row.id == id && row.name == name)
    }

    /// Returns all errors in the list.
    ///
    /// # Errors
    /// I/O errors.
    pub fn errors(&self, root: &Path, report: &TraceReport) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        let stale = self.stale(root, report)?;
        let mut seen = BTreeSet::new();
        for (row, is_stale) in self.0.iter().zip(stale) {
            let Survivor { id, name, kind, reason } = row;
            let mut complain = |what: &str| found.push(format!("{SURVIVORS}: {id} {name}: {what}"));
            if is_stale {
                complain("no longer a mutant of the rule; FERROWARP_UPDATE=1 removes the row");
            }
            if !seen.insert((id, name)) {
                complain("stands there twice");
            }
            let is_test = |tag: &Tag| reason.contains(tag.item.as_str());
            match kind.as_str() {
                "caught" if !report.tagged(id, Kind::Test).any(is_test) => {
                    complain("the reason names no test of the rule");
                }
                _ if !KINDS.contains(&kind.as_str()) => {
                    complain(&format!("neither {}", KINDS.join(" nor ")));
                }
                _ if reason.split(' ').count() < 3 => complain("without a reason"),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Removes rows that are no mutants of their rule anymore.
    ///
    /// # Errors
    /// I/O errors.
    pub fn update(&mut self, root: &Path, report: &TraceReport) -> io::Result<()> {
        let mut stale = self.stale(root, report)?.into_iter();
        self.0.retain(|_| !stale.next().unwrap_or(false));
        let mut text = format!("{TITLES}\n");
        for Survivor { id, name, kind, reason } in &self.0 {
            text.push_str(&[id.as_str(), name, kind, reason].join("\t"));
            text.push('\n');
        }
        fs::write(root.join(SURVIVORS), text)
    }

    /// For each row, true if it is no mutant of its rule.
    fn stale(&self, root: &Path, report: &TraceReport) -> io::Result<Vec<bool>> {
        let mut names: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for Survivor { id, .. } in &self.0 {
            if !names.contains_key(id.as_str()) {
                let mut of_rule = BTreeSet::new();
                for tag in report.tagged(id, Kind::Code) {
                    of_rule.extend(named_mutants(root, tag)?.into_iter().map(|found| found.name));
                }
                names.insert(id, of_rule);
            }
        }
        Ok(self.0.iter().map(|row| !names[row.id.as_str()].contains(&row.name)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    #[test]
    fn errors_in_rows_are_reported() {
        let report = TraceReport::read(root()).unwrap();
        let with_mutant = |id: &str| {
            let test = report.tagged(id, Kind::Test).next()?.item.clone();
            let tag = report.tagged(id, Kind::Code).next()?;
            let name = named_mutants(root(), tag).unwrap().pop()?.name;
            Some((id.to_owned(), name, test))
        };
        let (id, name, test) = report.rules.iter().find_map(|rule| with_mutant(&rule.id)).unwrap();
        let errors = |name: &str, kind: &str, reason: &str| {
            let [id, name, kind, reason] = [&id, name, kind, reason].map(str::to_owned);
            let list = Survivors(vec![Survivor { id, name, kind, reason }]);
            list.errors(root(), &report).unwrap().len()
        };
        let reason = "the later check refuses it";
        assert_eq!(errors(&name, "equivalent", reason), 0);
        assert_eq!(errors(&name, "caught", &format!("noticed by {test}")), 0);
        assert_eq!(errors(&name, "caught", reason), 1);
        assert_eq!(errors(&name, "equivalent", "why"), 1);
        assert_eq!(errors(&name, "unknown", reason), 1);
        assert_eq!(errors("another.rs:f: a  =>  b", "equivalent", reason), 1);
    }
}
