//! The programs of ferrowarp.
//!
//! | Program | Purpose |
//! |---|---|
//! | `iwperf` | Measures bandwidth and latency |
//! | `iwping` | Pings |
//! | `iwcopy` | Copies a file |
//! | `iwlink` | Emulates a network between two devices |
//!
//! Each of the first three has a client and a server. Both are cooperative tasks
//! ([`run_loop::Task`]). So one thread can run both or each has its own thread.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod acceptor;
pub mod background_file;
pub mod copy;
pub mod device;
pub mod endpoint;
pub mod environment;
pub mod host;
pub mod iwlink;
pub mod listen_options;
pub mod message_channel;
pub mod mpa_options;
pub mod network;
pub mod option_values;
pub mod output;
pub mod output_file;
pub mod pattern;
pub mod peer_text;
pub mod perf;
pub mod ping;
pub mod port_figures;
pub mod run_loop;
pub mod shard_options;
pub mod signals;
pub mod stop;
pub mod tcp_options;
pub mod watchdog;

use std::process::ExitCode;

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::stop::Stop;

/// Parses and checks the command line; on an error prints one line and exits with status 2.
#[must_use]
pub fn parse<T: option_values::Checked>() -> T {
    let options = T::try_parse().unwrap_or_else(|error| {
        let text = error.render().to_string();
        // Help and version are not errors; a missing subcommand is one, although clap prints the
        // whole help for it.
        if !error.use_stderr() {
            output::note(error.print());
            std::process::exit(i32::from(!output::is_written()));
        }
        let about = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
        let missing = clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        let about = if error.kind() == missing { "no command given" } else { about };
        let about: Vec<_> = about.split_whitespace().collect();
        exit_with_usage(&about.join(" "))
    });
    if let Err(error) = options.check() {
        exit_with_usage(&format!("{error:#}"));
    }
    options
}

fn exit_with_usage(about: &str) -> ! {
    output::complain(&format!("{about} (see --help)"));
    std::process::exit(2)
}

/// Runs a program and returns its exit status, or dies of the signal that has interrupted it.
/// Installs logging (warnings of the stack go to standard error) and waits for signals; prints an
/// error as one line.
pub fn run_program(name: &'static str, program: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    output::set_name(name);
    // As in RUST_LOG=ferrowarp=debug,warn.
    let filter = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let layer = tracing_subscriber::fmt::layer();
    let layer = layer.with_writer(std::io::stderr).without_time().with_target(false);
    // It would print, and panic where standard error is a pipe without a reader.
    let layer = layer.log_internal_errors(false);
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    signals::install();
    let outcome = program();
    output::flush();
    let Err(error) = outcome else {
        return if output::is_written() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    };
    match stop::of_error(&error) {
        Some(Stop::Output) => drop(output::is_written()),
        stopped => {
            output::complain(&format!("{error:#}"));
            if let Some(Stop::Signal(signal)) = stopped {
                signals::die_of(signal);
            }
        }
    }
    ExitCode::FAILURE
}
