//! Runs the interop matrix, the stack against Linux's siw in a guest; see `scripts/interop`.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use ferrowarp_tests::interop::guest::GuestKind;
use ferrowarp_tests::interop::{matrix, run};
use ferrowarp_tests::{capture, host_program_build, netns, process};

#[derive(Parser)]
struct InteropOptions {
    /// Prints the names of the cases, and which belong to the quick matrix.
    #[arg(long)]
    list: bool,
    /// Only cases whose name contains this; repeatable.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Only the quick matrix.
    #[arg(long)]
    quick: bool,
    /// Keeps captures and logs in this folder; without it they are removed.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

fn main() -> ExitCode {
    match interop(&InteropOptions::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn interop(options: &InteropOptions) -> io::Result<bool> {
    let chosen = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|pattern| name.contains(pattern))
    };
    let mut cases = matrix::all();
    cases.retain(|case| chosen(&case.name) && (case.is_quick || !options.quick));
    if options.list {
        for case in &cases {
            println!("{}{}", case.name, if case.is_quick { " (quick)" } else { "" });
        }
        return Ok(true);
    }
    if cases.is_empty() {
        return Err(io::Error::other("no case matches: --list prints the names"));
    }
    let absent = netns::missing_prerequisite().or_else(capture::missing_prerequisite);
    if let Some(reason) = absent {
        return Err(io::Error::other(reason));
    }
    for program in ["iwping", "iwperf", "examples/interop_end"] {
        if process::program(program).is_none() {
            return Err(io::Error::other(format!("{program} was not built; see FERROWARP_BIN")));
        }
    }
    // Of the guest with cards, which is booted late.
    if cases.iter().any(|case| case.guest != GuestKind::Siw) {
        if process::program("examples/two_devices").is_none() {
            return Err(io::Error::other("examples/two_devices was not built"));
        }
        host_program_build::build()?
            .ok_or_else(|| io::Error::other(host_program_build::BUILD_HINT))?;
    }
    let temporary = process::temp_dir()?;
    let folder = options.keep.clone().unwrap_or_else(|| temporary.path().to_path_buf());
    fs::create_dir_all(&folder)?;
    let rows = run::run(&cases, &folder)?;
    let failed = run::failed(&rows);
    let seconds: f32 = rows.iter().map(|row| row.elapsed.as_secs_f32()).sum();
    println!("{} passed, {} failed, {seconds:.0} s", rows.len() - failed.len(), failed.len());
    for name in &failed {
        println!("failed: {name}");
    }
    Ok(failed.is_empty())
}
