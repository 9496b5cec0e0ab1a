//! Every packet trace in `tests/traces` as a separate test: `cargo test --test traces rfc5961` runs
//! the ones of a folder, `cargo test --test traces -- --list` lists all. How to write one:
//! `tests/traces/README.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ferrowarp_tests::{trace, workspace};
use libtest_mimic::{Arguments, Failed, Trial};

/// Minimum number of traces: a missing folder must not pass.
const COUNT_MIN: usize = 300;

/// The trace at `path`, named after its folders below `root`: `rfc5961::reset_at_the_edge`.
fn trial(root: &Path, path: PathBuf) -> Trial {
    let place = path.strip_prefix(root).expect("it lies there").with_extension("");
    let name = place.to_string_lossy().replace('/', "::").replace('-', "_");
    Trial::test(name, move || {
        let text = fs::read_to_string(&path)?;
        let place = place.display();
        trace::run(&text).map_err(|what| Failed::from(format!("tests/traces/{place}.trace:{what}")))
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
    let paths = workspace::files(&root, Some("trace")).expect("the folder of traces is there");
    assert!(paths.len() >= COUNT_MIN, "{} traces, at least {COUNT_MIN} expected", paths.len());
    let trials = paths.into_iter().map(|path| trial(&root, path)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
