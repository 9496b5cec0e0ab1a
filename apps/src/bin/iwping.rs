//! iwping: pings a peer by Send, RDMA Read and RDMA Write, modeled on rping.

use std::process::ExitCode;

use ferrowarp_apps::ping::iwping_options::IwpingOptions;
use ferrowarp_apps::ping::iwping_program::program;

fn main() -> ExitCode {
    ferrowarp_apps::run_program("iwping", || program(&ferrowarp_apps::parse::<IwpingOptions>()))
}
