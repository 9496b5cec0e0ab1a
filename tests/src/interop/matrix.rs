//! All cases of the matrix.

use std::collections::BTreeSet;

use crate::interop::case::Case;
use crate::interop::{bulk, cards, faults, peer_failure, ping, startup};

/// Returns all cases in the order in which they run.
///
/// # Panics
/// If two have the same name.
#[must_use]
pub fn all() -> Vec<Case> {
    let groups = [
        ping::cases(),
        startup::cases(),
        bulk::cases(),
        faults::cases(),
        peer_failure::cases(),
        cards::cases(),
    ];
    let cases: Vec<_> = groups.into_iter().flatten().collect();
    let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len(), "names of cases are unique");
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interop::tcp_analysis::FLAGS;

    #[test]
    fn quick_matrix_covers_each_group() {
        let group = |case: &Case| case.name.split('/').next().unwrap_or_default().to_owned();
        let all = all();
        let groups: BTreeSet<_> = all.iter().map(group).collect();
        let quick: BTreeSet<_> = all.iter().filter(|case| case.is_quick).map(group).collect();
        assert_eq!(groups, quick);
    }

    #[test]
    fn expected_analysis_flags_exist() {
        for case in all() {
            for flag in &case.expected_analysis {
                assert!(FLAGS.contains(flag), "{}: {flag}", case.name);
            }
        }
    }
}
