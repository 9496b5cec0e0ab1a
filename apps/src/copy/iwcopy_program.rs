//! Main program of iwcopy.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use ferrowarp::Context;

use crate::copy::copy_message::RdmaOp;
use crate::copy::hex;
use crate::copy::iwcopy_options::{Command, IwcopyOptions};
use crate::copy::sink::{Sink, open_output};
use crate::copy::source::Source;
use crate::device::Demand;
use crate::listen_options::place;
use crate::output;
use crate::run_loop::{run, run_both};

/// Runs the subcommand.
///
/// # Errors
/// One line that names a remedy; also if the copy differs from the file.
pub fn program(options: &IwcopyOptions) -> anyhow::Result<()> {
    match &options.command {
        Command::Loop { file, by, out, common } => {
            let placement = common.device.placement()?;
            let out = open_output(out.as_deref())?;
            let (left, right) = common.device.open_pair(Demand::connections(1))?;
            let mut sink = Sink::new(&right, common.port, out, common.timeout)?;
            let remote = SocketAddr::new(common.device.loop_server(), common.port);
            let mut source = Source::new(&left, remote, file, *by, common.timeout)?;
            run_both(&mut source, &mut sink, placement)?;
            print_result(&left, &source, *by)
        }
        Command::Server { out, listen, common } => {
            let out = open_output(out.as_deref())?;
            common.device.pin_single()?;
            let context = common.device.open(Demand::connections(1).serving(common.timeout))?;
            let addr = listen.on_port(common.port);
            let mut sink = Sink::new(&context, addr, out, common.timeout)?;
            output::announce(&format!("waiting for a file on {}", place(addr)))?;
            run(&mut sink)?;
            let (len, digest) = sink.outcome.context("no file was received")?;
            let (digest, clock) = (hex(&digest), context.clock());
            output::print(&format!("received {len} bytes\nclock: {clock}\nsha256 sink   {digest}"));
            Ok(())
        }
        Command::Client { host, file, by, common } => {
            common.device.pin_single()?;
            let context = common.device.open(Demand::connections(1))?;
            let remote = host.socket(context.config(), common.port)?;
            let mut source = Source::new(&context, remote, file, *by, common.timeout)?;
            run(&mut source)?;
            print_result(&context, &source, *by)
        }
    }
}

fn print_result(context: &Context, source: &Source, by: RdmaOp) -> anyhow::Result<()> {
    let outcome = source.outcome.context("the copy did not end")?;
    #[expect(clippy::cast_precision_loss, reason = "figures are shown with few digits")]
    let gigabits = outcome.len as f64 * 8.0 / 1e9;
    let seconds = outcome.elapsed.as_secs_f64();
    output::print(&format!(
        "copied {} bytes by RDMA {by:?} in {seconds:.3} s: {:.2} Gb/s, \
         SHA-256 at both ends included",
        outcome.len,
        gigabits / seconds.max(1e-9)
    ));
    output::print(&format!("clock: {}", context.clock()));
    output::print(&format!("sha256 source {}", hex(&outcome.source_digest)));
    output::print(&format!("sha256 sink   {}", hex(&outcome.sink_digest)));
    ensure!(outcome.source_digest == outcome.sink_digest, "the copy differs from the file");
    Ok(())
}
