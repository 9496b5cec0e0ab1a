//! iwlink: network emulator between two devices.

use std::process::ExitCode;

use ferrowarp_apps::iwlink::iwlink_options::IwlinkOptions;
use ferrowarp_apps::iwlink::iwlink_program::program;

fn main() -> ExitCode {
    ferrowarp_apps::run_program("iwlink", || program(&ferrowarp_apps::parse::<IwlinkOptions>()))
}
