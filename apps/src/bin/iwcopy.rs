//! iwcopy: copies a file by RDMA Write or RDMA Read.

use std::process::ExitCode;

use ferrowarp_apps::copy::iwcopy_options::IwcopyOptions;
use ferrowarp_apps::copy::iwcopy_program::program;

fn main() -> ExitCode {
    ferrowarp_apps::run_program("iwcopy", || program(&ferrowarp_apps::parse::<IwcopyOptions>()))
}
