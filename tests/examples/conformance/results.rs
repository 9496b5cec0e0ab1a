//! Results of a run of all mutants, in a file that grows by each rule, so that an interrupted run
//! continues where it ended.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use crate::mutation_run::{MutantResult, Outcome};

const TITLES: &str = "id\tmutant\tresult\ttests";
/// Result of a rule without a mutant that compiles.
const NONE: &str = "none compiled";

/// Results by rule, and the file with them.
pub(crate) struct Results {
    by_rule: BTreeMap<String, Vec<MutantResult>>,
    file: File,
}

impl Results {
    /// Reads the results in `path`, which is created if absent.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
        let mut by_rule: BTreeMap<String, Vec<MutantResult>> = BTreeMap::new();
        for line in text.lines().skip(1) {
            let [id, name, result, tests] = line.split('\t').collect::<Vec<_>>()[..] else {
                let path = path.display();
                return Err(io::Error::other(format!("{path}: not four columns: {line}")));
            };
            let rule = by_rule.entry(id.to_owned()).or_default();
            if result != NONE {
                let outcome = Outcome::parse(result)
                    .ok_or_else(|| io::Error::other(format!("no result of a mutant: {line}")))?;
                let failed = tests.split_whitespace().map(str::to_owned).collect();
                rule.push(MutantResult { outcome, name: name.to_owned(), failed });
            }
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        if text.is_empty() {
            writeln!(file, "{TITLES}")?;
        }
        Ok(Self { by_rule, file })
    }

    /// Returns the results of a rule, if it was run.
    pub(crate) fn of(&self, id: &str) -> Option<&[MutantResult]> {
        self.by_rule.get(id).map(Vec::as_slice)
    }

    /// Adds the results of a rule, all of them with one write.
    pub(crate) fn add(&mut self, id: &str, results: &[MutantResult]) -> io::Result<()> {
        let row = |result: &MutantResult| {
            let MutantResult { outcome, name, failed } = result;
            format!("{id}\t{name}\t{}\t{}\n", outcome.name(), failed.join(" "))
        };
        let mut rows: String = results.iter().map(row).collect();
        if rows.is_empty() {
            rows = format!("{id}\t\t{NONE}\t\n");
        }
        self.file.write_all(rows.as_bytes())?;
        self.by_rule.insert(id.to_owned(), results.to_vec());
        Ok(())
    }
}
