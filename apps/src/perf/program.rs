//! Main program of iwperf.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::SystemTime;

use anyhow::Context as _;
use ferrowarp::Context;

use crate::device::DeviceArgs;
use crate::environment::Environment;
use crate::perf::client::Client;
use crate::perf::hdr;
use crate::perf::kind::Test;
use crate::perf::limits::QPS_MAX;
use crate::perf::options::{ClientArgs, Command, Options, PORT, TestArgs};
use crate::perf::report::{Measurement, Report, TestParams};
use crate::perf::server::Server;
use crate::run_loop::{run, run_both, run_until_interrupted};

/// Data connections with full windows for which a server's mempools are sized.
const BUSY_QPS: u16 = 16;

/// Runs the subcommand.
///
/// # Errors
/// One line that names a remedy.
pub fn program(options: &Options) -> anyhow::Result<()> {
    let client = |test, args: &ClientArgs| {
        let environment = Environment::collect(&args.device.dev);
        run_and_report(environment, test, &args.device, &args.test_args, |environment, results| {
            environment.cores = args.device.pin_single()?;
            let context = args.device.open(args.test_args.qps)?;
            let remote = args.host.socket(args.port);
            measure(&context, None, remote, args, test, results)
        })
    };
    match &options.command {
        Command::Loop { test, device, test_args } => {
            let environment = Environment::collect(&device.dev);
            run_and_report(environment, *test, device, test_args, |environment, results| {
                let placement = device.placement()?;
                environment.cores = placement.cores();
                let (left, right) = device.open_pair(test_args.qps)?;
                let remote = SocketAddr::new(device.loop_server(), PORT);
                let args = ClientArgs {
                    host: remote.into(),
                    port: PORT,
                    device: device.clone(),
                    test_args: test_args.clone(),
                };
                measure(&left, Some(&right), remote, &args, *test, results)
            })
        }
        Command::Server { device, reads, port, once, timeout } => {
            device.pin_single()?;
            let context = device.open_for(BUSY_QPS, QPS_MAX)?;
            let on_session = Box::new(|line: &str| print_ignoring_errors(&format!("{line}\n")));
            let mut server = Server::new(&context, *port, *once, *timeout, *reads, on_session)?;
            print_ignoring_errors(&format!("waiting for clients on port {port}\n"));
            if *once { run(&mut server) } else { run_until_interrupted(&mut server) }
        }
        Command::WriteBw(args) => client(Test::WriteBw, args),
        Command::ReadBw(args) => client(Test::ReadBw, args),
        Command::SendBw(args) => client(Test::SendBw, args),
        Command::WriteLat(args) => client(Test::WriteLat, args),
        Command::ReadLat(args) => client(Test::ReadLat, args),
        Command::SendLat(args) => client(Test::SendLat, args),
        Command::AtomicBw(args) => client(Test::AtomicBw, args),
        Command::AtomicLat(args) => client(Test::AtomicLat, args),
    }
}

/// Runs the measurement `work` and writes the requested files, also if it fails.
fn run_and_report(
    mut environment: Environment,
    test: Test,
    device: &DeviceArgs,
    args: &TestArgs,
    work: impl FnOnce(&mut Environment, &mut Vec<Measurement>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // An unwritable file is detected before the run, not after it.
    for path in [&args.json, &args.hdr].into_iter().flatten() {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot write {}: choose another place", path.display()))?;
    }
    let mut results = Vec::new();
    let mut outcome = args.check(test).and_then(|()| work(&mut environment, &mut results));
    if outcome.is_ok() {
        let errors: u64 = results.iter().map(|result| result.errors).sum();
        if errors > 0 {
            outcome = Err(anyhow::anyhow!("{errors} bytes differ from those sent"));
        }
    } else if results.iter().all(|result| result.errors == 0) {
        // No run has failed so far: record the failure with the test's name and size.
        let setting = TestParams::new(test, device, args);
        let size = args.sizes(test).get(results.len()).copied().unwrap_or_default();
        results.push(Measurement { errors: 1, ..Measurement::new(&setting, size) });
    }
    if let Some(path) = &args.json {
        let failure = outcome.as_ref().err().map(|error| format!("{error:#}"));
        let written = Report { results: &results, environment: &environment, failure }.write(path);
        outcome = outcome.and(written);
    }
    outcome
}

/// Runs the client, and also the server if `other` is its context in this process.
fn measure(
    context: &Context,
    other: Option<&Context>,
    remote: SocketAddr,
    args: &ClientArgs,
    test: Test,
    results: &mut Vec<Measurement>,
) -> anyhow::Result<()> {
    let (device, args) = (&args.device, &args.test_args);
    let origin = SystemTime::now();
    let server = other.map(|other| {
        let quiet = Box::new(|_: &str| {});
        Server::new(other, remote.port(), true, args.timeout, args.peer_ird_ord(), quiet)
    });
    let mut server = server.transpose()?;
    let setting = TestParams::new(test, device, args);
    let on_result = Box::new(|setting: &TestParams, result: Option<&Measurement>| match result {
        None => print_ignoring_errors(&format!("{}\n", setting.heading())),
        Some(result) => print_ignoring_errors(&format!("{}\n", result.line())),
    });
    let mut client = Client::new(context, remote, args, setting, on_result)?;
    let outcome = match &mut server {
        Some(server) => run_both(&mut client, server, device.placement()?),
        None => run(&mut client),
    };
    results.append(&mut client.results);
    if !results.is_empty() {
        print_ignoring_errors(&format!("{}\n", TestParams::footer()));
    }
    if outcome.is_err() {
        results.extend(client.unfinished());
    }
    let logged = match &args.hdr {
        Some(path) => hdr::write(path, origin, &client.intervals),
        None => Ok(()),
    };
    outcome.and(logged)
}

/// Prints to standard output; a closed pipe (`| head`) is no error.
fn print_ignoring_errors(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
