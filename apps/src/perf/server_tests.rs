use std::time::{Duration, Instant};

use clap::Parser;

use super::{AllocateRegions, Server, allocate_regions};
use crate::device::Demand;
use crate::mpa_options::IrdOrdArgs;
use crate::perf::client::Client;
use crate::perf::iwperf_options::{Command, IwperfOptions, PORT};
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
        IwperfOptions::try_parse_from(line.split(' '))?.command
    else {
        panic!("not the loop");
    };
    let (left, right) = device.open_pair(Demand::connections(1))?;
    let remote = (device.loop_server(), PORT).into();
    let quiet = Box::new(|_: &str| {});
    let reads = IrdOrdArgs::default();
    let mut server = Server::workers(&right, PORT, false, TIMEOUT, reads, quiet)?.remove(0);
    server.allocate_regions = provide;
    let setting = TestParams::new(test, &device, &test_args, "none");
    let on_result = Box::new(|_: &TestParams, _: Option<&Measurement>| {});
    let mut client = Client::new(&left, remote, &test_args, setting, on_result)?;
    let start = Instant::now();
    while client.step()? == Step::Running {
        server.step()?;
        assert!(start.elapsed() < Duration::from_secs(60), "the session hangs");
    }
    Ok(client.results[0].errors)
}

/// A device may spread the connections of a session over the server's shards as it likes.
#[test]
fn data_connections_may_arrive_at_any_shard() {
    for line in [
        "write-bw -q 5 -n 60 -t 8 --verify",
        "send-bw -q 4 -b -n 60 -t 8 --verify",
        "send-bw -q 4 -n 60 -t 8 --verify --use-srq",
    ] {
        let words = ["iwperf", "loop"].into_iter().chain(line.split(' '));
        let Command::Loop { test, device, test_args } =
            IwperfOptions::try_parse_from(words).unwrap().command
        else {
            panic!("not the loop");
        };
        let qps = test_args.qps();
        let demand = Demand { shards: 2, ..Demand::connections(qps) };
        let (left, right) = device.open_pair(demand).unwrap();
        let remote = (device.loop_server(), PORT).into();
        let (reads, quiet) = (IrdOrdArgs::default(), Box::new(|_: &str| {}));
        let mut workers = Server::workers(&right, PORT, true, TIMEOUT, reads, quiet).unwrap();
        let setting = TestParams::new(test, &device, &test_args, "none");
        let on_result = Box::new(|_: &TestParams, _: Option<&Measurement>| {});
        let mut client = Client::new(&left, remote, &test_args, setting, on_result).unwrap();
        for index in 0..usize::try_from(qps).unwrap() {
            client.session.data_qp_on(index, index % 2).unwrap();
        }
        let start = Instant::now();
        let mut on_second = 0;
        let mut has_ended = false;
        while !has_ended {
            has_ended = client.step().unwrap() == Step::Finished;
            for worker in &mut workers {
                let _ = worker.step().unwrap();
            }
            on_second = on_second.max(right.shard(1).unwrap().connection_count());
            assert!(start.elapsed() < Duration::from_secs(60), "the session hangs");
        }
        assert_eq!(on_second, qps as usize / 2, "{line}");
        let result = &client.results[0];
        let messages = u64::from(qps) * 60 * if test_args.bidirectional { 2 } else { 1 };
        assert_eq!((result.errors, result.bytes_verified), (0, messages * 65_536), "{line}");
    }
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
