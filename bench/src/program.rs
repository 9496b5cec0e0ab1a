//! What the benchmark programs have in common: selection of rows, files, exit status.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Checks the options of a comparison in pairs.
///
/// # Errors
/// If nothing would be measured.
pub fn check_pairs(pairs: usize, seconds: f64) -> Result<()> {
    ensure!(pairs > 0, "--pairs 0 measures nothing: 9 give an interval of 96 %");
    ensure!(seconds.is_finite() && seconds > 0.0, "--seconds {seconds}: give a positive number");
    Ok(())
}

/// Retains the items whose names begin with one of `wanted`, as `option` names them; all if it is
/// empty.
///
/// # Errors
/// If no name begins with one of them.
pub fn select<T>(
    items: &mut Vec<T>,
    option: &str,
    wanted: &[String],
    name: impl Fn(&T) -> &str,
) -> Result<()> {
    for prefix in wanted {
        let is_known = items.iter().any(|item| name(item).starts_with(prefix));
        let names = || items.iter().map(&name).collect::<Vec<_>>().join(", ");
        ensure!(is_known, "{option} {prefix}: choose from {}", names());
    }
    if !wanted.is_empty() {
        items.retain(|item| wanted.iter().any(|prefix| name(item).starts_with(prefix)));
    }
    Ok(())
}

/// Writes a file.
///
/// # Errors
/// If that fails; its path is named.
pub fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a JSON file.
///
/// # Errors
/// As [`write()`].
pub fn write_json(path: &Path, value: &Value) -> Result<()> {
    write(path, &(serde_json::to_string_pretty(value)? + "\n"))
}

/// Prints what failed, and returns the exit status.
#[must_use]
pub fn finish(failures: &[String]) -> ExitCode {
    for failure in failures {
        eprintln!("failed: {failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_selected_by_the_beginning_of_their_names() {
        let selected = |wanted: &[&str]| {
            let mut items = vec!["memif-1500", "memif-9000", "tap", "no-tap"];
            let wanted: Vec<String> = wanted.iter().map(|&it| it.to_owned()).collect();
            select(&mut items, "--rows", &wanted, |item| item).map(|()| items)
        };
        assert_eq!(selected(&[]).unwrap().len(), 4);
        assert_eq!(selected(&["tap", "memif-9"]).unwrap(), ["memif-9000", "tap"]);
        let error = selected(&["tap", "9000"]).unwrap_err().to_string();
        assert_eq!(error, "--rows 9000: choose from memif-1500, memif-9000, tap, no-tap");
    }

    #[test]
    fn comparisons_of_nothing_are_refused() {
        assert!(check_pairs(1, 0.1).is_ok());
        for (pairs, seconds) in [(0, 1.0), (1, 0.0), (1, -1.0), (1, f64::NAN), (1, f64::INFINITY)] {
            assert!(check_pairs(pairs, seconds).is_err(), "{pairs} pairs of {seconds} s");
        }
    }
}
