//! Each rule of the catalogues is guarded by a test, excepted with a reason, or known to be open.

use std::sync::LazyLock;

use ferrowarp_tests::compliance::report::{RuleStatus, TraceReport};
use ferrowarp_tests::compliance::survivors::Survivors;
use ferrowarp_tests::workspace::root;

/// True if the generated tables are to be rewritten.
pub(crate) fn updates() -> bool {
    std::env::var_os("FERROWARP_UPDATE").is_some_and(|value| value == "1")
}

/// The report, after the tables have been rewritten if asked for: the tests run side by side.
static REPORT: LazyLock<TraceReport> = LazyLock::new(|| {
    let mut report = TraceReport::read(root()).unwrap();
    if updates() {
        report.update(root()).unwrap();
    }
    report
});

#[test]
fn every_rule_is_accounted_for() {
    let complaints = REPORT.errors();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn survivors_are_mutants_of_their_rule() {
    let mut survivors = Survivors::read(root()).unwrap();
    if updates() {
        survivors.update(root(), &REPORT).unwrap();
    }
    let complaints = survivors.errors(root(), &REPORT).unwrap();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn summary_counts_binding_rules() {
    let binding: Vec<_> = REPORT.rules.iter().filter(|row| row.is_binding()).collect();
    let tested = binding.iter().filter(|row| REPORT.status(&row.id) == RuleStatus::Tested);
    let all = REPORT.summary().lines().last().unwrap().to_owned();
    let expected = ["all".to_owned(), binding.len().to_string(), tested.count().to_string()];
    assert_eq!(all.split_whitespace().take(3).collect::<Vec<_>>(), expected);
}
