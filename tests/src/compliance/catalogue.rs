//! The rules of the specifications, one row for each.

use std::fs;
use std::io;
use std::path::Path;

use crate::peer::invalid_data;

/// The catalogues, by document.
pub const CATALOGUES: [(&str, &str); 3] =
    [("MPA", "mpa.tsv"), ("DDP", "ddp.tsv"), ("RDMAP", "rdmap.tsv")];

/// Column titles.
const TITLES: &str = "id\tdoc\tsection\tlevel\tside\tstatement\tcheck\tscope";

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// ID: `MPA-001` and so on.
    pub id: String,
    /// The catalogue: `MPA`, `DDP` or `RDMAP`.
    pub document: &'static str,
    /// The keyword of the source (`MUST`, `SHOULD NOT`, ...), or `FACT` where it has none.
    pub level: String,
    /// `stack`, `ulp` or `info`.
    pub scope: String,
}

impl Rule {
    /// True if the stack has to obey the rule.
    #[must_use]
    pub fn is_binding(&self) -> bool {
        self.scope == "stack"
    }
}

/// Reads the three catalogues under `root`, in the order of [`CATALOGUES`].
///
/// # Errors
/// I/O errors; `InvalidData` if a row does not have eight columns, an ID is out of sequence in its
/// catalogue, or a scope is unknown.
pub fn read(root: &Path) -> io::Result<Vec<Rule>> {
    let mut rows = Vec::new();
    for (document, file) in CATALOGUES {
        let text = fs::read_to_string(root.join("tests/compliance/catalogue").join(file))?;
        let mut lines = text.lines();
        if lines.next() != Some(TITLES) {
            return Err(invalid_data(format!("{file}: the first line does not name the columns")));
        }
        for (index, line) in lines.enumerate() {
            let columns: Vec<_> = line.split('\t').collect();
            let expected = format!("{document}-{:03}", index + 1);
            let [id, _, _, level, _, _, _, scope] = columns[..] else {
                return Err(invalid_data(format!("{file}: {expected} has not eight columns")));
            };
            if id != expected || !["stack", "ulp", "info"].contains(&scope) {
                return Err(invalid_data(format!(
                    "{file}: {id} of scope {scope} is not {expected}"
                )));
            }
            let (level, scope) = (level.to_owned(), scope.to_owned());
            rows.push(Rule { id: id.to_owned(), document, level, scope });
        }
    }
    Ok(rows)
}
