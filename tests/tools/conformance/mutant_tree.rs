//! A copy of the sources with mutants, and the tests built from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ferrowarp_tests::compliance::cargo::{self, Target};
use ferrowarp_tests::compliance::schemata::ACTIVE_MUTANT_ENV;
use ferrowarp_tests::process::{self, ProcessResult};
use ferrowarp_tests::workspace::{self, root};

/// Timeout of a build.
pub(crate) const BUILD_TIMEOUT: Duration = Duration::from_secs(900);
/// Memory limit of a test in KiB: a mutant may allocate without bound.
const MEMORY_MAX_KIB: u32 = 4 << 20;

/// Names of the tests to run in each target.
pub(crate) type Guards = BTreeMap<Target, BTreeSet<String>>;

/// A compiler error in a line.
#[derive(Debug)]
pub(crate) struct CompileError {
    /// Path from the root.
    pub(crate) file: String,
    /// Line number from zero.
    pub(crate) line: usize,
    /// Full line of the message.
    pub(crate) text: String,
}

/// Result of some tests of a target.
pub(crate) enum TestResult {
    /// All of them passed.
    Passed,
    /// The tests that failed; none where the program ended early, or at the timeout.
    Failed(Vec<String>),
}

impl TestResult {
    pub(crate) fn passed(&self) -> bool {
        matches!(self, Self::Passed)
    }
}

/// The test binaries of some targets, or the errors of the build.
pub(crate) type Built = Result<BTreeMap<Target, PathBuf>, Vec<CompileError>>;

/// The copy of the sources.
pub(crate) struct MutantTree {
    /// Root of the copy.
    pub(crate) tree: PathBuf,
    target_dir: PathBuf,
}

impl MutantTree {
    /// Creates or updates the copy `name` in `folder`. Only files that differ are written, so that
    /// the build stays up to date.
    pub(crate) fn new(folder: &Path, name: &str) -> io::Result<Self> {
        // A target folder per copy: cargo does not distinguish workspaces by their paths.
        let target_dir = folder.join(format!("target-{name}"));
        let copy = Self { tree: folder.join(name), target_dir };
        let mut source_paths = BTreeSet::new();
        for file in workspace::files(root(), None)? {
            let path = file.strip_prefix(root()).expect("below the root");
            let to = copy.tree.join(path);
            fs::create_dir_all(to.parent().expect("below the copy's root"))?;
            copy.write_if_changed(path, &fs::read(&file)?)?;
            source_paths.insert(to);
        }
        // Files that no longer exist in the sources.
        for path in workspace::files(&copy.tree, None)? {
            if !source_paths.contains(&path) {
                fs::remove_file(path)?;
            }
        }
        Ok(copy)
    }

    /// Writes a file of the copy, unless its content is the same.
    pub(crate) fn write_if_changed(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let to = self.tree.join(path);
        if fs::read(&to).ok().as_deref() == Some(bytes) { Ok(()) } else { fs::write(&to, bytes) }
    }

    /// Builds the tests of `targets` without optimization: most of them run only briefly.
    pub(crate) fn build(&self, targets: &BTreeSet<Target>) -> io::Result<Built> {
        let mut command = Command::new("cargo");
        command
            .current_dir(&self.tree)
            .args(["test", "--locked", "--no-run", "--message-format=short"])
            .args(cargo::cargo_args(targets))
            .env("CARGO_TARGET_DIR", &self.target_dir)
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_TEST_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_TEST_DEBUG", "0")
            .env("RUSTFLAGS", "-Awarnings");
        let ProcessResult { status, output } = process::run(&mut command, BUILD_TIMEOUT)?;
        if status.is_some_and(|status| status.success()) {
            let programs = cargo::test_binaries(&output, targets);
            let missing: Vec<_> =
                targets.iter().filter(|target| !programs.contains_key(*target)).collect();
            if missing.is_empty() {
                return Ok(Ok(programs));
            }
            return Err(io::Error::other(format!("no programs for {missing:?}:\n{output}")));
        }
        let errors: Vec<_> = output.lines().filter_map(parse_compile_error).collect();
        if errors.is_empty() {
            return Err(io::Error::other(format!("the copy cannot be built:\n{output}")));
        }
        Ok(Err(errors))
    }

    /// Runs the named tests of `program` with one mutant active (0: none).
    pub(crate) fn run(
        &self,
        target: &Target,
        program: &Path,
        names: &BTreeSet<String>,
        mutant: u32,
        timeout: Duration,
    ) -> io::Result<TestResult> {
        // DPDK reserves hundreds of GiB of address space without using it.
        let limit = if target.device { "unlimited".to_owned() } else { MEMORY_MAX_KIB.to_string() };
        let mut command = Command::new("sh");
        command
            .current_dir(self.tree.join(target.folder()))
            .args(["-c", "ulimit -v \"$LIMIT\"; exec \"$0\" \"$@\""])
            .arg(program)
            .args((!names.is_empty()).then_some("--exact"))
            .args(names)
            .env("LIMIT", limit)
            .env(ACTIVE_MUTANT_ENV, mutant.to_string());
        let result = process::run(&mut command, timeout)?;
        if result.success() && cargo::passed(&result.output) >= names.len() {
            return Ok(TestResult::Passed);
        }
        let failed = result.output.lines().filter_map(|line| {
            Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned())
        });
        Ok(TestResult::Failed(failed.collect()))
    }
}

/// Parses `stack/proto/src/x.rs:12:5: error[E0308]: mismatched types`.
fn parse_compile_error(text: &str) -> Option<CompileError> {
    let (position, message) = text.split_once(": error")?;
    if !message.starts_with([':', '[']) {
        return None;
    }
    let mut parts = position.split(':');
    let (file, line) = (parts.next()?, parts.next()?);
    let line = line.parse::<usize>().ok()?.checked_sub(1)?;
    Some(CompileError { file: file.to_owned(), line, text: text.to_owned() })
}
