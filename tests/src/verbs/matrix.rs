//! All cases of the matrix.

use std::collections::BTreeSet;

use crate::verbs::case::Case;
use crate::verbs::{c_programs, cm_programs, guest, peers, perftest, rping, surroundings};

/// Returns all cases in the order in which they run.
///
/// # Panics
/// If two have the same name.
#[must_use]
pub fn all() -> Vec<Case> {
    let groups = [
        cm_programs::cases(),
        rping::cases(),
        peers::cases(),
        surroundings::cases(),
        c_programs::cases(),
        perftest::cases(),
        guest::cases(),
    ];
    let cases: Vec<_> = groups.into_iter().flatten().collect();
    let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len(), "names of cases are unique");
    cases
}
