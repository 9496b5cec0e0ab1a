//! Main program of iwperf.

use std::net::SocketAddr;
use std::path::Path;
use std::time::SystemTime;

use anyhow::ensure;
use ferrowarp::Context;

use crate::device::{Demand, DeviceArgs, checksum_kind};
use crate::environment::Environment;
use crate::listen_options::place;
use crate::output;
use crate::output_file::OutputFile;
use crate::perf::clients::Clients;
use crate::perf::hdr;
use crate::perf::iwperf_options::{ClientArgs, Command, IwperfOptions, PORT, ServerArgs, TestArgs};
use crate::perf::kind::Test;
use crate::perf::limits::QPS_MAX;
use crate::perf::report::{Measurement, Report, TestParams};
use crate::perf::server::Server;
use crate::run_loop::{Pair, Task, run_both, run_on_cores, run_workers};
use crate::stop::{self, was_interrupted};

/// Data connections with full windows for which each shard of a server is sized.
const BUSY_QPS: u32 = 16;

/// Runs the subcommand.
///
/// # Errors
/// One line that names a remedy.
pub fn program(options: &IwperfOptions) -> anyhow::Result<()> {
    match &options.command {
        Command::Loop { test, device, test_args } => {
            let environment = Environment::collect(&device.dev);
            run_and_report(environment, *test, device, test_args, |environment, figures| {
                let shards = test_args.shards.shards;
                let cores = match shards {
                    1 => device.placement()?.cores(),
                    _ => test_args.shards.cores(&device.cores)?,
                };
                environment.cores.clone_from(&cores);
                let remote = SocketAddr::new(device.loop_server(), PORT);
                let args = ClientArgs {
                    host: remote.into(),
                    port: PORT,
                    device: device.clone(),
                    test_args: test_args.clone(),
                };
                let (left, right) = device.open_pair(demand_of(&args))?;
                let outcome = measure(&left, Some(&right), remote, &args, *test, &cores, figures);
                environment.add_context(&left);
                outcome
            })
        }
        Command::Server(args) => {
            let json = open_output(args.json.as_deref())?;
            let mut environment = Environment::collect(&args.device.dev);
            let outcome = serve(args, &mut environment);
            report(json, &[], &environment, outcome)
        }
        Command::Client(command) => {
            let (test, args) = command.test();
            run_client(test, args)
        }
    }
}

/// Runs a test with a server.
fn run_client(test: Test, args: &ClientArgs) -> anyhow::Result<()> {
    let environment = Environment::collect(&args.device.dev);
    run_and_report(environment, test, &args.device, &args.test_args, |environment, figures| {
        let (context, cores) = args.device.open_end(args.test_args.shards, demand_of(args))?;
        environment.cores.clone_from(&cores);
        let remote = args.host.socket(context.config(), args.port)?;
        let outcome = measure(&context, None, remote, args, test, &cores, figures);
        environment.add_context(&context);
        outcome
    })
}

/// Figures of a measurement.
#[derive(Default)]
struct Figures {
    results: Vec<Measurement>,
    /// Contents of the file of `--hdr`, or why there are none.
    log: Option<anyhow::Result<Vec<u8>>>,
}

/// Runs the measurement `work` and writes the requested files, also if it fails.
fn run_and_report(
    mut environment: Environment,
    test: Test,
    device: &DeviceArgs,
    args: &TestArgs,
    work: impl FnOnce(&mut Environment, &mut Figures) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let json = open_output(args.json.as_deref())?;
    let hdr = open_output(args.hdr.as_deref())?;
    if let (Some(json), Some(hdr)) = (&json, &hdr) {
        ensure!(!json.is_same(hdr)?, "--json and --hdr are one file: give two");
    }
    let mut figures = Figures::default();
    let mut outcome = work(&mut environment, &mut figures);
    let mut results = figures.results;
    if let (Some(file), Some(log)) = (hdr, figures.log) {
        let written = log.and_then(|log| file.replace(&log));
        outcome = outcome.and(written);
    }
    if outcome.is_ok() {
        let errors: u64 = results.iter().map(|result| result.errors).sum();
        if errors > 0 {
            outcome = Err(anyhow::anyhow!("{errors} bytes differ from those sent"));
        }
    } else if results.iter().all(|result| result.errors == 0) {
        // No run has failed so far: record the failure with the test's name and size.
        let setting = TestParams::new(test, device, args, "unknown");
        let size = args.sizes(test).get(results.len()).copied().unwrap_or_default();
        results.push(Measurement { errors: 1, ..Measurement::new(&setting, size) });
    }
    report(json, &results, &environment, outcome)
}

/// Opens a file before the run: one that cannot be written is noticed there.
fn open_output(path: Option<&Path>) -> anyhow::Result<Option<OutputFile>> {
    path.map(OutputFile::open).transpose()
}

/// Writes the file of `--json`, also after a failure; returns the first error.
fn report(
    file: Option<OutputFile>,
    results: &[Measurement],
    environment: &Environment,
    outcome: anyhow::Result<()>,
) -> anyhow::Result<()> {
    let Some(file) = file else { return outcome };
    let failure = outcome.as_ref().err().map(|error| format!("{error:#}"));
    let written = Report { results, environment, failure }.write(file);
    outcome.and(written)
}

/// Serves clients; the state of the port at the end goes to `environment`.
fn serve(args: &ServerArgs, environment: &mut Environment) -> anyhow::Result<()> {
    let ServerArgs { device, shards, reads, port, listen, once, timeout, events, .. } = args;
    let busy = BUSY_QPS * u32::try_from(shards.shards)?;
    let serves = Some(*timeout);
    let (connections, sleeps) = (QPS_MAX, *events);
    let demand = Demand { connections, busy, shards: shards.shards, serves, sleeps };
    let (context, cores) = device.open_end(*shards, demand)?;
    environment.cores.clone_from(&cores);
    let on_session = Box::new(output::print);
    let addr = listen.on_port(*port);
    let mut workers = Server::workers(&context, addr, *once, *timeout, *reads, on_session)?;
    workers.iter_mut().for_each(|worker| worker.serves_events = *events);
    output::announce(&format!("waiting for clients on {}", place(addr)))?;
    let outcome = run_workers(&mut workers, &cores);
    environment.add_context(&context);
    if !*once && was_interrupted() { Ok(()) } else { outcome }
}

/// Returns what the context of a client is opened for.
fn demand_of(args: &ClientArgs) -> Demand {
    let args = &args.test_args;
    let (shards, sleeps) = (args.shards.shards, args.queues.events);
    Demand { shards, sleeps, ..Demand::connections(args.qps()) }
}

/// Runs the client, and also the server if `other` is its context in this process.
fn measure(
    context: &Context,
    other: Option<&Context>,
    remote: SocketAddr,
    args: &ClientArgs,
    test: Test,
    cores: &[usize],
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let (device, args) = (&args.device, &args.test_args);
    if args.length.run_infinitely {
        stop::spare_tasks();
    }
    let origin = SystemTime::now();
    let server = other.map(|other| {
        let quiet = Box::new(|_: &str| {});
        Server::workers(other, remote.port(), true, args.timeout, args.peer_ird_ord(), quiet)
    });
    let mut servers = server.transpose()?.unwrap_or_default();
    let sleeps = args.queues.events;
    servers.iter_mut().for_each(|server| server.serves_events = sleeps);
    let mut setting = TestParams::new(test, device, args, checksum_kind(context));
    setting.clock = context.clock().to_string();
    let on_result = Box::new(|setting: &TestParams, result: Option<&Measurement>| match result {
        None => output::print(&setting.heading()),
        Some(result) => {
            let shards = result.shards.iter().map(|figures| figures.line());
            let lines: Vec<_> = core::iter::once(result.line()).chain(shards).collect();
            output::print(&lines.join("\n"));
        }
    });
    let mut clients = Clients::new(context, remote, args, setting, on_result)?;
    let workers = &mut clients.workers[..];
    let outcome = match (&mut workers[..], &mut servers[..]) {
        // A thread that sleeps steps no other task.
        (workers, servers) if sleeps && !servers.is_empty() => {
            let servers = servers.iter_mut().map(|server| server as &mut (dyn Task + Send));
            let clients = workers.iter_mut().map(|client| client as &mut (dyn Task + Send));
            let mut tasks: Vec<_> = clients.chain(servers).collect();
            let cores: Vec<_> = cores.iter().copied().cycle().take(tasks.len()).collect();
            run_on_cores(&mut tasks, &cores)
        }
        ([client], [server]) => run_both(client, server, device.placement()?),
        (workers, []) => run_workers(workers, &cores[..cores.len().min(workers.len())]),
        (workers, servers) => {
            let pairs = workers.iter_mut().zip(servers);
            let mut pairs: Vec<_> =
                pairs.map(|(client, server)| Pair::new(client, server)).collect();
            run_on_cores(&mut pairs, cores)
        }
    };
    let (mut finished, unfinished, intervals) = clients.into_results(outcome.is_err());
    // What an interrupted run has is printed too.
    if let Some(partial) = unfinished.as_ref().filter(|result| result.iterations > 0) {
        output::print(&partial.line());
    }
    finished.extend(unfinished);
    if finished.iter().any(|result| result.iterations > 0) {
        output::print(TestParams::footer());
    }
    figures.results = finished;
    if args.hdr.is_some() {
        figures.log = Some(hdr::log(origin, &intervals));
    }
    outcome
}
