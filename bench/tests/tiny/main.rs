//! Each benchmark program with small parameters, and properties of the workloads they measure.

mod comparisons;

use std::fs;
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
            let mut pair = VerbsPair::connect(workload, false).expect("a connection");
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
