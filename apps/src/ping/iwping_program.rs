//! Main program of iwping.

use std::net::SocketAddr;

use ferrowarp::{Context, ListenAddr};

use crate::device::Demand;
use crate::host::Host;
use crate::listen_options::place;
use crate::output;
use crate::ping::iwping_options::{Command, CommonArgs, IwpingOptions, PingArgs};
use crate::ping::ping_client::PingClient;
use crate::ping::ping_server::PingServer;
use crate::run_loop::{run, run_both, run_workers};
use crate::stop::was_interrupted;

/// Clients with full windows for which each shard of a server is sized.
const BUSY_CLIENTS: u32 = 16;
/// Default number of rounds of the loop.
const LOOP_COUNT: u64 = 10;

/// Runs the subcommand.
///
/// # Errors
/// One line that names a remedy.
pub fn program(options: &IwpingOptions) -> anyhow::Result<()> {
    match &options.command {
        Command::Server { common, listen, shards, persistent, clients } => {
            let clients = persistent.then_some(*clients);
            let busy = BUSY_CLIENTS * u32::try_from(shards.shards)?;
            let connections = clients.unwrap_or(1).into();
            let serves = Some(common.timeout);
            let demand =
                Demand { busy, shards: shards.shards, serves, ..Demand::connections(connections) };
            let (context, cores) = common.device.open_end(*shards, demand)?;
            let addr = listen.on_port(common.port);
            let mut workers = server(&context, common, addr, clients)?;
            output::announce(&format!("waiting for clients on {}", place(addr)))?;
            print_clock(&context, common);
            let outcome = run_workers(&mut workers, &cores);
            if *persistent && was_interrupted() { Ok(()) } else { outcome }
        }
        Command::Client { host, common, rounds } => {
            common.device.pin_single()?;
            let context = common.device.open(Demand::connections(1))?;
            let count = rounds.count.unwrap_or(u64::MAX);
            print_clock(&context, common);
            let mut client = client(&context, host, common, rounds, count)?;
            let outcome = run(&mut client);
            summarize(&client, rounds);
            outcome
        }
        Command::Loop { common, rounds } => {
            let placement = common.device.placement()?;
            let (left, right) = common.device.open_pair(Demand::connections(1))?;
            print_clock(&left, common);
            let mut server = server(&right, common, common.port.into(), None)?.remove(0);
            let count = rounds.count.unwrap_or(LOOP_COUNT);
            let host = SocketAddr::new(common.device.loop_server(), common.port).into();
            let mut client = client(&left, &host, common, rounds, count)?;
            let outcome = run_both(&mut client, &mut server, placement);
            summarize(&client, rounds);
            outcome
        }
    }
}

fn server(
    context: &Context,
    common: &CommonArgs,
    addr: ListenAddr,
    clients: Option<u16>,
) -> anyhow::Result<Vec<PingServer>> {
    let on_failure = Box::new(|line: &str| output::complain(line));
    PingServer::workers(context, common, addr, clients, on_failure)
}

fn client(
    context: &Context,
    host: &Host,
    common: &CommonArgs,
    rounds: &PingArgs,
    count: u64,
) -> anyhow::Result<PingClient> {
    let remote = host.socket(context.config(), common.port)?;
    PingClient::new(context, remote, common, rounds, count)
}

/// Prints the clock with `--verbose`.
fn print_clock(context: &Context, common: &CommonArgs) {
    if common.verbose {
        output::print(&format!("clock: {}", context.clock()));
    }
}

fn summarize(client: &PingClient, rounds: &PingArgs) {
    let Some(summary) = client.latencies.summary() else { return };
    let verified = if rounds.verify { ", every byte verified" } else { "" };
    output::print(&format!(
        "{} rounds of {} bytes{verified}, usec per round: \
         min {:.2} median {:.2} 99% {:.2} max {:.2}",
        client.latencies.histogram().len(),
        rounds.size,
        summary.min,
        summary.p50,
        summary.p99,
        summary.max,
    ));
}
