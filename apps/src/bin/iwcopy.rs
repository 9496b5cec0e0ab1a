//! iwcopy: copies a file by RDMA Write or RDMA Read.

use std::process::ExitCode;

use ferrowarp_apps::copy::options::Options;
use ferrowarp_apps::copy::program::program;

fn main() -> ExitCode {
    ferrowarp_apps::run_program("iwcopy", || program(&ferrowarp_apps::parse::<Options>()))
}
