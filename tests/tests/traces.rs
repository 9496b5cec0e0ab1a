//! Every packet trace in `tests/traces`. `FERROWARP_TRACE=PATTERN` runs those whose path contains
//! the pattern. How to write one: `tests/traces/README.md`.

use std::fs;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrowarp_tests::trace;

/// Traces there are at least: a folder that is not found must not pass.
const COUNT_MIN: usize = 300;

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder of traces is there") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "trace") {
            found.push(path);
        }
    }
}

fn run(path: &Path, name: &str) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    let outcome = catch_unwind(AssertUnwindSafe(|| trace::run(&text)));
    let outcome = outcome.unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    });
    outcome.map_err(|what| format!("{name}:{what}"))
}

#[test]
fn every_trace() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
    let mut paths = Vec::new();
    collect(&folder, &mut paths);
    paths.sort();
    let there = paths.len();
    if let Ok(pattern) = std::env::var("FERROWARP_TRACE") {
        paths.retain(|path| path.to_string_lossy().contains(&pattern));
    }
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let name = path.strip_prefix(&folder).expect("it lies there").display();
                    if let Err(what) = run(path, &format!("tests/traces/{name}")) {
                        failures.lock().expect("no thread panics with it").push(what);
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("no thread panicked with it");
    failures.sort();
    // Past the capture of the test harness, so that it is seen also when all is well.
    let summary = format!("{} of {there} traces run, {} failed", paths.len(), failures.len());
    writeln!(std::io::stderr(), "{summary}").expect("there is an error output");
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    assert!(there >= COUNT_MIN, "{there} traces found, {COUNT_MIN} expected at least");
    assert!(!paths.is_empty(), "no trace matches");
}
