//! The programs of ferrowarp: `iwperf` measures bandwidth and latency, `iwping` pings, `iwcopy`
//! copies a file. Each of these has a client and a server, written as cooperative tasks
//! ([`run_loop::Task`]), so that one thread can run both, or two threads one each. `iwlink` is a
//! network emulator between two devices.

pub mod acceptor;
pub mod copy;
pub mod device;
pub mod endpoint;
pub mod environment;
pub mod iwlink;
pub mod message_channel;
pub mod mpa_options;
pub mod network;
pub mod options;
pub mod pattern;
pub mod peer_text;
pub mod perf;
pub mod ping;
pub mod port_figures;
pub mod run_loop;
pub mod shard_options;
pub mod tcp_options;
pub mod watchdog;

use std::process::ExitCode;

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Parses and checks the command line; on an error prints one line and exits with status 2.
#[must_use]
pub fn parse<T: options::Checked>() -> T {
    let options = T::try_parse().unwrap_or_else(|error| {
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
        exit_with_usage::<T>(&about.join(" "))
    });
    if let Err(error) = options.check() {
        exit_with_usage::<T>(&format!("{error:#}").replace('\n', " "));
    }
    options
}

fn exit_with_usage<T: clap::Parser>(about: &str) -> ! {
    eprintln!("{}: {about} (see --help)", T::command().get_name());
    std::process::exit(2)
}

/// Runs a program and returns its exit status. Installs logging (warnings of the stack go to
/// standard error) and the signal handler; prints an error as one line.
pub fn run_program(name: &str, program: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    // As in RUST_LOG=ferrowarp=debug,warn.
    let filter = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let layer = tracing_subscriber::fmt::layer();
    let layer = layer.with_writer(std::io::stderr).without_time().with_target(false);
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    run_loop::install_signal_handler();
    match program() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {}", format!("{error:#}").replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}
