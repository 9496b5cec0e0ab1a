//! Runs cases sequentially, and prints the outcome of each.

use std::io;
use std::path::Path;
use std::time::Instant;

use crate::rows::Rows;
use crate::verbs::c_programs;
use crate::verbs::case::Case;
use crate::verbs::testbed::Testbed;

/// Runs `cases`; each has its logs in a folder of its own below `folder`. Prints a line for each as
/// it ends.
///
/// # Errors
/// If the programs in C cannot be compiled, or printing fails.
pub fn run(cases: &[Case], folder: &Path) -> io::Result<Rows> {
    let compiled = folder.join("bin");
    c_programs::compile(&compiled)?;
    let mut testbed = Testbed::new(folder, &compiled)?;
    let mut rows = Rows::new(cases.iter().map(|case| case.name.as_str()));
    for case in cases {
        testbed.begin(folder.join(case.name.replace('/', ".")))?;
        let began = Instant::now();
        let outcome = (case.body)(&mut testbed);
        rows.add(&case.name, began, outcome)?;
    }
    Ok(rows)
}
