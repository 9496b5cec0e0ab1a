//! The programs with several shards: over a pair of rings, and over shared memory between two
//! processes.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferrowarp_apps::device::Demand;
use ferrowarp_apps::ping;
use ferrowarp_apps::run_loop::{Step, Task};
use serde_json::Value;

use crate::commands::{LoopRunner, error_line, two_cores};
use crate::ping_options;
use crate::sessions::CapturedLines;

/// Limit for what takes a moment, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Sum of a member of the figures of all shards.
fn sum(result: &Value, member: &str) -> u64 {
    result["shards"].as_array().unwrap().iter().map(|shard| shard[member].as_u64().unwrap()).sum()
}

#[test]
fn tests_verify_over_two_shards() {
    let fx = LoopRunner::new();
    let cores = two_cores();
    // Queue pairs, and ends at which a message is checked.
    for (test, qps, ends) in [
        ("write-bw -q 5", 5_u64, 1),
        ("read-bw -q 5", 5, 1),
        ("send-bw -q 5", 5, 1),
        ("send-bw -q 5 -b", 5, 2),
        ("write-bw", 2, 1),
        ("write-lat", 2, 2),
        ("send-lat", 2, 2),
        ("read-lat", 2, 1),
    ] {
        let line = format!("{test} --shards 2 -s 5000 -n 200 -t 16 --verify --cores {cores}");
        let result = &fx.results(&line)[0];
        assert_eq!((&result["qps"], &result["errors"]), (&qps.into(), &0.into()), "{line}");
        let directions = if test.ends_with("-b") { 2 } else { 1 };
        assert_eq!(result["iterations"], qps * 200 * directions, "{line}");
        assert_eq!(result["bytes_verified"], 5000 * qps * 200 * ends, "{line}");
        let shards = result["shards"].as_array().unwrap();
        let numbers: Vec<_> = shards.iter().map(|shard| &shard["shard"]).collect();
        assert_eq!(numbers, [0, 1], "{line}");
        assert_eq!(shards[0]["qps"], qps.div_ceil(2), "they are spread evenly");
        assert_eq!((sum(result, "qps"), sum(result, "iterations")), (qps, qps * 200 * directions));
        assert_eq!(sum(result, "frames_forwarded"), 0, "queue i is the peer's queue i");
        for figures in shards {
            assert!(figures["bw_gbit_s"].as_f64().unwrap() > 0.0);
            assert!(figures["msg_rate_mops"].as_f64().unwrap() > 0.0);
            assert!(figures["duration_s"].as_f64() <= result["duration_s"].as_f64());
            assert_eq!(figures["lat_us"].is_object(), line.contains("lat"));
        }
        assert_eq!(result["lat_us"].is_object(), line.contains("lat"));
    }
}

#[test]
fn one_shard_reports_as_before() {
    let fx = LoopRunner::new();
    let result = &fx.results("write-bw --shards 1 -q 2 -n 50 -s 64")[0];
    assert!(result.get("shards").is_none(), "{result}");
}

#[test]
fn shards_run_every_size_together() {
    let fx = LoopRunner::new();
    let log = fx.path("latency.hlog");
    let cores = two_cores();
    let line = format!("send-lat --shards 2 -a -n 4 -t 8 --verify --cores {cores} --hdr");
    let results = fx.results(&format!("{line} {}", log.display()));
    assert_eq!(results.len(), 23);
    assert!(results.iter().all(|result| result["iterations"] == 8 && result["errors"] == 0));
    let text = std::fs::read_to_string(log).unwrap();
    assert_eq!(text.matches("Tag=send-lat-").count(), 23, "an interval for each size: {text}");
}

#[test]
fn shards_of_a_duration_end_together() {
    let fx = LoopRunner::new();
    let line = format!("write-bw --shards 2 -q 4 -D 0.3 -t 16 --cores {}", two_cores());
    let (output, report) = fx.iwperf(&line);
    let result = &report["results"][0];
    assert!(result["duration_s"].as_f64().unwrap() >= 0.29, "{result}");
    assert_eq!(sum(result, "iterations"), result["iterations"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for shard in ["   shard 0: 2 qps, ", "   shard 1: 2 qps, "] {
        assert_eq!(text.matches(shard).count(), 1, "{text}");
    }
    assert_eq!(text.matches("RDMA_Write BW Test").count(), 1, "{text}");
}

#[test]
fn wrong_numbers_of_shards_are_rejected_in_one_line() {
    let fx = LoopRunner::new();
    let core = two_cores().split(',').next().unwrap().to_owned();
    let many = vec![core.as_str(); 17].join(",");
    let path = fx.path("nobody.sock");
    let memif = format!("memif:{},client", path.display());
    for (line, expected) in [
        ("loop write-bw --shards 0".to_owned(), "give 1 to 64 shards"),
        ("loop write-bw --shards 65".to_owned(), "give 1 to 64 shards"),
        (
            format!("loop write-bw --shards 2 --cores {core}"),
            "iwperf: --cores names 1 core for 2 shards: name one for each shard, or give \
             --shards 1",
        ),
        (
            format!("loop write-bw --shards 2 --cores {core},{core},{core}"),
            "--cores names 3 cores for 2 shards",
        ),
        (
            "loop send-bw --shards 2 -q 1".to_owned(),
            "iwperf: 2 shards for 1 queue pairs: give -q 2 or more, or fewer --shards",
        ),
        (
            "loop write-bw --shards 64".to_owned(),
            "for 64 shards: give fewer --shards, or have some share a core with --cores",
        ),
        (
            format!("loop write-bw --shards 17 --cores {many}"),
            "17 queues were requested, the device has at most 16",
        ),
        (
            format!("server --dev {memif} --ip 198.18.0.1/24 --shards 17 --cores {core}"),
            "--cores names 1 core for 17 shards",
        ),
        (
            format!(
                "server --dev virtio-user:{} --ip 198.18.0.1/24 --shards 9 --cores {}",
                path.display(),
                [core.as_str(); 9].join(",")
            ),
            "9 queues were requested, the device has at most 8",
        ),
    ] {
        if line.ends_with("64") && core_affinity::get_core_ids().unwrap().len() >= 64 {
            continue;
        }
        let output = Command::new(env!("CARGO_BIN_EXE_iwperf"))
            .args(line.split_whitespace())
            .output()
            .unwrap();
        assert!(!output.status.success(), "{line}");
        let error = error_line(&output);
        assert!(error.starts_with("iwperf: ") && error.contains(expected), "{line}: {error}");
    }
}

/// A server of another process, killed if the test fails.
pub(crate) struct ServerProcess(Child);

impl ServerProcess {
    /// Starts a server and waits until it listens.
    pub(crate) fn start(line: &str) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_iwperf"))
            .args(line.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut server = Self(child);
        let mut lines = BufReader::new(server.0.stdout.as_mut().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        assert!(first.starts_with("waiting for clients"), "{first}");
        server
    }

    /// Returns whether the server succeeded, once it has ended.
    pub(crate) fn wait(&mut self) -> bool {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            assert!(start.elapsed() < TIMEOUT, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As many shards as both ends have are used, whatever their numbers.
#[test]
fn client_and_server_have_any_number_of_shards_over_memif() {
    assert_any_number_of_shards(
        |socket| format!("memif:{socket},server"),
        |socket| format!("memif:{socket},client"),
    );
}

#[test]
fn client_and_server_have_any_number_of_shards_over_vhost() {
    assert_any_number_of_shards(
        |socket| format!("vhost:{socket}"),
        |socket| format!("virtio-user:{socket}"),
    );
}

/// `server` and `client` return the devices of a socket.
fn assert_any_number_of_shards(server: fn(&str) -> String, client: fn(&str) -> String) {
    let fx = LoopRunner::new();
    let two = two_cores();
    let (one, other) = two.split_once(',').unwrap();
    let cores = |core: &str, shards: usize| vec![core; shards].join(",");
    for (server_shards, client_shards) in [(2, 2), (1, 2), (2, 1)] {
        for test in ["write-bw -q 4", "send-bw -q 4 -b"] {
            let what = format!("{test}, {client_shards} shards to {server_shards}");
            let socket = fx.path("fw.sock");
            let _ = std::fs::remove_file(&socket);
            let socket = socket.display().to_string();
            let [server_report, report] = ["server.json", "report.json"].map(|name| fx.path(name));
            let mut server = ServerProcess::start(&format!(
                "server --once --dev {} --ip 198.18.0.1/24 --timeout 60 \
                 --shards {server_shards} --cores {} --json {}",
                server(&socket),
                cores(one, server_shards),
                server_report.display()
            ));
            let (name, options) = test.split_once(' ').unwrap();
            let line = format!(
                "{name} 198.18.0.1 {options} --dev {} --ip 198.18.0.2/24 \
                 --shards {client_shards} --cores {} -n 100 -s 3000 -t 16 --verify --timeout 60 \
                 --json {}",
                client(&socket),
                cores(other, client_shards),
                report.display()
            );
            let output = Command::new(env!("CARGO_BIN_EXE_iwperf"))
                .args(line.split_whitespace())
                .output()
                .unwrap();
            assert!(output.status.success(), "{what}: {output:?}");
            assert!(server.wait(), "{what}");
            let errors = String::from_utf8(output.stderr).unwrap();
            let has_fewer = errors.contains("the peer has fewer queues: 1 of 2 shards are used");
            assert_eq!(has_fewer, server_shards < client_shards, "{what}: {errors}");
            let [server_report, report] = [server_report, report].map(|path| -> Value {
                serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
            });
            let port = &server_report["environment"]["port"];
            assert!(port["rx_frames"].as_u64().unwrap() > 100, "{what}: {server_report}");
            assert_eq!(server_report["results"], Value::Array(Vec::new()), "{what}");
            let result = &report["results"][0];
            let messages = if options.ends_with("-b") { 800 } else { 400 };
            assert_eq!((&result["iterations"], &result["errors"]), (&messages.into(), &0.into()));
            assert_eq!(result["bytes_verified"], 3000 * messages, "{what}");
            if client_shards == 1 {
                assert!(result.get("shards").is_none());
            } else {
                let used = server_shards.min(client_shards);
                assert_eq!(result["shards"].as_array().unwrap().len(), used, "{what}");
                assert_eq!(sum(result, "qps"), 4);
            }
        }
    }
}

/// Workers of both shards serve clients, and all of them together as many as were asked for.
#[test]
fn iwping_server_serves_clients_of_each_shard() {
    let _fx = LoopRunner::new();
    let (common, rounds) = ping_options("--timeout 100 -S 1000 -V");
    let demand = Demand { shards: 2, ..Demand::connections(8) };
    let (left, right) = common.device.open_pair(demand).unwrap();
    let remote = SocketAddr::new(common.device.loop_server(), common.port);
    let failures = CapturedLines::default();
    let workers = ping::ping_server::PingServer::workers(
        &right,
        &common,
        common.port.into(),
        Some(4),
        failures.hook(),
    );
    let mut workers = workers.unwrap();
    assert_eq!(workers.len(), 2);
    let new = |shard, count| {
        ping::ping_client::PingClient::on_shard(&left, shard, remote, &common, &rounds, count)
            .unwrap()
    };
    let is_served =
        |client: &ping::ping_client::PingClient| client.latencies.histogram().len() >= 3;
    // These do not finish, so that all are served at the same time.
    let mut clients: Vec<_> = (0..4).map(|index| new(index % 2, u64::MAX)).collect();
    let start = Instant::now();
    while !clients.iter().all(is_served) {
        assert!(start.elapsed() < TIMEOUT, "a client is not answered");
        for client in &mut clients {
            assert_eq!(client.step().unwrap(), Step::Running);
        }
        for worker in &mut workers {
            assert_eq!(worker.step().unwrap(), Step::Running);
        }
    }
    for shard in 0..2 {
        assert_eq!(right.shard(shard).unwrap().connection_count(), 2);
        let mut late = new(shard, 1);
        let refusal = loop {
            assert!(start.elapsed() < TIMEOUT, "neither accepted nor rejected");
            for worker in &mut workers {
                assert_eq!(worker.step().unwrap(), Step::Running);
            }
            match late.step() {
                Ok(Step::Running) => {}
                Ok(Step::Finished) => panic!("one client too many was accepted"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(refusal.contains("busy with other clients"), "{refusal}");
    }
    assert_eq!(failures.all(), Vec::<String>::new());
}
