//! Runs the tests that guard a rule: their package and target, and the results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::scan::{Kind, Tag};

/// Packages by folder; of nested folders the inner one comes first.
const PACKAGES: [(&str, &str); 9] = [
    ("stack/crc32c/", "ferrowarp-crc32c"),
    ("stack/lockfree/", "ferrowarp-lockfree"),
    ("stack/proto/", "ferrowarp-proto"),
    ("stack/runtime/", "ferrowarp"),
    ("bindings/", "ferrowarp-dpdk-sys"),
    ("apps/link/", "ferrowarp-link"),
    ("apps/", "ferrowarp-apps"),
    ("bench/", "ferrowarp-bench"),
    ("tests/", "ferrowarp-tests"),
];
/// Packages that do not need libdpdk.
const WITHOUT_DPDK: [&str; 5] = [
    "ferrowarp-crc32c",
    "ferrowarp-lockfree",
    "ferrowarp-proto",
    "ferrowarp-link",
    "ferrowarp-tests",
];

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Package.
    pub package: &'static str,
    /// `--lib`, or the name of an integration test.
    pub name: String,
    /// True if it needs libdpdk and a machine with devices set up.
    pub device: bool,
}

impl Target {
    /// Returns the target with the tests of a source; `None` if the source is not part of a target.
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
        let (file, main) = (format!("tests/{name}.rs"), format!("tests/{name}/main.rs"));
        if !root.join(folder).join(file).exists() && !root.join(folder).join(main).exists() {
            return None;
        }
        let manifest = fs::read_to_string(root.join(folder).join("Cargo.toml")).ok()?;
        let needs_device =
            manifest.contains(&format!("name = \"{name}\"\nrequired-features = [\"device\"]"));
        Some(Self { package, name, device: needs_device || !WITHOUT_DPDK.contains(&package) })
    }

    /// The folder of its package.
    #[must_use]
    pub fn folder(&self) -> &'static str {
        let found = PACKAGES.into_iter().find(|(_, package)| *package == self.package);
        found.map_or("", |(folder, _)| folder)
    }

    /// Returns the `cargo test` command for this target in the workspace at `root`.
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

/// Returns the folder of a source's package, and the root source of that package's library.
#[must_use]
pub fn library(file: &str) -> Option<(&'static str, String)> {
    let (folder, _) = PACKAGES.into_iter().find(|(folder, _)| file.starts_with(folder))?;
    Some((folder, format!("{folder}src/lib.rs")))
}

/// Returns the arguments of cargo that select `targets`.
#[must_use]
pub fn cargo_args(targets: &BTreeSet<Target>) -> Vec<&str> {
    let packages: BTreeSet<_> = targets.iter().map(|target| target.package).collect();
    let mut words: Vec<_> = packages.into_iter().flat_map(|package| ["-p", package]).collect();
    if targets.iter().any(|target| target.name == "--lib") {
        words.push("--lib");
    }
    for target in targets.iter().filter(|target| target.name != "--lib") {
        words.extend(["--test", target.name.as_str()]);
    }
    if targets.iter().any(|target| target.device && target.package == "ferrowarp-tests") {
        words.extend(["--features", "ferrowarp-tests/device"]);
    }
    words
}

/// Parses the paths of the test programs of `targets` from the output of cargo.
#[must_use]
pub fn test_binaries(output: &str, targets: &BTreeSet<Target>) -> BTreeMap<Target, PathBuf> {
    let mut found = BTreeMap::new();
    for line in output.lines() {
        let Some(rest) = line.trim_start().strip_prefix("Executable ") else { continue };
        let Some((_, path)) = rest.rsplit_once(" (") else { continue };
        let path = PathBuf::from(path.trim_end_matches(')'));
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let Some((stem, _)) = file.as_deref().and_then(|file| file.rsplit_once('-')) else {
            continue;
        };
        let is_library = rest.starts_with("unittests src/lib.rs");
        let target = targets.iter().find(|target| {
            if target.name == "--lib" {
                is_library && stem == target.package.replace('-', "_")
            } else {
                !is_library && stem == target.name
            }
        });
        if let Some(target) = target {
            found.insert(target.clone(), path);
        }
    }
    found
}

/// Groups the tests in `tags` by target.
#[must_use]
pub fn by_target<'a>(
    root: &Path,
    tags: impl Iterator<Item = &'a Tag>,
) -> BTreeMap<Target, BTreeSet<String>> {
    let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for tag in tags.filter(|tag| tag.kind == Kind::Test) {
        if let Some(target) = Target::of(root, &tag.file) {
            found.entry(target).or_default().insert(test_path(tag));
        }
    }
    found
}

/// Path of a tagged test in the harness of its target: the modules of its file, and its item.
fn test_path(tag: &Tag) -> String {
    let inside = PACKAGES.into_iter().find_map(|(folder, _)| tag.file.strip_prefix(folder));
    let inside = inside.unwrap_or(&tag.file).trim_end_matches(".rs");
    let modules = match inside.strip_prefix("src/") {
        Some(modules) => modules,
        // After the name of the target.
        None => inside.splitn(3, '/').nth(2).unwrap_or(""),
    };
    let modules = modules.split('/').filter(|name| !["", "lib", "main", "mod"].contains(name));
    modules.chain([tag.item.as_str()]).collect::<Vec<_>>().join("::")
}

/// Sums the tests passed, as reported by the harnesses.
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
    use super::*;
    use crate::workspace::root;

    #[test]
    fn source_maps_to_its_target() {
        let name = |file| Target::of(root(), file).map(|target| (target.package, target.name));
        let lib = || "--lib".to_owned();
        assert_eq!(name("stack/proto/src/mpa/fpdu.rs"), Some(("ferrowarp-proto", lib())));
        assert_eq!(name("apps/link/src/lib.rs"), Some(("ferrowarp-link", lib())));
        let repo = Some(("ferrowarp-tests", "repo".to_owned()));
        assert_eq!(name("tests/tests/repo/tidy.rs"), repo);
        let api = Some(("ferrowarp", "api".to_owned()));
        assert_eq!(name("stack/runtime/tests/api/memory.rs"), api);
        assert_eq!(name("scripts/x.rs"), None);
        assert!(
            Target::of(root(), "tests/tests/device/tap.rs").is_some_and(|target| target.device)
        );
    }

    #[test]
    fn test_binaries_are_parsed_from_cargo_output() {
        let target = |package, name: &str| Target { package, name: name.to_owned(), device: false };
        let targets = BTreeSet::from([
            target("ferrowarp-link", "--lib"),
            target("ferrowarp-proto", "--lib"),
            target("ferrowarp-tests", "golden"),
        ]);
        let words = "-p ferrowarp-link -p ferrowarp-proto -p ferrowarp-tests --lib --test golden";
        assert_eq!(cargo_args(&targets).join(" "), words);
        let output = [
            "   Compiling x",
            "  Executable unittests src/lib.rs (/t/deps/ferrowarp_proto-1a)",
            "  Executable unittests src/lib.rs (/t/deps/ferrowarp_tests-2b)",
            "  Executable tests/golden.rs (/t/deps/golden-3c)",
        ]
        .join("\n");
        let found = test_binaries(&output, &targets);
        let paths: Vec<_> = found.values().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/t/deps/ferrowarp_proto-1a", "/t/deps/golden-3c"]);
        let lib = library("stack/proto/src/mpa/fpdu.rs").unwrap();
        assert_eq!(lib, ("stack/proto/", "stack/proto/src/lib.rs".to_owned()));
    }

    #[test]
    fn passed_tests_are_summed_over_targets() {
        let output = "running\ntest result: ok. 3 passed; 0 failed\n\ntest result: ok. 4 passed; 0";
        assert_eq!(passed(output), 7);
        assert_eq!(passed("test result: FAILED. 3 passed; 1 failed"), 0);
    }
}
