//! The test programs of the workspace.

use std::collections::BTreeSet;

use crate::cargo_metadata;

/// Each integration test links the whole stack and runs after the one before.
const INTEGRATION_TESTS_MAX: usize = 9;

#[test]
fn integration_tests_are_few() {
    let metadata = cargo_metadata(&["--no-deps"]);
    let packages = metadata["packages"].as_array().unwrap();
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().unwrap());
    let tests = targets.filter(|target| target["kind"][0] == "test");
    let names: BTreeSet<_> = tests.map(|target| target["src_path"].as_str().unwrap()).collect();
    assert!(!names.is_empty() && names.len() <= INTEGRATION_TESTS_MAX, "{names:#?}");
}
