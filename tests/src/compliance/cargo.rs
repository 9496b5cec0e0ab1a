//! Running the tests that guard a rule: which target of which package they are in, and how they
//! end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use super::scan::{Kind, Tag};

/// Packages by their folder; the longer name first where one lies in the other.
const PACKAGES: [(&str, &str); 7] = [
    ("stack/proto/", "ferrowarp-proto"),
    ("stack/runtime/", "ferrowarp"),
    ("bindings/", "dpdk-sys"),
    ("apps/link/", "ferrowarp-link"),
    ("apps/", "ferrowarp-apps"),
    ("bench/", "ferrowarp-bench"),
    ("tests/", "ferrowarp-tests"),
];
/// Those that need no libdpdk.
const WITHOUT_DPDK: [&str; 3] = ["ferrowarp-proto", "ferrowarp-link", "ferrowarp-tests"];

/// A program made of tests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Package.
    pub package: &'static str,
    /// `--lib`, or the name of an integration test.
    pub name: String,
    /// It needs libdpdk and a machine prepared for devices.
    pub device: bool,
}

impl Target {
    /// The target that holds the tests of a source; `None` if it is no part of any.
    #[must_use]
    pub fn of(root: &Path, file: &str) -> Option<Self> {
        let (folder, package) =
            PACKAGES.into_iter().find(|(folder, _)| file.starts_with(folder))?;
        let inside = &file[folder.len()..];
        if inside.starts_with("src/") {
            let device = !WITHOUT_DPDK.contains(&package);
            return Some(Self { package, name: "--lib".to_owned(), device });
        }
        let name = inside.strip_prefix("tests/")?.split(['/', '.']).next()?.to_owned();
        let text = fs::read_to_string(root.join(folder).join(format!("tests/{name}.rs"))).ok()?;
        let needs_device = text.contains("#![cfg(feature = \"device\")]");
        Some(Self { package, name, device: needs_device || !WITHOUT_DPDK.contains(&package) })
    }

    /// `cargo test` for this target in the workspace at `root`.
    #[must_use]
    pub fn command(&self, root: &Path) -> Command {
        let mut command = Command::new("cargo");
        command.current_dir(root).args(["test", "--locked", "-q", "-p", self.package]);
        if self.device && self.package == "ferrowarp-tests" {
            command.args(["--features", "device"]);
        }
        if self.name == "--lib" {
            command.arg("--lib");
        } else {
            command.args(["--test", &self.name]);
        }
        command
    }
}

/// The tests among `tags`, by target.
#[must_use]
pub fn by_target<'a>(
    root: &Path,
    tags: impl Iterator<Item = &'a Tag>,
) -> BTreeMap<Target, BTreeSet<&'a str>> {
    let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for tag in tags.filter(|tag| tag.kind == Kind::Test) {
        if let Some(target) = Target::of(root, &tag.file) {
            let name = tag.item.rsplit(':').next().unwrap_or(&tag.item);
            found.entry(target).or_default().insert(name);
        }
    }
    found
}

/// How many tests passed, as a harness tells at its end.
#[must_use]
pub fn passed(output: &str) -> usize {
    output
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. ")?.split_once(" passed;"))
        .filter_map(|(count, _)| count.parse::<usize>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::super::root;
    use super::*;

    #[test]
    fn a_source_belongs_to_a_target() {
        let name = |file| Target::of(root(), file).map(|target| (target.package, target.name));
        let lib = || "--lib".to_owned();
        assert_eq!(name("stack/proto/src/mpa/fpdu.rs"), Some(("ferrowarp-proto", lib())));
        assert_eq!(name("apps/link/src/lib.rs"), Some(("ferrowarp-link", lib())));
        let tidy = Some(("ferrowarp-tests", "tidy".to_owned()));
        assert_eq!(name("tests/tests/tidy.rs"), tidy);
        assert_eq!(name("scripts/x.rs"), None);
        assert!(Target::of(root(), "tests/tests/tap.rs").is_some_and(|target| target.device));
    }

    #[test]
    fn passes_are_counted_over_targets() {
        let output = "running\ntest result: ok. 3 passed; 0 failed\n\ntest result: ok. 4 passed; 0";
        assert_eq!(passed(output), 7);
        assert_eq!(passed("test result: FAILED. 3 passed; 1 failed"), 0);
    }
}
