use std::time::{Duration, Instant};

use clap::Parser;

use super::{AllocateRegions, Server, allocate_regions};
use crate::device::Demand;
use crate::mpa_options::IrdOrdArgs;
use crate::perf::client::Client;
use crate::perf::options::{Command, Options, PORT};
use crate::perf::report::{Measurement, TestParams};
use crate::run_loop::{Step, Task};

/// Duration of the allocation, longer than the peer's timeout.
const ALLOCATION_TIME: Duration = Duration::from_millis(3500);
const TIMEOUT: Duration = Duration::from_millis(2500);

/// Runs a session over a pair of rings with a server that allocates its memory with `provide`.
/// Returns the client's outcome and the number of wrong bytes.
fn session(provide: AllocateRegions) -> anyhow::Result<u64> {
    let line = "iwperf loop write-bw -n 10 --verify --timeout 2.5";
    let Command::Loop { test, device, test_args } =
        Options::try_parse_from(line.split(' '))?.command
    else {
        panic!("not the loop");
    };
    let (left, right) = device.open_pair(Demand::connections(1))?;
    let remote = (device.loop_server(), PORT).into();
    let quiet = Box::new(|_: &str| {});
    let reads = IrdOrdArgs::default();
    let mut server = Server::workers(&right, PORT, false, TIMEOUT, reads, quiet)?.remove(0);
    server.allocate_regions = provide;
    let setting = TestParams::new(test, &device, &test_args);
    let on_result = Box::new(|_: &TestParams, _: Option<&Measurement>| {});
    let mut client = Client::new(&left, remote, &test_args, setting, on_result)?;
    let start = Instant::now();
    while client.step()? == Step::Running {
        server.step()?;
        assert!(start.elapsed() < Duration::from_secs(60), "the session hangs");
    }
    Ok(client.results[0].errors)
}

#[test]
fn client_waits_while_server_sends_alive() {
    let start = Instant::now();
    let errors = session(|context, lens| {
        std::thread::sleep(ALLOCATION_TIME);
        allocate_regions(context, lens)
    });
    assert_eq!(errors.unwrap(), 0);
    assert!(start.elapsed() > ALLOCATION_TIME, "allocation takes its time");
}

#[test]
fn allocation_failure_reason_reaches_client() {
    let error = session(|_, [tx, _]| anyhow::bail!("no {tx} bytes")).unwrap_err();
    assert!(error.to_string().contains("the peer failed: no 64 bytes"), "{error}");
}
