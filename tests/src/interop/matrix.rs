//! All cases of the matrix.

use std::collections::BTreeSet;

use crate::interop::case::Case;
use crate::interop::{bulk, deaths, faults, ping, startup};

/// All of them, in the order in which they run.
///
/// # Panics
/// If two have the same name.
#[must_use]
pub fn all() -> Vec<Case> {
    let groups = [ping::cases(), startup::cases(), bulk::cases(), faults::cases(), deaths::cases()];
    let cases: Vec<_> = groups.into_iter().flatten().collect();
    let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len(), "every case has a name of its own");
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interop::verdict::FLAGS;

    #[test]
    fn the_small_matrix_has_something_of_each_group() {
        let group = |case: &Case| case.name.split('/').next().unwrap_or_default().to_owned();
        let all = all();
        let groups: BTreeSet<_> = all.iter().map(group).collect();
        let quick: BTreeSet<_> = all.iter().filter(|case| case.is_quick).map(group).collect();
        assert_eq!(groups, quick);
    }

    #[test]
    fn what_is_explained_exists() {
        for case in all() {
            for flag in &case.explained {
                assert!(FLAGS.contains(flag), "{}: {flag}", case.name);
            }
        }
    }
}
