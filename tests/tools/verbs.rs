//! Runs unmodified verbs programs on the stack; see `scripts/verbs`.

mod selection;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use ferrowarp_tests::process;
use ferrowarp_tests::verbs::{matrix, run, speed};

use crate::selection::Selection;

#[derive(Parser)]
struct VerbsOptions {
    #[command(flatten)]
    selection: Selection,
    /// Compares the speed of perftest with that of iwperf instead.
    #[arg(long)]
    speed: bool,
}

fn main() -> ExitCode {
    match verbs(&VerbsOptions::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn verbs(VerbsOptions { selection, speed }: &VerbsOptions) -> io::Result<bool> {
    let temporary = process::temp_dir()?;
    if *speed {
        let folder = selection.folder(&temporary)?;
        return speed::run(&folder, |name| selection.includes(name, true));
    }
    let mut cases = matrix::all();
    cases.retain(|case| selection.includes(&case.name, case.is_quick));
    if selection.is_list(cases.iter().map(|case| (case.name.as_str(), case.is_quick)))? {
        return Ok(true);
    }
    let folder = selection.folder(&temporary)?;
    Ok(run::run(&cases, &folder)?.summarize())
}
