//! Licenses, sources and duplicates of the workspace's dependencies, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use spdx::Expression;

use crate::cargo_metadata;
use crate::tidy::text;

/// Licenses that may be linked into a program under `MIT OR Apache-2.0` without further
/// obligations.
const LICENSES: [&str; 9] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "0BSD",
    "ISC",
    "Unicode-3.0",
    "Zlib",
];

/// The only allowed source of external packages.
const SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Packages built in two versions, and why.
const DUPLICATES: [(&str, &str); 4] = [
    ("bitflags", "smoltcp requires 1"),
    ("cpufeatures", "sha2 0.10 requires 0.2; sha2 0.11 and crc-fast would double two others"),
    ("nom", "cexpr, and so bindgen, requires 7"),
    ("syn", "zerocopy-derive requires 2"),
];

/// The packages of the dependency graph for Linux on x86-64 with all features.
fn packages() -> Vec<Value> {
    let target = "x86_64-unknown-linux-gnu";
    let metadata = cargo_metadata(&["--all-features", "--filter-platform", target]);
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let used: BTreeSet<_> = nodes.iter().map(|node| node["id"].as_str().unwrap()).collect();
    let all = metadata["packages"].as_array().unwrap().iter();
    all.filter(|package| used.contains(package["id"].as_str().unwrap())).cloned().collect()
}

fn is_external(package: &Value) -> bool {
    !package["source"].is_null()
}

#[test]
fn licenses_are_permissive() {
    let mut complaints = Vec::new();
    for package in packages().iter().filter(|package| is_external(package)) {
        let license = package["license"].as_str().unwrap_or("none");
        let is_allowed =
            Expression::parse_mode(license, spdx::ParseMode::LAX).is_ok_and(|license| {
                license.evaluate(|wanted| LICENSES.contains(&wanted.to_string().as_str()))
            });
        if !is_allowed {
            complaints.push(format!("{}: {license}", package["name"]));
        }
    }
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn packages_come_from_one_registry_and_have_versions() {
    let mut complaints = Vec::new();
    for package in packages() {
        let name = &package["name"];
        if is_external(&package) && package["source"] != SOURCE {
            complaints.push(format!("{name}: from {}", package["source"]));
        }
        if !is_external(&package) {
            for wanted in package["dependencies"].as_array().unwrap() {
                if wanted["req"] == "*" && wanted["path"].is_null() {
                    complaints.push(format!("{name}: any version of {}", wanted["name"]));
                }
            }
        }
    }
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn packages_are_built_in_one_version() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let (name, version) = (package["name"].as_str(), package["version"].as_str());
        versions.entry(name.unwrap().to_owned()).or_default().insert(version.unwrap().to_owned());
    }
    assert!(versions.len() > 50, "{} packages", versions.len());
    versions.retain(|_, versions| versions.len() > 1);
    let names: Vec<_> = versions.keys().map(String::as_str).collect();
    assert_eq!(names, DUPLICATES.map(|(name, _)| name), "{versions:#?}");
}

/// The packages that those of the workspace name, each with the first that applies: a library of
/// ours needs it, a program, or only checks.
fn direct_dependencies() -> BTreeMap<String, &'static str> {
    const FOR: [&str; 3] = ["library", "programs", "checks"];
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for package in cargo_metadata(&["--no-deps"])["packages"].as_array().unwrap() {
        let of_package = match package["name"].as_str().unwrap() {
            "ferrowarp-apps" | "ferrowarp-run" => 1,
            "ferrowarp-bench" | "ferrowarp-tests" => 2,
            _ => 0,
        };
        for wanted in package["dependencies"].as_array().unwrap() {
            if wanted["path"].is_null() {
                let rank = if wanted["kind"] == "dev" { 2 } else { of_package };
                let name = wanted["name"].as_str().unwrap().to_owned();
                found.entry(name).and_modify(|least| *least = rank.min(*least)).or_insert(rank);
            }
        }
    }
    found.into_iter().map(|(name, rank)| (name, FOR[rank])).collect()
}

#[test]
fn each_dependency_has_a_reason() {
    let document = text("docs/dependencies.md");
    let rows = document.lines().skip_while(|line| *line != "| Package | For | Reason |").skip(2);
    let mut table = BTreeMap::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, name, purpose, reason, _] = cells[..] else { panic!("three cells: {row}") };
        assert!(!reason.is_empty(), "{row}");
        table.insert(name.trim_matches('`').to_owned(), purpose);
    }
    assert_eq!(table, direct_dependencies());
}
