//! Runs the interop matrix, the stack against Linux's siw in a guest; see `scripts/interop`.

mod selection;

use std::io;
use std::process::ExitCode;

use clap::Parser as _;
use ferrowarp_tests::interop::guest::GuestKind;
use ferrowarp_tests::interop::{matrix, run};
use ferrowarp_tests::{capture, host_program_build, netns, process};

use crate::selection::Selection;

fn main() -> ExitCode {
    match interop(&Selection::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn interop(selection: &Selection) -> io::Result<bool> {
    let mut cases = matrix::all();
    cases.retain(|case| selection.includes(&case.name, case.is_quick));
    if selection.is_list(cases.iter().map(|case| (case.name.as_str(), case.is_quick)))? {
        return Ok(true);
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
    let folder = selection.folder(&temporary)?;
    Ok(run::run(&cases, &folder)?.summarize())
}
