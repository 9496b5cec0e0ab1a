//! Each rule of the catalogues is guarded by a test, excepted with a reason, or known to be open.

use ferrowarp_tests::compliance::report::{RuleStatus, TraceReport};
use ferrowarp_tests::workspace::root;

/// True if the generated tables are to be rewritten.
pub(crate) fn updates() -> bool {
    std::env::var_os("FERROWARP_UPDATE").is_some_and(|value| value == "1")
}

#[test]
fn every_rule_is_accounted_for() {
    let mut ledger = TraceReport::read(root()).unwrap();
    if updates() {
        ledger.update(root()).unwrap();
    }
    let complaints = ledger.errors();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn summary_counts_binding_rules() {
    let ledger = TraceReport::read(root()).unwrap();
    let binding: Vec<_> = ledger.rules.iter().filter(|row| row.is_binding()).collect();
    let tested = binding.iter().filter(|row| ledger.status(&row.id) == RuleStatus::Tested);
    let all = ledger.summary().lines().last().unwrap().to_owned();
    let expected = ["all".to_owned(), binding.len().to_string(), tested.count().to_string()];
    assert_eq!(all.split_whitespace().take(3).collect::<Vec<_>>(), expected);
}
