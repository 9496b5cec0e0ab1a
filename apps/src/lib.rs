//! The programs of ferrowarp: `iwperf` measures bandwidth and latency, `iwping` pings, `iwcopy`
//! copies a file. Each of these has a client and a server, written as cooperative tasks
//! ([`run_loop::Task`]), so that one thread can run both, or two threads one each. `iwlink` is a
//! network emulator between two devices.

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

/// Parses the command line; on an error prints one line and exits with status 2.
#[must_use]
pub fn parse<T: clap::Parser>() -> T {
    T::try_parse().unwrap_or_else(|error| {
        let text = error.render().to_string();
        // Help and version are not errors; a missing subcommand is one, although clap prints the
        // whole help for it.
        if !error.use_stderr() {
            error.exit();
        }
        let about = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
        let missing = clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        let about = if error.kind() == missing { "no command given" } else { about };
        let about: Vec<_> = about.split_whitespace().collect();
        let name = T::command().get_name().to_owned();
        eprintln!("{name}: {} (see --help)", about.join(" "));
        std::process::exit(2)
    })
}

/// Runs a program and returns its exit status. Installs logging (warnings of the stack go to
/// standard error) and the signal handler; prints an error as one line.
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
