//! What the programs of ferrowarp are made of: `iwperf` measures, `iwping` pings, `iwcopy` copies
//! a file. Each of these is a pair of ends written as machines with a `step`, so that one thread
//! can run both ends, or two threads one each. `iwlink` is a bad wire between two devices.

pub mod copy;
pub mod device;
pub mod endpoint;
pub mod environment;
pub mod iwlink;
pub mod mpa_options;
pub mod network;
pub mod options;
pub mod pattern;
pub mod perf;
pub mod ping;
pub mod run_loop;
pub mod tcp_options;

use std::process::ExitCode;

/// Reads the command line; a wrong one ends the program with one line that says what is wrong.
#[must_use]
pub fn parse<T: clap::Parser>() -> T {
    T::try_parse().unwrap_or_else(|error| {
        let text = error.render().to_string();
        // Help and version are not errors; a missing subcommand is one, although clap answers it
        // with the whole help.
        if !error.use_stderr() {
            error.exit();
        }
        let about = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
        let missing = clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        let about = if error.kind() == missing { "what is it to do?" } else { about };
        let about: Vec<_> = about.split_whitespace().collect();
        let name = T::command().get_name().to_owned();
        eprintln!("{name}: {} (--help lists what is possible)", about.join(" "));
        std::process::exit(2)
    })
}

/// Runs a program: warnings of the stack go to standard error, and so does an error, as one line.
pub fn run_program(name: &str, program: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .init();
    run_loop::install_signal_handler();
    match program() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {}", format!("{error:#}").replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}
