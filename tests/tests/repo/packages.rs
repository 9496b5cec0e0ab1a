//! The packages that can be published: what crates.io asks for, and what is packed.

use std::collections::BTreeSet;
use std::process::Command;

use ferrowarp_tests::workspace::root;
use serde_json::Value;

use crate::cargo_metadata;
use crate::tidy::{report, text};

/// The packages that users depend on or install; the others are of use in this repository alone.
const PUBLISHED: [&str; 9] = [
    "ferrowarp",
    "ferrowarp-apps",
    "ferrowarp-crc32c",
    "ferrowarp-dpdk-sys",
    "ferrowarp-link",
    "ferrowarp-lockfree",
    "ferrowarp-proto",
    "ferrowarp-run",
    "ferrowarp-settings",
];

/// Categories of crates.io in use here; it refuses others than its own.
const CATEGORIES: [&str; 7] = [
    "algorithms",
    "asynchronous",
    "command-line-utilities",
    "external-ffi-bindings",
    "hardware-support",
    "network-programming",
    "simulation",
];

fn workspace_packages() -> Vec<Value> {
    cargo_metadata(&["--no-deps"])["packages"].as_array().unwrap().clone()
}

/// Returns the fields that crates.io refuses or users lack.
fn complaints_about(package: &Value) -> Vec<String> {
    let mut complaints = Vec::new();
    for field in ["description", "license", "repository", "readme", "rust_version"] {
        if package[field].is_null() {
            complaints.push(format!("no {field}"));
        }
    }
    let list = |field: &str| package[field].as_array().unwrap().clone();
    if !(1..=5).contains(&list("keywords").len()) {
        complaints.push("one to five keywords".to_owned());
    }
    let categories = list("categories");
    if categories.is_empty() || !categories.iter().all(|it| CATEGORIES.iter().any(|c| it == c)) {
        complaints.push(format!("categories {categories:?}"));
    }
    for dependency in list("dependencies").iter().filter(|it| !it["path"].is_null()) {
        let name = dependency["name"].as_str().unwrap();
        // Cargo leaves out a dependency of tests that has no version.
        let is_left_out = dependency["kind"] == "dev" && dependency["req"] == "*";
        let is_published = PUBLISHED.contains(&name) && dependency["req"] != "*";
        if !is_left_out && !is_published {
            complaints.push(format!("depends on {name}, which is not published in a version"));
        }
    }
    complaints
}

#[test]
fn packages_have_what_a_registry_asks_for() {
    let mut published = BTreeSet::new();
    let mut complaints = Vec::new();
    for package in workspace_packages() {
        let name = package["name"].as_str().unwrap();
        if package["publish"].as_array().is_some_and(Vec::is_empty) {
            continue;
        }
        published.insert(name.to_owned());
        complaints.extend(complaints_about(&package).iter().map(|it| format!("{name}: {it}")));
    }
    report(&complaints);
    assert!(published.iter().eq(PUBLISHED), "{published:?}");
}

#[test]
fn readme_names_the_versions() {
    let readme = text("README.md");
    for package in workspace_packages() {
        let rust = package["rust_version"].as_str().unwrap();
        assert!(readme.contains(&format!("| Rust | {rust} or later |")), "Rust {rust}");
        let version = package["version"].as_str().unwrap();
        let (series, _) = version.rsplit_once('.').unwrap();
        assert!(readme.contains(&format!("on crates.io later: \"{series}\"")), "{version}");
    }
}

#[test]
fn packages_can_be_packed() {
    let folder = tempfile::tempdir().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["package", "--offline", "--allow-dirty", "--no-verify", "--target-dir"]);
    cargo.arg(folder.path()).args(PUBLISHED.map(|name| format!("-p{name}"))).current_dir(root());
    let packed = cargo.output().unwrap();
    let text = String::from_utf8_lossy(&packed.stderr);
    assert!(packed.status.success(), "{text}");
    for package in workspace_packages() {
        let name = package["name"].as_str().unwrap();
        if !PUBLISHED.contains(&name) {
            continue;
        }
        let file = format!("package/{name}-{}.crate", package["version"].as_str().unwrap());
        let listed =
            Command::new("tar").arg("-tzf").arg(folder.path().join(file)).output().unwrap();
        let list = String::from_utf8(listed.stdout).unwrap();
        for wanted in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "src/lib.rs"] {
            assert!(
                list.lines().any(|line| line.ends_with(&format!("/{wanted}"))),
                "{name}: {list}"
            );
        }
    }
}
