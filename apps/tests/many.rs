//! Servers with thousands of clients or data connections at a time, over a pair of rings; one
//! thread advances all of them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Parser;
use ferrowarp::Context;
use ferrowarp_apps::device::DeviceArgs;
use ferrowarp_apps::machine::{Machine, Step};
use ferrowarp_apps::startup::ReadArgs;
use ferrowarp_apps::{perf, ping};

/// As many as a server has to take.
const MANY: u16 = 4096;
/// How long all of it may take, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(600);
/// Clients that connect at a time.
const WAVE: usize = 256;
/// Clients that go on between two steps of the server, or its end of the ring would overflow.
const FEW: usize = 8;

fn pair(device: &DeviceArgs, connections: u16) -> (Context, Context, SocketAddr) {
    let (client, server) = device.open_pair(connections).unwrap();
    (client, server, SocketAddr::new(device.loop_server(), 0))
}

fn ping_options(line: &str) -> (ping::options::Common, ping::options::Rounds) {
    let words = ["iwping", "loop", "--timeout", "300"].into_iter().chain(line.split(' '));
    let options = ping::options::Options::try_parse_from(words).unwrap();
    let ping::options::Command::Loop { common, rounds } = options.command else {
        panic!("not the loop");
    };
    (common, rounds)
}

#[test]
fn a_ping_server_answers_4096_clients_at_a_time_and_refuses_one_more() {
    let (common, rounds) = ping_options("-V");
    let (left, right, mut remote) = pair(&common.device, MANY + 1);
    remote.set_port(common.port);
    let failures = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&failures);
    let hook = Box::new(move |line: &str| told.lock().unwrap().push(line.to_owned()));
    let mut server = ping::server::Server::new(&right, &common, Some(MANY), hook).unwrap();
    let start = Instant::now();
    let new = |count| ping::client::Client::new(&left, remote, &common, &rounds, count).unwrap();
    let mut clients: Vec<ping::client::Client> = Vec::new();
    let is_answered =
        |client: &ping::client::Client, rounds| client.latencies.histogram().len() >= rounds;
    // Without end, so that all are there at the same time; in waves, so that none waits for its
    // connection as long as it takes to serve thousands. Those before a wave are silent meanwhile.
    let mut serve = |clients: &mut [ping::client::Client], rounds| {
        while !clients.iter().all(|client| is_answered(client, rounds)) {
            assert!(start.elapsed() < PATIENCE, "a client is not answered");
            for some in clients.chunks_mut(FEW) {
                for client in some.iter_mut().filter(|client| !is_answered(client, rounds)) {
                    assert_eq!(client.step().unwrap(), Step::Running);
                }
                server.step().unwrap();
            }
        }
    };
    while clients.len() < usize::from(MANY) {
        let begins = clients.len();
        clients.extend((0..WAVE).map(|_| new(u64::MAX)));
        serve(&mut clients[begins..], 1);
    }
    assert_eq!(clients.len(), usize::from(MANY));
    serve(&mut clients, 3);
    let mut late = new(1);
    let refusal = loop {
        assert!(start.elapsed() < PATIENCE, "a client is neither taken nor refused");
        server.step().unwrap();
        match late.step() {
            Ok(step) => assert_eq!(step, Step::Running, "one more was taken"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(refusal.contains("busy with other clients"), "{refusal}");
    assert_eq!(*failures.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn a_perf_server_serves_4096_data_connections() {
    let line = "iwperf loop write-bw -q 4096 -n 4 -s 64 -t 2 --verify --timeout 300";
    let options = perf::options::Options::try_parse_from(line.split(' ')).unwrap();
    let perf::options::Command::Loop { test, device, test_args } = options.command else {
        panic!("not the loop");
    };
    assert_eq!(test_args.qps, MANY);
    test_args.check(test).unwrap();
    let (left, right, mut remote) = pair(&device, test_args.qps);
    remote.set_port(perf::options::PORT);
    let quiet = Box::new(|_: &str| {});
    let reads = ReadArgs::default();
    let mut server =
        perf::server::Server::new(&right, remote.port(), true, PATIENCE, reads, quiet).unwrap();
    let setting = perf::report::Setting {
        test,
        device: "ring".to_owned(),
        qps: test_args.qps,
        tx_depth: test_args.tx_depth,
        mtu: 1500,
        markers: false,
        crc: true,
        checksum: "none".to_owned(),
        bidirectional: false,
        verify: true,
    };
    let told = Box::new(|_: &perf::report::Setting, _: Option<&perf::report::Measurement>| {});
    let mut client = perf::client::Client::new(&left, remote, &test_args, setting, told).unwrap();
    let start = Instant::now();
    while client.step().unwrap() == Step::Running {
        assert!(start.elapsed() < PATIENCE, "the session hangs");
        let _ = server.step().unwrap();
    }
    let result = &client.results[0];
    assert_eq!((result.errors, result.bytes_verified), (0, u64::from(MANY) * 4 * 64));
}
