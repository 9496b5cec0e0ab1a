//! Licenses, sources and duplicates of the workspace's dependencies, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use spdx::Expression;

use crate::cargo_metadata;

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

/// Packages built in several versions, as their dependents require different ones.
const DUPLICATES: [&str; 10] = [
    "bitflags",
    "cpufeatures",
    "getrandom",
    "nom",
    "rand",
    "rand_core",
    "shlex",
    "syn",
    "thiserror",
    "thiserror-impl",
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
    versions.retain(|name, versions| versions.len() > 1 && !DUPLICATES.contains(&name.as_str()));
    assert!(versions.is_empty(), "{versions:#?}");
}
