//! Servers with thousands of concurrent clients or data connections, over a pair of rings; one
//! thread steps all of them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrowarp::Context;
use ferrowarp_apps::device::{Demand, DeviceArgs};
use ferrowarp_apps::mpa_options::IrdOrdArgs;
use ferrowarp_apps::run_loop::{Step, Task};
use ferrowarp_apps::{perf, ping};

use crate::{alone, perf_client, perf_options, ping_options};

/// Clients that a server has to accept.
const CLIENTS: u16 = 4096;
/// Limit for a whole test, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Clients that are active at a time. Were all of them, each pass of the server would visit
/// thousands of connections for which its transmit queue has no space: on a busy machine for longer
/// than the user timeout of 120 s.
const ACTIVE_CLIENTS: usize = 256;
/// Clients stepped between two steps of the server: more would overflow its receive ring.
const CLIENTS_PER_SERVER_STEP: usize = 8;

fn pair(device: &DeviceArgs, connections: u32) -> (Context, Context, SocketAddr) {
    let (client, server) = device.open_pair(Demand::connections(connections)).unwrap();
    (client, server, SocketAddr::new(device.loop_server(), 0))
}

#[test]
fn ping_server_serves_4096_clients_and_rejects_the_next() {
    let _lock = alone();
    let (common, rounds) = ping_options("--timeout 300 -V");
    let (left, right, mut remote) = pair(&common.device, u32::from(CLIENTS) + 1);
    remote.set_port(common.port);
    let failures = Arc::new(Mutex::new(Vec::new()));
    let on_failure_lines = Arc::clone(&failures);
    let hook = Box::new(move |line: &str| on_failure_lines.lock().unwrap().push(line.to_owned()));
    let workers = ping::ping_server::PingServer::workers(
        &right,
        &common,
        common.port.into(),
        Some(CLIENTS),
        hook,
    );
    let mut server = workers.unwrap().remove(0);
    let start = Instant::now();
    let new =
        |count| ping::ping_client::PingClient::new(&left, remote, &common, &rounds, count).unwrap();
    let mut clients: Vec<ping::ping_client::PingClient> = Vec::new();
    let is_answered = |client: &ping::ping_client::PingClient, rounds| {
        client.latencies.histogram().len() >= rounds
    };
    // Clients do not finish, so that all are connected at the same time. They connect and ping in
    // batches; sessions of other batches are idle meanwhile.
    let mut serve = |clients: &mut [ping::ping_client::PingClient], rounds| {
        while !clients.iter().all(|client| is_answered(client, rounds)) {
            assert!(start.elapsed() < TIMEOUT, "a client is not answered");
            for some in clients.chunks_mut(CLIENTS_PER_SERVER_STEP) {
                for client in some.iter_mut().filter(|client| !is_answered(client, rounds)) {
                    assert_eq!(client.step().unwrap(), Step::Running);
                }
                server.step().unwrap();
            }
        }
    };
    while clients.len() < usize::from(CLIENTS) {
        let begins = clients.len();
        clients.extend((0..ACTIVE_CLIENTS).map(|_| new(u64::MAX)));
        serve(&mut clients[begins..], 1);
    }
    assert_eq!(clients.len(), usize::from(CLIENTS));
    for some in clients.chunks_mut(ACTIVE_CLIENTS) {
        serve(some, 3);
    }
    let mut late = new(1);
    let refusal = loop {
        assert!(start.elapsed() < TIMEOUT, "the last client is neither accepted nor rejected");
        server.step().unwrap();
        match late.step() {
            Ok(Step::Running) => {}
            Ok(_) => panic!("one client too many was accepted: {:?}", failures.lock().unwrap()),
            Err(error) => break error.to_string(),
        }
    };
    assert!(refusal.contains("busy with other clients"), "{refusal}");
    assert_eq!(*failures.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn perf_server_serves_4096_data_connections() {
    let _lock = alone();
    let line = "write-bw -q 4096 -n 4 -s 64 -t 2 --verify --timeout 300";
    let options @ (test, device, test_args) = &perf_options(line);
    assert_eq!(test_args.qps(), u32::from(CLIENTS));
    test_args.check(*test).unwrap();
    let (left, right, mut remote) = pair(device, test_args.qps());
    remote.set_port(perf::iwperf_options::PORT);
    let quiet = Box::new(|_: &str| {});
    let reads = IrdOrdArgs::default();
    let workers = perf::server::Server::workers(&right, remote.port(), true, TIMEOUT, reads, quiet);
    let mut server = workers.unwrap().remove(0);
    let mut client = perf_client(&left, remote, options);
    let start = Instant::now();
    while client.step().unwrap() == Step::Running {
        assert!(start.elapsed() < TIMEOUT, "the session hangs");
        let _ = server.step().unwrap();
    }
    let result = &client.results[0];
    assert_eq!((result.errors, result.bytes_verified), (0, u64::from(CLIENTS) * 4 * 64));
}
