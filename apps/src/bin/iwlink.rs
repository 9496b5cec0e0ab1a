//! iwlink: network emulator between two devices.

use std::process::ExitCode;

use ferrowarp_apps::iwlink::options::Options;
use ferrowarp_apps::iwlink::program::program;

fn main() -> ExitCode {
    ferrowarp_apps::run_program("iwlink", || program(&ferrowarp_apps::parse::<Options>()))
}
