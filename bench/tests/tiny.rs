//! Each benchmark program with small parameters, and properties of the workloads they measure.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ferrowarp_bench::engine_pair::EnginePair;
use ferrowarp_bench::verbs_pair::VerbsPair;
use ferrowarp_bench::workload::{Transfer, Workload};
use ferrowarp_tests::skip;

const LARGE: Workload = Workload { depth: 8, ..Workload::PLAIN };

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().expect("the program starts")
}

fn stdout_of(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout.clone()).expect("text")
}

#[test]
fn writes_verify_for_all_workloads() {
    for mtu in [1500, 9000] {
        for (size, depth) in [(65_536, 8), (64, 128), (64, 1)] {
            for timestamps in [true, false] {
                for crc in [true, false] {
                    let workload = Workload { mtu, timestamps, crc, size, depth, ..LARGE };
                    let mut pair = EnginePair::connect(workload);
                    let counts = pair.transfer(Transfer::Write, 40);
                    assert_eq!(counts.messages, 40);
                    assert!(pair.digest().1, "bytes differ: {workload:?}");
                }
            }
        }
    }
}

#[test]
fn writes_verify_with_ecn_ipv6_and_checksums() {
    for option in 0..3 {
        for (size, depth) in [(65_536, 8), (64, 128), (64, 1)] {
            let [ecn, ipv6, software_checksums] = [0, 1, 2].map(|index| index == option);
            let workload = Workload { ecn, ipv6, software_checksums, size, depth, ..LARGE };
            let mut pair = EnginePair::connect(workload);
            assert_eq!(pair.transfer(Transfer::Write, 40).messages, 40);
            assert!(pair.digest().1, "bytes differ: {workload:?}");
        }
    }
}

#[test]
fn writes_verify_through_the_verbs() {
    for (size, depth) in [(65_536, 8), (64, 128), (64, 1)] {
        for ipv6 in [false, true] {
            let workload =
                Workload { ipv6, ecn: true, software_checksums: true, size, depth, ..LARGE };
            let mut pair = VerbsPair::connect(workload).expect("a connection");
            assert_eq!(pair.write(40).messages, 40);
            pair.drain();
            assert!(pair.digest().1, "bytes differ: {workload:?}");
        }
    }
}

#[test]
fn segments_are_full_and_acks_are_coalesced() {
    let mut pair = EnginePair::connect(LARGE);
    pair.transfer(Transfer::Write, 20);
    let counts = pair.transfer(Transfer::Write, 100);
    // A segment of 1448 bytes carries 1428 bytes of payload.
    assert_eq!(counts.segments, 100 * 65_536_u64.div_ceil(1428));
    assert!(counts.acks * 8 < counts.segments, "{counts:?}");
}

#[test]
fn steady_state_does_not_allocate() {
    for workload in [LARGE, Workload { size: 64, depth: 128, ..LARGE }] {
        for transfer in [Transfer::Write, Transfer::Send, Transfer::Read] {
            let mut pair = EnginePair::connect(workload);
            pair.transfer(transfer, 2000);
            let info = allocation_counter::measure(|| {
                pair.transfer(transfer, 500);
            });
            assert_eq!(info.count_total, 0, "{workload:?}: {info:?}");
            assert!(pair.digest().1, "bytes differ: {workload:?}");
        }
    }
}

#[test]
fn loss_recovery_does_not_allocate() {
    let mut pair = EnginePair::connect(LARGE);
    pair.lose_every(33);
    pair.transfer(Transfer::Write, 2000);
    let info = allocation_counter::measure(|| {
        let counts = pair.transfer(Transfer::Write, 500);
        assert!(counts.segments > 500 * 65_536 / 1428 + 500, "{counts:?}");
    });
    assert_eq!(info.count_total, 0, "{info:?}");
    assert!(pair.digest().1, "bytes differ");
}

#[test]
fn core_cost_prints_a_digest() {
    let out = stdout_of(&run(env!("CARGO_BIN_EXE_core-cost"), &["--count", "20"]));
    assert!(out.contains("20 messages of 65536 bytes, 920 segments"), "{out}");
    assert!(out.contains(" digest "), "{out}");
    let refused = run(env!("CARGO_BIN_EXE_core-cost"), &["--depth", "0"]);
    assert!(!refused.status.success());
}

#[test]
fn loss_counts_what_took_the_slow_path() {
    let args = "--rate 0.05 --pairs 1 --seconds 0.2 --single 2 --segments 200";
    let out = stdout_of(&run(env!("CARGO_BIN_EXE_loss"), &args.split(' ').collect::<Vec<_>>()));
    assert!(out.contains("Goodput with loss 0.05: "), "{out}");
    let slow = out.split("Meanwhile ").nth(1).and_then(|rest| rest.split(' ').next());
    let slow: f64 = slow.and_then(|text| text.parse().ok()).expect("a number");
    assert!(slow >= 1.0, "{out}");
}

/// Runs a program with a report to write; returns what it printed, the report and the JSON.
fn run_report(program: &str, args: &[&str]) -> (String, String, serde_json::Value) {
    let folder = ferrowarp_tests::process::temp_dir().expect("a folder");
    let out = folder.path().join("results.md");
    let output = Command::new(program).args(args).arg("--out").arg(&out).output();
    let printed = stdout_of(&output.expect("the program starts"));
    let report = fs::read_to_string(&out).expect("the report");
    let json = fs::read_to_string(out.with_extension("json")).expect("the samples");
    (printed, report, serde_json::from_str(&json).expect("JSON"))
}

#[test]
fn one_end_reports_both_ends() {
    let args = ["--runs", "1", "--seconds", "0.05", "--mtus", "1500"];
    let (printed, report, json) = run_report(env!("CARGO_BIN_EXE_one-end"), &args);
    assert!(report.contains(&printed) && printed.contains("| 1500 | 65536 | one | "), "{report}");
    for row in json["rows"].as_array().expect("a list") {
        let run = &row["runs"][0];
        let of = |end: &str| run[end]["ns_per_segment"].as_f64().expect("a number");
        let [source, sink] = ["source", "sink"].map(of);
        assert!(source > 0.0 && sink > 0.0, "{row}");
        // On one core the ends take turns: their times are parts of the whole.
        let whole = run["elapsed_ns"].as_f64().expect("a number")
            / run["segments"].as_f64().expect("a number");
        assert!(row["cores"].as_array().map(Vec::len) == Some(2) || source + sink < whole, "{row}");
    }
}

#[test]
fn fairness_reports_latency_beside_traffic_and_its_bound() {
    // On one core: on a busy machine the two threads would wait for each other.
    let cores = core_affinity::get_core_ids().expect("this task has a core");
    let core = cores[0].id.to_string();
    let args = "--rounds 1 --seconds 0.3 --qps 3 --cases stream,qps-64,incast-64 --cores";
    let args: Vec<&str> = args.split(' ').chain([&*core]).collect();
    let (printed, report, json) = run_report(env!("CARGO_BIN_EXE_fairness"), &args);
    assert!(report.contains(&printed), "{report}");
    for case in ["stream", "qps-64", "qps-64K", "incast-64", "incast-64K"] {
        assert!(printed.contains(&format!("| {case} | 1500 | one | 3 | ")), "{printed}");
    }
    for row in json["rows"].as_array().expect("a list") {
        let round = &row["rounds"][0];
        for latency in ["alone", "beside"] {
            assert!(round[latency]["p50_us"].as_f64() > Some(0.0), "{row}");
        }
        assert!(round["bound_us"].as_f64() > round["alone"]["p99_us"].as_f64(), "{row}");
        let segments = |name: &str| round[name].as_u64().expect("a number");
        let before = segments("segments_before_max");
        assert!(before > 0 && before <= segments("segments_allowed"), "the fairness rule: {row}");
    }
}

#[test]
fn connections_reports_every_part() {
    let args = "--rounds 1 --run-seconds 0.05 --idle 40 --many 300 --messages 2 --set-ups 40 \
                --shards 2 --calls 20 --seconds 2";
    let args: Vec<&str> = args.split_whitespace().collect();
    let folder = ferrowarp_tests::process::temp_dir().expect("a folder");
    let out = folder.path().join("results.md");
    let program = env!("CARGO_BIN_EXE_connections");
    let output = Command::new(program).args(args).arg("--out").arg(&out).output();
    let output = output.expect("the program starts");
    let json = fs::read_to_string(out.with_extension("json")).expect("the samples");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    // In two seconds memory grows to what the traffic needs; nothing else may fail.
    let failures = json["failures"].as_array().expect("a list");
    let is_growth =
        |it: &serde_json::Value| it.as_str().is_some_and(|it| it.starts_with("soak: resident"));
    assert!(failures.iter().all(is_growth), "{json}");
    assert_eq!(output.status.success(), failures.is_empty());

    let report = fs::read_to_string(&out).expect("the report");
    assert!(report.contains(std::str::from_utf8(&output.stdout).expect("text")), "{report}");
    for name in ["64 KiB", "64 bytes"] {
        let pair = &json["idle-beside-busy"]["ns_per_write"][name]["pairs"][0];
        assert!(pair[0].as_f64() > Some(0.0) && pair[1].as_f64() > Some(0.0), "{pair}");
    }
    for row in json["memory"]["rows"].as_array().expect("a list") {
        // Both ends allocate a queue pair with its slots. A connection has its place in a table
        // that is there already.
        for end in 0..2 {
            assert!(row["created"][end]["bytes"].as_f64() > Some(512.0), "{row}");
            assert!(row["connected"][end]["bytes"].is_number(), "{row}");
        }
    }
    let slots = json["memory"]["slots_bytes"].as_f64().expect("a number");
    assert!(slots >= 128.0 && slots % 64.0 == 0.0, "a slot or more in each queue: {slots}");
    let phases: Vec<&str> = json["many"]["phases"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|phase| phase["phase"].as_str())
        .collect();
    let expected = ["set up", "message 1 of each", "message 2 of each", "ended", "TIME-WAIT"];
    assert_eq!(phases, expected);
    let rates = &json["setup-rate"]["set_ups_per_second"]["pairs"][0];
    assert!(rates[0].as_f64() > Some(0.0) && rates[1].as_f64() > Some(0.0), "{rates}");
    for kind in json["control-latency"]["rounds"][0].as_array().expect("a pair") {
        assert_eq!(kind["connect"]["count"], 20, "{kind}");
        assert!(kind["deregister"]["p50_us"].as_f64() > Some(0.0), "{kind}");
        assert!(kind["drive_round_us"].as_f64() > Some(0.0), "{kind}");
    }
    let last = json["soak"]["lines"].as_array().and_then(|lines| lines.last()).expect("a line");
    let count = |name: &str| last[name].as_u64().expect("a number");
    assert_eq!(count("made"), count("ended") + count("broken"), "{last}");
    assert!(count("verified_bytes") > 0 && count("connections") == 0, "{last}");
}

#[test]
fn testpmd_is_compared_over_memif_and_tap() {
    let Some(iwperf) = ferrowarp_tests::process::program("iwperf") else {
        return skip("no iwperf");
    };
    let iwperf = iwperf.to_str().expect("UTF-8");
    let args = ["--pairs", "1", "--seconds", "0.2", "--iwperf", iwperf];
    let program = env!("CARGO_BIN_EXE_testpmd");
    if let Some(reason) = ferrowarp_bench::testpmd::program::missing_prerequisite() {
        // Without root nothing installs it; the program says how.
        let folder = ferrowarp_tests::process::temp_dir().expect("a folder");
        let out = folder.path().join("results.md");
        let mut command = Command::new(program);
        let refused = command.args(args).arg("--out").arg(&out).output().expect("it starts");
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && errors.contains(&reason), "{errors}");
        return;
    }
    let (_, report, json) = run_report(program, &args);
    assert!(report.contains("| memif-9000 | Gb/s | "), "{report}");
    for row in json["rows"].as_array().expect("a list") {
        assert!(row["share"]["median"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn vhost_is_compared_with_memif() {
    let Some(iwperf) = ferrowarp_tests::process::program("iwperf") else {
        return skip("no iwperf");
    };
    let iwperf = iwperf.to_str().expect("UTF-8");
    let args = ["--pairs", "2", "--seconds", "0.1", "--iwperf", iwperf, "--rows"];
    let program = env!("CARGO_BIN_EXE_vhost");
    let rows = [&args[..], &["write-bw-64K-9,read-lat"]].concat();
    let (printed, report, json) = run_report(program, &rows);
    assert!(report.ends_with(&printed), "{report}");
    for row in ["| write-bw-64K-9000 | Gb/s | ", "| read-lat-64-1500 | us, p50 | "] {
        assert!(printed.contains(row), "{printed}");
    }
    let rows = json["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 2, "{json}");
    for row in rows {
        assert_eq!(row["pairs"].as_array().map(Vec::len), Some(2), "{row}");
        assert!(row["ratio"]["median"].as_f64() > Some(0.0), "{row}");
    }
    let refused = run(program, &[&args[..], &["send-bw"]].concat());
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(errors.contains("choose from write-bw-64K-1500, write-bw-64K-9000"), "{errors}");
}

#[test]
fn crc_prints_a_line_for_each_implementation() {
    let out = stdout_of(&run(env!("CARGO_BIN_EXE_crc"), &["--samples", "1"]));
    for name in ["dispatched", "portable", "crate crc-fast", "crate crc32c", "digest"] {
        assert!(out.lines().any(|line| line.starts_with(name)), "{out}");
    }
}

#[test]
fn instructions_counts_every_layer() {
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success()) {
        return skip("no valgrind; apt-get install valgrind");
    }
    let args = ["--percent", "5", "--only", "64 bytes, 128 outstanding"];
    let out = stdout_of(&run(env!("CARGO_BIN_EXE_instructions"), &args));
    let number = |row: &str, column: usize| {
        let row = out.lines().find(|line| line.starts_with(&format!("| {row} |")));
        let value = row.and_then(|row| row.split('|').nth(column)).expect("a result");
        let value = value.split_whitespace().next().expect("a number");
        value.parse::<f64>().expect("a number")
    };
    let both = ["both ends, core", "both ends, post to completion"];
    // The last is counted from post to completion alone.
    for row in both.into_iter().chain(["sink", "tcp", "rdmap", "crc", "queues"]) {
        assert!(number(row, 2) > 0.0, "{out}");
    }
    let case = "64 bytes, 128 outstanding, ECN";
    assert!(number(case, 3) > 0.0 && number(case, 4) > 0.0, "{out}");
    assert!(out.contains("| lines of state per train |"), "{out}");
}

/// In place of iwperf: writes a result at once, fails for Reads, opens no device.
const SCRIPT: &str = r#"#!/bin/sh
for word; do
    case $word in read-*) echo "no such measurement" >&2; exit 3 ;; esac
done
while [ $# -gt 1 ]; do
    [ "$1" = --json ] && json=$2
    shift
done
echo '{"results": [{"bw_gbit_s": 20, "msg_rate_mops": 1.0, "checksum": "none", "errors": 0,
    "lat_us": {"p50": 2, "p99": 3}}]}' >"$json"
"#;

/// Writes [`SCRIPT`] to `folder`.
fn script_in(folder: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;

    let script = folder.join("iwperf");
    fs::write(&script, SCRIPT).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
        .expect("the script can be made executable");
    script
}

#[test]
fn bound_compares_pair_by_pair_and_reports_failures() {
    let folder = ferrowarp_tests::process::temp_dir().expect("a folder");
    let script = script_in(folder.path());
    let out = folder.path().join("results.md");
    let cores = core_affinity::get_core_ids().expect("this task has a core");
    let core = cores[0].id.to_string();
    let bound = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_bound"))
            .args([Path::new("--iwperf"), &script, Path::new("--before"), &script])
            .args([Path::new("--out"), &out])
            .args(["--cores", &core, "--seconds", "0.002", "--pairs", "2"])
            .args(args)
            .output()
            .expect("the program starts")
    };
    let output = bound(&["--rows", "write-bw-64K-1500,write-bw-64-,read-bw-64K-1500"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "the Reads failed");
    assert!(errors.contains("pair 2 of 2, write-bw-64K-1500-one: frozen bound "), "{errors}");
    assert!(errors.contains("failed: read-bw-64K-1500-one, pair 1: read-bw: "), "{errors}");
    let text = fs::read_to_string(&out).expect("the table");
    assert!(text.contains("| read-bw-64K-1500-one | failed |"), "{text}");
    let equal = "| write-bw-64-1500-one | write-bw 1.00 M/s | write-bw of the other iwperf 1.00 | \
                 1.000 | 1.000 to 1.000 (50.0 %) | at least 2.30 | open | 2 |";
    assert!(text.contains(equal), "{text}");
    let json = fs::read_to_string(out.with_extension("json")).expect("the samples");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let row = &json["rows"][0];
    assert!(row["frozen_bound_crc"].as_str().is_some_and(|crc| crc.contains("crc")), "{row}");
    for pair in row["pairs"].as_array().expect("a list") {
        for contender in ["frozen bound", "best bound"] {
            assert!(pair[contender]["gbit_s"].as_f64() > Some(0.0), "{row}");
        }
        assert_eq!(pair["write-bw"]["gbit_s"], 20.0, "{row}");
    }
    assert!(stdout_of(&bound(&["--list"])).contains("write-bw-4K-9000-one\n"));
    assert!(!bound(&["--rows", "read-lat"]).status.success(), "there is one core");
}

#[test]
fn baseline_writes_tables_and_reports_failures() {
    let folder = ferrowarp_tests::process::temp_dir().expect("a folder");
    let script = script_in(folder.path());
    let out = folder.path().join("results.md");
    let output = Command::new(env!("CARGO_BIN_EXE_baseline"))
        .arg("--iwperf")
        .arg(&script)
        .arg("--out")
        .arg(&out)
        .args(["--seconds", "0.01", "--bare-seconds", "0.001", "--promise-seconds", "0.01"])
        .args(["--rounds", "2", "--sizes", "64,65536", "--places", "one", "--no-instructions"])
        .output()
        .expect("the program starts");
    let text = fs::read_to_string(&out).expect("the tables");
    let plot = fs::read_to_string(folder.path().join("baseline.svg")).expect("the plot");
    assert!(!output.status.success(), "the Reads failed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("failed: read-bw, 64 bytes"), "{errors}");
    assert!(errors.contains("no such measurement"), "{errors}");
    assert!(text.contains("| write-bw, Gb/s | 20.00 (1.00 M/s) | 20.0 ("), "{text}");
    assert!(text.contains("| 1500 | at least 12 | 20.00 | 20.00 to 20.00 |"), "{text}");
    assert!(text.contains("| send-lat, us | 2.00 (p99 3.00) |"), "{text}");
    assert!(text.contains("| read-lat, us | failed |"), "{text}");
    assert!(plot.contains("MTU 9000") && plot.contains("frozen bound"), "{plot}");
}

#[test]
fn tcp_vs_kernel_quick_run_writes_report() {
    let path = ferrowarp_tests::process::program("iwlink");
    let tun = Path::new("/dev/net/tun").exists();
    let (Some(iwlink), true, None) = (path, tun, ferrowarp_tests::netns::missing_prerequisite())
    else {
        return skip("no iwlink, no /dev/net/tun, or not root");
    };
    let folder = ferrowarp_tests::process::temp_dir().expect("a folder");
    let out = folder.path().join("versus.md");
    let output = Command::new(env!("CARGO_BIN_EXE_tcp-vs-kernel"))
        .args(["--quick", "--bin"])
        .arg(iwlink.parent().expect("in a folder"))
        .arg("--out")
        .arg(&out)
        .output()
        .expect("the program starts");
    stdout_of(&output);
    let text = fs::read_to_string(&out).expect("the tables");
    assert!(
        text.contains("| loss each way | kernel to kernel | ours to kernel | kernel to ours |")
    );
    assert!(text.contains("| ipv4.tcp_sack | 1 |"), "{text}");
    assert!(!text.contains("failed"), "{text}");
    let json = fs::read_to_string(out.with_extension("json")).expect("the results");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let results = json["goodput"].as_array().expect("a list");
    assert_eq!(results.len(), 3);
    for result in results {
        let gbit_s = result["median_gbit_s"].as_f64().expect("a result");
        assert!(gbit_s > 0.0 && gbit_s < 0.2, "{result}");
    }
    for connections in json["connections"].as_array().expect("a list") {
        assert!(connections["per_second"][0].as_f64() > Some(0.0), "{connections}");
    }
    let plot = fs::read_to_string(out.with_extension("svg")).expect("the plot");
    assert!(plot.contains("round trip 1 ms") && plot.contains("ours to kernel"));
}

/// In place of iwperf, like smoltcp-loop in its results.
const IWPERF: &str = r#"#!/bin/sh
lat=null
for word; do
    case $word in *-lat) lat='{"p50": 1, "p90": 2, "p99": 3, "p999": 4}' ;; esac
done
while [ $# -gt 1 ]; do
    [ "$1" = --json ] && json=$2
    shift
done
echo "{\"results\": [{\"bw_gbit_s\": 20, \"msg_rate_mops\": 1.0, \"errors\": 0, \"lat_us\": $lat,
    \"duration_s\": 1, \"iterations\": 1000}]}" >"$json"
"#;

#[test]
fn bench_peers_compares_smoltcp_over_ring() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = ferrowarp_tests::process::temp_dir().expect("a folder");
    let iwperf = folder.path().join("iwperf");
    fs::write(&iwperf, IWPERF).expect("a script");
    fs::set_permissions(&iwperf, fs::Permissions::from_mode(0o755))
        .expect("the script can be made executable");
    let smoltcp = folder.path().join("smoltcp-loop");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_smoltcp-loop"), smoltcp).expect("a link");
    let readme = folder.path().join("README.md");
    fs::write(&readme, "<!-- bench-peers: begin -->\n<!-- bench-peers: end -->\n").expect("a file");
    let out = folder.path().join("results.md");
    let output = Command::new(env!("CARGO_BIN_EXE_bench-peers"))
        .args(["--peers", "smoltcp", "--rounds", "2", "--seconds", "0.05", "--sizes", "64,65536"])
        .arg("--bin")
        .arg(folder.path())
        .arg("--out")
        .arg(&out)
        .arg("--readme")
        .arg(&readme)
        .output()
        .expect("the program starts");
    stdout_of(&output);
    let text = fs::read_to_string(&out).expect("the tables");
    for expected in [
        "## smoltcp: one core, MTU 1500, no CRC",
        "## smoltcp: one core, MTU 9000, no CRC",
        "![smoltcp: one core, MTU 9000, no CRC](results-one-core-9000.svg)",
        "| ferrowarp | **20.0**, 20.0 to 20.0 | **20.0**, 20.0 to 20.0 |",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    assert!(!text.contains("failed"), "{text}");
    let readme = fs::read_to_string(&readme).expect("a file");
    assert!(readme.contains("| ferrowarp / smoltcp | "), "{readme}");
    assert!(folder.path().join("results-one-core-1500.svg").exists(), "no plot");
    let json = fs::read_to_string(out.with_extension("json")).expect("the results");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let smoltcp = &json["comparisons"][0]["peers"][1];
    assert_eq!(smoltcp["name"], "smoltcp");
    let results = smoltcp["results"].as_array().expect("a list");
    assert_eq!(results.len(), 3);
    for result in &results[..2] {
        for round in result["rounds"].as_array().expect("a list") {
            assert!(round["gbit_s"].as_f64() > Some(0.0), "{result}");
        }
    }
    assert!(results[2]["rounds"][0]["p999_us"].as_f64() > Some(0.0), "{}", results[2]);
}
