//! The map in CONTRIBUTING.md names files that exist.

use std::fs;

use ferrowarp_tests::workspace::root;

/// Folders from which the paths of the map begin.
const BASES: [&str; 3] = ["", "stack/proto/src/", "stack/runtime/src/"];

#[test]
fn files_of_the_map_exist() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let is_file = |word: &&str| {
        word.contains('/') && word.ends_with(".rs") && !word.contains(['*', ' ', '$'])
    };
    // Every second part is in backticks.
    let named: Vec<_> = text.split('`').skip(1).step_by(2).filter(is_file).collect();
    assert!(named.len() > 100, "{} files are named", named.len());
    let exists = |file: &&str| BASES.iter().any(|base| root().join(base).join(file).is_file());
    let missing: Vec<_> = named.into_iter().filter(|file| !exists(file)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
