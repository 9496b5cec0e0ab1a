//! Outcomes of cases, which a matrix runs one after the other and prints as they end.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

/// Outcome of a case.
#[derive(Debug)]
pub struct Row {
    /// Name of the case.
    pub name: String,
    /// Summary, or the reason of the failure.
    pub outcome: Result<String, String>,
    /// Duration.
    pub elapsed: Duration,
}

/// Rows of a matrix.
#[derive(Debug)]
pub struct Rows {
    rows: Vec<Row>,
    count: usize,
    width: usize,
}

impl Rows {
    /// Creates an empty list for the cases with these names.
    pub fn new<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let width = names.clone().map(str::len).max().unwrap_or_default();
        Self { rows: Vec::new(), count: names.count(), width }
    }

    /// Adds the outcome of a case that began at `began`, and prints its line.
    ///
    /// # Errors
    /// If printing fails.
    pub fn add(
        &mut self,
        name: &str,
        began: Instant,
        outcome: io::Result<String>,
    ) -> io::Result<()> {
        let row = Row {
            name: name.to_owned(),
            outcome: outcome.map_err(|error| error.to_string()),
            elapsed: began.elapsed(),
        };
        let (word, detail) = match &row.outcome {
            Ok(detail) => ("ok", detail),
            Err(reason) => ("FAILED", reason),
        };
        let (number, count, width) = (self.rows.len() + 1, self.count, self.width);
        let seconds = row.elapsed.as_secs_f32();
        println!("{number:3}/{count} {word:6} {name:width$} {seconds:5.1} s  {detail}");
        self.rows.push(row);
        io::stdout().flush()
    }

    /// Prints how many passed, and the names of those that failed. Returns true if there are none.
    #[must_use]
    pub fn summarize(&self) -> bool {
        let failed: Vec<_> = self.rows.iter().filter(|row| row.outcome.is_err()).collect();
        let seconds: f32 = self.rows.iter().map(|row| row.elapsed.as_secs_f32()).sum();
        let passed = self.rows.len() - failed.len();
        println!("{passed} passed, {} failed, {seconds:.0} s", failed.len());
        for row in &failed {
            println!("failed: {}", row.name);
        }
        failed.is_empty()
    }
}
