//! iwperf: bandwidth and latency tests of ferrowarp, modeled on perftest.

use std::process::ExitCode;

use ferrowarp_apps::perf::options::Options;
use ferrowarp_apps::perf::program::program;

fn main() -> ExitCode {
    ferrowarp_apps::run_program("iwperf", || program(&ferrowarp_apps::parse::<Options>()))
}
