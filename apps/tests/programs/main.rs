//! The programs and their servers and clients, over pairs of rings.

use std::net::SocketAddr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use clap::Parser;
use ferrowarp::Context;
use ferrowarp_apps::device::DeviceArgs;
use ferrowarp_apps::perf::client::Client;
use ferrowarp_apps::perf::kind::Test;
use ferrowarp_apps::perf::report::{Measurement, TestParams};
use ferrowarp_apps::{perf, ping};

mod commands;
mod many_sessions;
mod perftest_options;
mod sessions;
mod shards;
mod surroundings;
mod under_a_shell;

/// Held by each test while it runs: shared by tests of whole programs, which mostly wait for their
/// devices to open and close; alone by tests that keep the cores busy and bound the time in which
/// their peers answer.
static CORES: RwLock<()> = RwLock::new(());

/// Waits until no other test runs, and keeps others from running.
fn alone() -> RwLockWriteGuard<'static, ()> {
    CORES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no test runs [`alone`].
fn with_others() -> RwLockReadGuard<'static, ()> {
    CORES.read().unwrap_or_else(PoisonError::into_inner)
}

type PerfOptions = (Test, DeviceArgs, perf::iwperf_options::TestArgs);

/// Options of `iwperf loop`.
fn perf_options(line: &str) -> PerfOptions {
    let words = ["iwperf", "loop"].into_iter().chain(line.split(' '));
    let options = perf::iwperf_options::IwperfOptions::try_parse_from(words).unwrap();
    let perf::iwperf_options::Command::Loop { test, device, test_args } = options.command else {
        panic!("not the loop");
    };
    (test, device, test_args)
}

fn perf_client(context: &Context, remote: SocketAddr, options: &PerfOptions) -> Client {
    let (test, device, args) = options;
    let setting = TestParams::new(*test, device, args, "none");
    let quiet = Box::new(|_: &TestParams, _: Option<&Measurement>| {});
    Client::new(context, remote, args, setting, quiet).unwrap()
}

/// Options of `iwping loop`.
fn ping_options(line: &str) -> (ping::iwping_options::CommonArgs, ping::iwping_options::PingArgs) {
    let words = ["iwping", "loop"].into_iter().chain(line.split(' '));
    let options = ping::iwping_options::IwpingOptions::try_parse_from(words).unwrap();
    let ping::iwping_options::Command::Loop { common, rounds } = options.command else {
        panic!("not the loop");
    };
    (common, rounds)
}
