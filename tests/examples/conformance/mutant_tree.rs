//! A copy of the sources in which lines are broken and mended, and the tests built of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ferrowarp_tests::compliance::cargo::{self, Target};
use ferrowarp_tests::compliance::root;
use ferrowarp_tests::compliance::schemata::ACTIVE_MUTANT_ENV;
use ferrowarp_tests::process::{self, ProcessResult};

/// How long a build may take.
pub(crate) const BUILD_TIMEOUT: Duration = Duration::from_secs(900);
/// Folders that are no sources.
const SKIPPED: [&str; 4] = [".git", "target", "corpus", "artifacts"];
/// Kibibytes of memory that a test may use: a mutant may never stop asking for more.
const MEMORY_MAX_KIB: u32 = 4 << 20;

/// Tests that may be run: those of some names in a target.
pub(crate) type Guards = BTreeMap<Target, BTreeSet<String>>;

/// What the compiler says against a line.
#[derive(Debug)]
pub(crate) struct CompileError {
    /// Path from the root.
    pub(crate) file: String,
    /// From zero.
    pub(crate) line: usize,
    /// All of it.
    pub(crate) text: String,
}

/// The programs of some targets, or why there are none.
pub(crate) type Built = Result<BTreeMap<Target, PathBuf>, Vec<CompileError>>;

/// The copy.
pub(crate) struct MutantTree {
    /// Root of the copy.
    pub(crate) tree: PathBuf,
    built: PathBuf,
}

impl MutantTree {
    /// A copy in `folder`, under `name`; only what differs is copied, so that what was built of
    /// the copy stays good.
    pub(crate) fn new(folder: &Path, name: &str) -> io::Result<Self> {
        // What cargo builds it does not tell apart by where a workspace lies.
        let built = folder.join(format!("target-{name}"));
        let copy = Self { tree: folder.join(name), built };
        let mut kept = BTreeSet::new();
        copy.copy_sources(Path::new(""), &mut kept)?;
        copy.prune(&copy.tree, &kept)?;
        Ok(copy)
    }

    fn copy_sources(&self, folder: &Path, kept: &mut BTreeSet<PathBuf>) -> io::Result<()> {
        fs::create_dir_all(self.tree.join(folder))?;
        for entry in fs::read_dir(root().join(folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let name = entry.file_name();
            if SKIPPED.iter().any(|skipped| name == *skipped) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                self.copy_sources(&path, kept)?;
            } else if entry.file_type()?.is_file() {
                self.write_if_changed(&path, &fs::read(root().join(&path))?)?;
                kept.insert(self.tree.join(&path));
            }
        }
        Ok(())
    }

    /// Removes sources that are no more.
    fn prune(&self, folder: &Path, kept: &BTreeSet<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                self.prune(&path, kept)?;
            } else if !kept.contains(&path) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Writes a file of the copy, unless that is what is there.
    pub(crate) fn write_if_changed(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let to = self.tree.join(path);
        if fs::read(&to).ok().as_deref() == Some(bytes) { Ok(()) } else { fs::write(&to, bytes) }
    }

    /// Builds the tests of `targets`, hardly optimised: most of them run for a moment only.
    pub(crate) fn build(&self, targets: &BTreeSet<Target>) -> io::Result<Built> {
        let mut command = Command::new("cargo");
        command
            .current_dir(&self.tree)
            .args(["test", "--locked", "--no-run", "--message-format=short"])
            .args(cargo::cargo_args(targets))
            .env("CARGO_TARGET_DIR", &self.built)
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
        let complaints: Vec<_> = output.lines().filter_map(parse_compile_error).collect();
        if complaints.is_empty() {
            return Err(io::Error::other(format!("the copy cannot be built:\n{output}")));
        }
        Ok(Err(complaints))
    }

    /// The tests of these names in `program`, with a mutant awake (0: none).
    pub(crate) fn run(
        &self,
        target: &Target,
        program: &Path,
        names: &BTreeSet<String>,
        mutant: u32,
        timeout: Duration,
    ) -> io::Result<bool> {
        // DPDK sets addresses aside by the hundred gibibytes, without using them.
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
        let ended = process::run(&mut command, timeout)?;
        Ok(ended.success() && cargo::passed(&ended.output) >= names.len())
    }
}

/// Reads `stack/proto/src/x.rs:12:5: error[E0308]: mismatched types`.
fn parse_compile_error(text: &str) -> Option<CompileError> {
    let (place, message) = text.split_once(": error")?;
    if !message.starts_with([':', '[']) {
        return None;
    }
    let mut parts = place.split(':');
    let (file, line) = (parts.next()?, parts.next()?);
    let line = line.parse::<usize>().ok()?.checked_sub(1)?;
    Some(CompileError { file: file.to_owned(), line, text: text.to_owned() })
}
