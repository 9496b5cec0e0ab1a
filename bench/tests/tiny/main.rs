//! Each benchmark program with small parameters, and properties of the workloads they measure.

use std::borrow::Cow;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use ferrowarp_bench::engine_pair::EnginePair;
use ferrowarp_bench::verbs_pair::VerbsPair;
use ferrowarp_bench::workload::{Transfer, Workload};
use ferrowarp_tests::{process, skip, skip_without};
use serde_json::Value;

const LARGE: Workload = Workload { depth: 8, ..Workload::PLAIN };
const SMALL: Workload = Workload { size: 64, depth: 128, ..Workload::PLAIN };
const SINGLE: Workload = Workload { depth: 1, ..SMALL };

fn stdout_of(out: Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

#[test]
fn writes_verify_for_all_workloads() {
    for plain in [LARGE, SMALL, SINGLE] {
        for workload in [
            plain,
            Workload { mtu: 9000, ..plain },
            Workload { timestamps: false, ..plain },
            Workload { crc: false, ..plain },
            Workload { ecn: true, ..plain },
            Workload { ipv6: true, ..plain },
            Workload { software_checksums: true, ..plain },
        ] {
            let mut pair = EnginePair::connect(workload);
            assert!(pair.transfer(Transfer::Write, 40)[0] > 0);
            assert!(pair.is_verified(), "bytes differ: {workload:?}");
        }
        for ipv6 in [false, true] {
            let workload = Workload { ipv6, ecn: true, software_checksums: true, ..plain };
            let mut pair = VerbsPair::connect(workload, false).expect("a connection");
            assert!(pair.write(40) > 0);
            pair.drain();
            assert!(pair.is_verified(), "bytes differ: {workload:?}");
        }
    }
}

#[test]
fn segments_are_full_and_acks_are_coalesced() {
    let mut pair = EnginePair::connect(LARGE);
    pair.transfer(Transfer::Write, 20);
    let [segments, acks] = pair.transfer(Transfer::Write, 100);
    // A segment of 1448 bytes carries 1428 bytes of payload.
    assert_eq!(segments, 100 * 65_536_u64.div_ceil(1428));
    assert!(acks * 8 < segments, "{acks} acks");
}

#[test]
fn steady_state_and_loss_recovery_do_not_allocate() {
    for (workload, transfer, lose_every) in [
        (LARGE, Transfer::Write, 0),
        (LARGE, Transfer::Send, 0),
        (LARGE, Transfer::Read, 0),
        (SMALL, Transfer::Write, 0),
        (SMALL, Transfer::Send, 0),
        (SMALL, Transfer::Read, 0),
        (LARGE, Transfer::Write, 33),
    ] {
        let mut pair = EnginePair::connect(workload);
        pair.lose_every(lose_every);
        pair.transfer(transfer, 2000);
        let info = allocation_counter::measure(|| {
            let [segments, _] = pair.transfer(transfer, 500);
            let has_retransmitted = segments > 500 * 65_536 / 1428 + 500;
            assert!(has_retransmitted || lose_every == 0, "{segments} segments");
        });
        assert_eq!(info.count_total, 0, "{workload:?}, {transfer:?}: {info:?}");
        assert!(pair.is_verified(), "bytes differ: {workload:?}, {transfer:?}");
    }
}

/// A run of a case, with little to measure.
struct Run {
    output: Output,
    markdown: String,
    report: Value,
}

impl Run {
    fn of(args: &str, paths: &[(&str, &Path)]) -> Self {
        let folder = process::temp_dir().expect("a folder");
        let out = folder.path().join("results.md");
        let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
        command.args(args.split_whitespace()).arg("--out").arg(&out);
        for (option, path) in paths {
            command.arg(option).arg(path);
        }
        let output = command.output().expect("the program starts");
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let report = serde_json::from_str(&read(&out.with_extension("json"))).unwrap_or_default();
        let run = Self { markdown: read(&out), report, output };
        assert!(run.report.is_object(), "no results: {}", run.errors());
        run
    }

    fn errors(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.output.stderr)
    }

    /// Fails if a measurement did, or lacks a sample.
    fn check(self) -> Self {
        assert!(self.output.status.success(), "{}", self.errors());
        for row in self.report["rows"].as_array().expect("a list") {
            assert!(!values(row, "subject").is_empty(), "{row}");
        }
        self
    }

    fn rows(&self, name: &str, figure: &str) -> Vec<&Value> {
        let rows = self.report["rows"].as_array().expect("a list");
        let is_it = |row: &&Value| {
            row["name"].as_str().is_some_and(|it| it.starts_with(name)) && row["figure"] == figure
        };
        rows.iter().filter(is_it).collect()
    }

    fn value(&self, name: &str, figure: &str) -> f64 {
        let rows = self.rows(name, figure);
        *values(rows.first().expect(figure), "subject").first().expect("a sample")
    }
}

fn values(row: &Value, of: &str) -> Vec<f64> {
    let values = row[of]["values"].as_array().into_iter().flatten();
    values.filter_map(Value::as_f64).collect()
}

/// Instead of iwperf: writes a result at once, fails for Reads, opens no device.
const SCRIPT: &str = r#"#!/bin/sh
lat=null
for word; do
    case $word in
    read-*) echo "no such measurement" >&2; exit 3 ;;
    *-lat) lat='{"p50": 1, "p90": 2, "p99": 3, "p999": 4}' ;;
    esac
done
while [ $# -gt 1 ]; do
    [ "$1" = --json ] && json=$2
    shift
done
echo "{\"results\": [{\"bw_gbit_s\": 20, \"msg_rate_mops\": 1.0, \"errors\": 0, \"lat_us\": $lat,
    \"checksum\": \"none\"}]}" >"$json"
"#;

/// A folder with [`SCRIPT`] as iwperf.
fn scripted() -> process::TempDir {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = process::temp_dir().expect("a folder");
    let script = folder.path().join("iwperf");
    fs::write(&script, SCRIPT).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("an own file");
    folder
}

/// This task's first core: on a busy machine two threads would wait for each other.
fn one_core() -> String {
    let cores = core_affinity::get_core_ids().expect("this task has a core");
    format!("--cores {}", cores[0].id)
}

#[test]
fn bound_compares_round_by_round_and_reports_failures() {
    let folder = scripted();
    let before = folder.path().join("iwperf");
    let paths = [("--bin", folder.path()), ("--before", &*before)];
    let rows = "write-bw-64K-1500,write-bw-64-,read-bw-64K-1500";
    let args = format!("bound --seconds 0.002 --rounds 2 {} --rows {rows}", one_core());
    let run = Run::of(&args, &paths);
    let errors = run.errors();
    assert!(!run.output.status.success(), "the Reads failed");
    assert!(errors.contains("round 2 of 2, write-bw-64K-1500-one: frozen bound "), "{errors}");
    assert!(run.markdown.contains("row: read-bw: ") || errors.contains("read-bw: "), "{errors}");
    let equal = "| M/s | write-bw 1.00 | write-bw of the other iwperf 1.00 | 1.00 (1.00 to 1.00) | \
                 at least 2.3 | open | 2 |";
    assert!(run.markdown.contains(equal), "{}", run.markdown);
    for row in run.rows("write-bw-64K-1500-one", "Gb/s") {
        assert!(values(row, "subject") == [20.0; 2] && values(row, "reference")[0] > 0.0, "{row}");
    }
    assert!(run.markdown.contains("the CRC of the frozen bound is crc"), "{}", run.markdown);
}

#[test]
fn rows_are_listed_and_unknown_ones_refused() {
    let folder = scripted();
    let bench = |args: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
        command.args(args.split(' ')).arg("--bin").arg(folder.path()).output().expect("it starts")
    };
    assert!(stdout_of(bench("bound --list")).contains("write-bw-4K-9000-one\n"));
    let errors = bench("vhost --rows send-bw").stderr;
    let errors = String::from_utf8_lossy(&errors);
    assert!(errors.contains("choose from write-bw-64K-1500, write-bw-64K-9000"), "{errors}");
    let help = stdout_of(bench("--help"));
    for case in ["bound", "one-end", "fairness", "tcp-vs-kernel", "peers", "Examples:"] {
        assert!(help.contains(case), "{help}");
    }
}

/// Cases with little work, and figures that they have to report, of rows whose names begin so.
const CASES: [(&str, &[(&str, &str)]); 3] = [
    (
        "one-end --seconds 0.05",
        &[
            ("write-bw-64K-1500", "source, ns per segment"),
            ("write-bw-64K-1500", "sink, ns per segment"),
            ("write-bw-64K-9000", "source alone, Gb/s"),
            ("write-bw-64K-9000", "sink alone, Gb/s"),
        ],
    ),
    (
        "loss --rate 0.05 --seconds 0.2 --single 2 --segments 200",
        &[("single", "segments meanwhile, slow path at the sink"), ("goodput", "frames lost")],
    ),
    (
        "connections --seconds 0.05 --idle 40 --many 300 --messages 2 --set-ups 40 --shards 2 \
         --calls 20",
        &[
            ("memory-1-", "bytes allocated"),
            ("memory-64-", "bytes allocated"),
            ("write-64K-beside-idle", "ns per Write"),
            ("write-64-beside-idle", "ns per Write"),
            ("many-connections-300", "messages per second"),
            ("set-up-rate-40", "ends per second"),
            ("control-calls", "us, p50 of connect"),
            ("control-calls", "us to drive each shard of a thread once"),
        ],
    ),
];

#[test]
fn cases_report_their_figures() {
    for (args, figures) in CASES {
        let run = Run::of(&format!("{args} --rounds 1 {}", one_core()), &[]).check();
        for (name, figure) in figures {
            assert!(run.value(name, figure) > 0.0, "{name}, {figure}: {}", run.report);
        }
    }
}

#[test]
fn fairness_keeps_its_rule() {
    let args = "fairness --rounds 1 --seconds 0.3 --qps 3 --rows stream,qps-64-,incast-64-";
    let run = Run::of(&format!("{args} {}", one_core()), &[]).check();
    let rows = run.rows("", "segments before a Write, most");
    assert_eq!(rows.len(), 3, "{}", run.report);
    for row in rows {
        let (most, allowed) = (values(row, "subject")[0], values(row, "reference")[0]);
        assert!(most > 0.0 && most <= allowed, "the fairness rule: {row}");
    }
    assert_eq!(run.rows("", "us, p99 beside the traffic").len(), 3);
}

#[test]
fn devices_are_compared_pair_by_pair() {
    let Some(iwperf) = process::program("iwperf") else {
        return skip("no iwperf");
    };
    let bin = iwperf.parent().expect("in a folder");
    let args = "vhost --rounds 2 --seconds 0.1 --rows write-bw-64K-9,read-lat";
    let run = Run::of(args, &[("--bin", bin)]).check();
    assert_eq!(run.rows("", "Gb/s").len() + run.rows("", "us, p50").len(), 2, "{}", run.report);
    if !process::is_installed("dpdk-testpmd") {
        return;
    }
    let run = Run::of("testpmd --rounds 1 --seconds 0.2", &[("--bin", bin)]).check();
    assert!(run.value("memif-9000", "Gb/s") > 0.0);
}

#[test]
fn peers_compare_smoltcp_over_ring() {
    let folder = scripted();
    let args = "peers --peers smoltcp --rounds 2 --seconds 0.1 --sizes 64,65536";
    let run = Run::of(args, &[("--bin", folder.path())]).check();
    for mtu in [1500, 9000] {
        let table = format!("### smoltcp: one core over ring, MTU {mtu} without CRC and checksums");
        assert!(run.markdown.contains(&table), "{}", run.markdown);
    }
    let row = run.rows("stream of 64 KiB", "Gb/s")[0];
    assert!(values(row, "subject")[0] == 20.0 && values(row, "reference")[0] > 0.0, "{row}");
    assert!(!run.rows("ping-pong of 64", "us, p99.9").is_empty(), "{}", run.report);
}

#[test]
fn tcp_is_compared_over_an_emulated_link() {
    let path = process::program("iwlink");
    let tun = Path::new("/dev/net/tun").exists();
    let (Some(iwlink), true, None) = (path, tun, ferrowarp_tests::netns::missing_prerequisite())
    else {
        return skip("no iwlink, no /dev/net/tun, or not root");
    };
    if !["iperf3", "ethtool"].into_iter().all(process::is_installed) {
        return skip("no iperf3 or no ethtool; apt-get install iperf3 ethtool");
    }
    let bin = iwlink.parent().expect("in a folder");
    let run = Run::of("tcp-vs-kernel --quick", &[("--bin", bin)]);
    if run.errors().contains("% late") {
        return skip_without("core idle enough for the emulator");
    }
    let run = run.check();
    let gbit_s = run.value("loss of 0.1 %", "Gb/s");
    assert!(gbit_s > 0.0 && gbit_s < 0.21, "more than the link's rate: {gbit_s}");
}

#[test]
fn instructions_counts_every_layer() {
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success()) {
        return skip("no valgrind; apt-get install valgrind");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_instructions"));
    command.args(["--percent", "5", "--layers", "--only", "64 bytes, 128 outstanding"]);
    let out = stdout_of(command.output().expect("the program starts"));
    // The last is counted from post to completion alone.
    for layer in ["both ends, core", "both ends, post to completion", "sink", "tcp", "crc", "shard"]
    {
        let row = out.lines().find(|line| line.starts_with(&format!("| {layer} |")));
        let value = row.and_then(|row| row.split('|').nth(2)).expect("a result").trim();
        assert!(value.parse::<f64>().is_ok_and(|value| value > 0.0), "{out}");
    }
    for figure in ["core\t64 bytes, 128 outstanding, ECN\t", "state lines, source\t64 bytes, 128"] {
        assert!(out.lines().any(|line| line.starts_with(figure)), "{out}");
    }
}
