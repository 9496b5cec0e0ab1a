//! The test programs of the workspace: few integration tests, none with fewer tests than before.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ferrowarp_tests::workspace::root;

use crate::coverage::updates;
use crate::{cargo_metadata, tidy};

/// Each integration test links the whole stack and runs after the one before.
const INTEGRATION_TESTS_MAX: usize = 8;

/// Minimum number of tests of each package's sources and of each integration test. With
/// `FERROWARP_UPDATE=1` numbers that have grown are written to it.
const COUNTS: &str = "tests/test_counts.tsv";

/// Files and folders with the tests of each package's sources (`src`) and of each integration test,
/// by package and name.
fn test_targets() -> BTreeMap<(String, String), Vec<String>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for package in cargo_metadata(&["--no-deps"])["packages"].as_array().unwrap() {
        for target in package["targets"].as_array().unwrap() {
            let source = Path::new(target["src_path"].as_str().unwrap());
            let (name, path) = match target["kind"][0].as_str().unwrap() {
                "lib" => ("src", source.parent().unwrap()),
                "test" if source.ends_with("main.rs") => {
                    (target["name"].as_str().unwrap(), source.parent().unwrap())
                }
                "test" => (target["name"].as_str().unwrap(), source),
                _ => continue,
            };
            let key = (package["name"].as_str().unwrap().to_owned(), name.to_owned());
            let path = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            found.entry(key).or_default().push(path);
        }
    }
    found
}

#[test]
fn integration_tests_are_few() {
    let all = test_targets();
    let names: Vec<_> = all.keys().filter(|(_, name)| name != "src").collect();
    assert!(names.len() <= INTEGRATION_TESTS_MAX, "{} integration tests: {names:#?}", names.len());
}

/// Tests in the Rust files at or below `paths`. A macro that defines tests counts as one.
fn count_tests(paths: &[String]) -> usize {
    let is_inside = |file: &String| paths.iter().any(|path| Path::new(file).starts_with(path));
    let files = tidy::rust_files().into_iter().filter(is_inside);
    files.map(|file| tidy::text(&file).lines().filter(|l| l.trim() == "#[test]").count()).sum()
}

#[test]
fn no_target_loses_tests() {
    let table = tidy::text(COUNTS);
    let comments = table.lines().filter(|line| line.starts_with('#'));
    let mut minimums: BTreeMap<_, usize> = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let fields: Vec<_> = line.split('\t').collect();
            let [package, name, count] = fields[..] else { panic!("three fields: {line}") };
            ((package.to_owned(), name.to_owned()), count.parse().unwrap())
        })
        .collect();
    let counts: BTreeMap<_, _> =
        test_targets().into_iter().map(|(key, paths)| (key, count_tests(&paths))).collect();
    if updates() {
        for (key, count) in &counts {
            let minimum = minimums.entry(key.clone()).or_default();
            *minimum = (*minimum).max(*count);
        }
        let rows = minimums.iter().map(|((package, name), n)| format!("{package}\t{name}\t{n}"));
        let lines: Vec<_> = comments.map(str::to_owned).chain(rows).collect();
        fs::write(root().join(COUNTS), lines.join("\n") + "\n").unwrap();
    }
    let mut complaints = Vec::new();
    for (key @ (package, name), minimum) in &minimums {
        match counts.get(key) {
            None => complaints.push(format!("{package} {name}: listed in {COUNTS}, but absent")),
            Some(count) if count < minimum => {
                complaints.push(format!("{package} {name}: {count} tests, at least {minimum}"));
            }
            Some(_) => {}
        }
    }
    for (package, name) in counts.keys().filter(|key| !minimums.contains_key(*key)) {
        complaints.push(format!("{package} {name}: not listed in {COUNTS}"));
    }
    tidy::report(&complaints);
}
