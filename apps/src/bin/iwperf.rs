//! iwperf: bandwidth and latency tests of ferrowarp, modeled on perftest.

use std::process::ExitCode;

use ferrowarp_apps::perf::iwperf_options::IwperfOptions;
use ferrowarp_apps::perf::iwperf_program::program;

fn main() -> ExitCode {
    ferrowarp_apps::run_program("iwperf", || program(&ferrowarp_apps::parse::<IwperfOptions>()))
}
