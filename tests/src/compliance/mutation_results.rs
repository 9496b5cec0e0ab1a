//! Results of a run of all mutants, in a file that grows by each rule, so that an interrupted run
//! continues where it ended.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::peer::invalid_data;

const TITLES: &str = "id\tmutant\tresult\ttests";
/// Result of a rule without a mutant that compiles.
const NONE: &str = "none compiled";

/// Outcome of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A test of the rule failed; the sanity test passed.
    Caught,
    /// A test of the rule and the sanity test failed.
    Coarse,
    /// All tests of the rule passed.
    Survived,
}

impl Outcome {
    /// Returns its name in a file of results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::Coarse => "coarse",
            Self::Survived => "survived",
        }
    }

    /// Returns the outcome of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Caught, Self::Coarse, Self::Survived].into_iter().find(|found| found.name() == name)
    }
}

/// Result of a mutant for a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutantResult {
    /// Its outcome.
    pub outcome: Outcome,
    /// Name of the mutant.
    pub name: String,
    /// Tests of the rule that failed; none of those that did not end.
    pub failed: Vec<String>,
}

/// Results by rule, and the file with them.
#[derive(Debug)]
pub struct Results {
    by_rule: BTreeMap<String, Vec<MutantResult>>,
    path: PathBuf,
    text: String,
}

impl Results {
    /// Reads the results in `path`, which need not exist.
    ///
    /// # Errors
    /// I/O errors, and `InvalidData` for a malformed row.
    pub fn open(path: &Path) -> io::Result<Self> {
        let exists = path.exists();
        let text = if exists { fs::read_to_string(path)? } else { format!("{TITLES}\n") };
        let mut by_rule: BTreeMap<String, Vec<MutantResult>> = BTreeMap::new();
        for line in text.lines().skip(1) {
            let [id, name, result, tests] = line.split('\t').collect::<Vec<_>>()[..] else {
                return Err(invalid_data(format!("{}: not four columns: {line}", path.display())));
            };
            let rule = by_rule.entry(id.to_owned()).or_default();
            if result != NONE {
                let outcome = Outcome::parse(result)
                    .ok_or_else(|| invalid_data(format!("no result of a mutant: {line}")))?;
                let failed = tests.split_whitespace().map(str::to_owned).collect();
                rule.push(MutantResult { outcome, name: name.to_owned(), failed });
            }
        }
        Ok(Self { by_rule, path: path.to_owned(), text })
    }

    /// Returns the results of a rule, if it was run.
    #[must_use]
    pub fn of(&self, id: &str) -> Option<&[MutantResult]> {
        self.by_rule.get(id).map(Vec::as_slice)
    }

    /// Adds the results of a rule. The file is replaced as a whole: wherever the run is
    /// interrupted, it has all rows of a rule or none.
    ///
    /// # Errors
    /// I/O errors.
    pub fn add(&mut self, id: &str, results: &[MutantResult]) -> io::Result<()> {
        for MutantResult { outcome, name, failed } in results {
            let row = [id, name, outcome.name(), &failed.join(" ")].join("\t");
            self.text.push_str(&row);
            self.text.push('\n');
        }
        if results.is_empty() {
            self.text.push_str(&format!("{id}\t\t{NONE}\t\n"));
        }
        let new = self.path.with_extension("new");
        fs::write(&new, &self.text)?;
        fs::rename(new, &self.path)?;
        self.by_rule.insert(id.to_owned(), results.to_vec());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::temp_dir;

    fn result(outcome: Outcome, name: &str, failed: &[&str]) -> MutantResult {
        let failed = failed.iter().map(|&test| test.to_owned()).collect();
        MutantResult { outcome, name: name.to_owned(), failed }
    }

    #[test]
    fn an_interrupted_run_continues_with_the_rules_that_have_no_rows() {
        let dir = temp_dir().unwrap();
        let path = dir.path().join("results.tsv");
        let rules = [
            ("A-1", vec![result(Outcome::Caught, "a.rs:f: x  =>  y", &["t::one", "t::two"])]),
            ("A-2", vec![]),
            (
                "A-3",
                vec![
                    result(Outcome::Survived, "b.rs:g: x  =>  y", &[]),
                    result(Outcome::Coarse, "b.rs:g: x  =>  z", &["t::three"]),
                ],
            ),
        ];
        // Each run is interrupted while it writes the rows of the first rule that it runs.
        for run in 0..=rules.len() {
            let mut results = Results::open(&path).unwrap();
            for (index, (id, found)) in rules.iter().enumerate() {
                let known = (index < run).then_some(&found[..]);
                assert_eq!(results.of(id), known, "run {run}");
            }
            if let Some((id, found)) = rules.get(run) {
                results.add(id, found).unwrap();
                let new = fs::read(&path).unwrap();
                fs::write(path.with_extension("new"), &new[..new.len() / 2]).unwrap();
            }
        }
        let text = fs::read_to_string(&path).unwrap();
        let ids: Vec<_> = text.lines().skip(1).map(|line| &line[..3]).collect();
        assert_eq!(ids, ["A-1", "A-2", "A-3", "A-3"]);
    }
}
