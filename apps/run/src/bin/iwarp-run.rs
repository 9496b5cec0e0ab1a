//! iwarp-run: starts a verbs program on this stack.

use std::process::ExitCode;

fn main() -> ExitCode {
    ferrowarp_run::run_program(std::env::args_os())
}
