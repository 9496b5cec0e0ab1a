//! Each benchmark program with small parameters, and properties of the workloads they measure.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{PoisonError, RwLock};

use clap::{Parser as _, ValueEnum as _};
use ferrowarp_bench::engine_pair::EnginePair;
use ferrowarp_bench::verbs_pair::VerbsPair;
use ferrowarp_bench::verbs_pair::single::SinglePair;
use ferrowarp_bench::workload::{Transfer, Workload};
use ferrowarp_tests::{netns, process, skip, skip_without};
use serde_json::Value;

const LARGE: &str = "--depth 8";
const SMALL: &str = "--size 64 --depth 128";
const SINGLE: &str = "--size 64 --depth 1";

#[derive(clap::Parser)]
struct Options {
    #[command(flatten)]
    workload: Workload,
}

/// Returns the workload with these options of the programs whose instructions are counted.
fn workload(options: &str) -> Workload {
    Options::parse_from(format!("instructions {options}").split_whitespace()).workload
}

fn stdout_of(out: Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

#[test]
fn writes_verify_for_all_workloads() {
    for plain in [LARGE, SMALL, SINGLE] {
        for link in [
            "",
            "--mtu 9000",
            "--no-timestamps",
            "--no-crc",
            "--ecn",
            "--ipv6",
            "--software-checksums",
        ] {
            let mut pair = EnginePair::connect(workload(&format!("{plain} {link}")));
            assert!(pair.transfer(Transfer::Write, 40)[0] > 0);
            assert!(pair.is_verified(), "bytes differ: {plain} {link}");
        }
        for link in ["--ecn --software-checksums", "--ecn --software-checksums --ipv6"] {
            let pair = VerbsPair::connect(workload(&format!("{plain} {link}")), false);
            let mut pair = pair.expect("a connection");
            assert!(pair.write(40) > 0);
            pair.drain();
            assert!(pair.is_verified(), "bytes differ: {plain} {link}");
        }
    }
}

#[test]
fn single_messages_verify() {
    for options in [SINGLE, LARGE] {
        for transfer in [Transfer::PingPong, Transfer::Read] {
            let mut pair = SinglePair::connect(workload(options)).expect("a connection");
            for count in [3, 40] {
                assert!(pair.transfer(transfer, count).expect("a known transfer") > 0);
                assert!(pair.is_verified(), "bytes differ: {options}, {transfer:?}");
            }
        }
    }
}

#[test]
fn segments_are_full_and_acks_are_coalesced() {
    let mut pair = EnginePair::connect(workload(LARGE));
    pair.transfer(Transfer::Write, 20);
    let [segments, acks] = pair.transfer(Transfer::Write, 100);
    // A segment of 1448 bytes carries 1428 bytes of payload.
    assert_eq!(segments, 100 * 65_536_u64.div_ceil(1428));
    assert!(acks * 8 < segments, "{acks} acks");
}

#[test]
fn steady_state_and_loss_recovery_do_not_allocate() {
    let all = Transfer::value_variants();
    for (options, lose_every, transfers) in
        [(LARGE, 0, all), (SMALL, 0, all), (LARGE, 33, &[Transfer::Write])]
    {
        for &transfer in transfers {
            let mut pair = EnginePair::connect(workload(options));
            pair.lose_every(lose_every);
            pair.transfer(transfer, 2000);
            let info = allocation_counter::measure(|| {
                let [segments, _] = pair.transfer(transfer, 500);
                let has_retransmitted = segments > 500 * 65_536 / 1428 + 500;
                assert!(has_retransmitted || lose_every == 0, "{segments} segments");
            });
            assert_eq!(info.count_total, 0, "{options}, {transfer:?}: {info:?}");
            assert!(pair.is_verified(), "bytes differ: {options}, {transfer:?}");
        }
    }
}

/// Held by the tests that start programs: shared, but alone for the one that needs idle cores.
static CORES: RwLock<()> = RwLock::new(());

/// A run of a case, with little to measure.
struct Run {
    is_success: bool,
    errors: String,
    markdown: String,
    report: Value,
}

impl Run {
    fn of(args: &str, paths: &[(&str, &Path)]) -> Self {
        let _shared = CORES.read().unwrap_or_else(PoisonError::into_inner);
        Self::start(args, paths)
    }

    fn start(args: &str, paths: &[(&str, &Path)]) -> Self {
        let folder = process::temp_dir().expect("a folder");
        let out = folder.path().join("results.md");
        let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
        command.args(args.split_whitespace()).arg("--out").arg(&out);
        for (option, path) in paths {
            command.arg(option).arg(path);
        }
        let output = command.output().expect("the program starts");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let read = |path: &Path| fs::read_to_string(path).expect(&errors);
        let report = serde_json::from_str(&read(&out.with_extension("json"))).expect("JSON");
        Self { is_success: output.status.success(), markdown: read(&out), report, errors }
    }

    /// Runs a case: a line of arguments, and a line `NAME: FIGURE` for each figure that has to be
    /// positive in the first row whose name begins so. No measurement may fail, or lack a sample.
    fn check(case: &str, bin: Option<&Path>) -> Self {
        let (args, figures) = case.split_once('\n').expect("figures");
        let run = Self::of(args, bin.map(|folder| ("--bin", folder)).as_slice());
        assert!(run.is_success, "{}", run.errors);
        for row in run.report["rows"].as_array().expect("a list") {
            assert!(!values(row, "subject").is_empty(), "{row}");
        }
        for line in figures.lines() {
            let (name, figure) = line.trim().split_once(": ").expect("a name and a figure");
            assert!(run.value(name, figure) > 0.0, "{line}: {}", run.report);
        }
        run
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
        values(rows.first().unwrap_or_else(|| panic!("{name}: {figure}")), "subject")[0]
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
    *.json) json=$word ;;
    esac
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
    let errors = &run.errors;
    assert!(!run.is_success, "the Reads failed");
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
    for case in ["bound", "one-end", "fairness", "processes", "tcp-vs-kernel", "peers", "Examples:"]
    {
        assert!(help.contains(case), "{help}");
    }
}

/// Cases with little work, and their figures (see [`Run::check`]).
const CASES: [&str; 4] = [
    "one-end --rounds 1 --seconds 0.05
     write-bw-64K-1500: source, ns per segment
     write-bw-64K-1500: sink, ns per segment
     write-bw-64K-9000: source alone, Gb/s
     write-bw-64K-9000: sink alone, Gb/s",
    "loss --rounds 1 --rate 0.05 --seconds 0.2 --single 2 --segments 200
     single: segments meanwhile, slow path at the sink
     goodput: frames lost",
    "fairness --rounds 1 --seconds 0.3 --qps 3 --rows stream,qps-64-,incast-64-
     stream: segments before a Write, most
     qps-64-: segments before a Write, most
     incast-64-: segments before a Write, most
     incast-64-: us, p99 beside the traffic",
    "connections --rounds 1 --seconds 0.05 --idle 40 --many 300 --messages 2 --set-ups 40 \
     --shards 2 --calls 20
     memory-1-: bytes allocated
     memory-64-: bytes allocated
     write-64K-beside-idle: ns per Write
     write-64-beside-idle: ns per Write
     many-connections-300: messages per second
     set-up-rate-40: ends per second
     control-calls: us, p50 of connect
     control-calls: us to drive each shard of a thread once",
];

#[test]
fn cases_report_their_figures_and_keep_the_fairness_rule() {
    for case in CASES {
        let run = Run::check(&case.replacen('\n', &format!(" {}\n", one_core()), 1), None);
        for row in run.rows("", "segments before a Write, most") {
            assert!(values(row, "subject")[0] <= values(row, "reference")[0], "{row}");
        }
    }
}

#[test]
fn devices_are_compared_pair_by_pair() {
    let Some(iwperf) = process::program("iwperf") else {
        return skip("no iwperf");
    };
    let vhost = "vhost --rounds 2 --seconds 0.1 --rows write-bw-64K-9,read-lat
                 write-bw-64K-9000: Gb/s
                 read-lat: us, p50";
    Run::check(vhost, iwperf.parent());
    // Its rows over the kernel's TCP are set up too, though not measured.
    if netns::missing_prerequisite().is_some() || process::is_installed("ethtool") {
        let processes = "processes --quick --rounds 1 --seconds 0.1 \
                         --rows write-bw-64K-65280,write-bw-1M-1500-3-runs
                         write-bw-64K-65280: Gb/s
                         write-bw-1M-1500-3-runs: Gb/s, slowest run";
        Run::check(processes, iwperf.parent());
    }
    if process::is_installed("dpdk-testpmd") {
        Run::check("testpmd --rounds 1 --seconds 0.2\nmemif-9000: Gb/s", iwperf.parent());
    }
}

#[test]
fn peers_compare_smoltcp_over_ring() {
    let folder = scripted();
    let case = "peers --peers smoltcp --rounds 2 --seconds 0.1 --sizes 64,65536
                ping-pong of 64: us, p99.9";
    let run = Run::check(case, Some(folder.path()));
    for mtu in [1500, 9000] {
        let table = format!("### smoltcp: one core over ring, MTU {mtu} without CRC and checksums");
        assert!(run.markdown.contains(&table), "{}", run.markdown);
    }
    let row = run.rows("stream of 64 KiB", "Gb/s")[0];
    assert!(values(row, "subject")[0] == 20.0 && values(row, "reference")[0] > 0.0, "{row}");
}

#[test]
fn tcp_is_compared_over_an_emulated_link() {
    let has_programs = ["iperf3", "ethtool"].into_iter().all(process::is_installed);
    let can_emulate = Path::new("/dev/net/tun").exists() && netns::missing_prerequisite().is_none();
    let (Some(iwlink), true) = (process::program("iwlink"), has_programs && can_emulate) else {
        return skip("no iwlink, iperf3, ethtool or /dev/net/tun, or not root");
    };
    let bin = iwlink.parent().expect("in a folder");
    let alone = CORES.write().unwrap_or_else(PoisonError::into_inner);
    let run = Run::start("tcp-vs-kernel --quick", &[("--bin", bin)]);
    drop(alone);
    if run.errors.contains("% late") {
        return skip_without("core idle enough for the emulator");
    }
    assert!(run.is_success, "{}", run.errors);
    let gbit_s = run.value("loss of 0.1 %", "Gb/s");
    assert!(gbit_s > 0.0 && gbit_s < 0.21, "more than the link's rate: {gbit_s}");
}

#[test]
fn instructions_counts_every_layer() {
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success()) {
        return skip("no valgrind; apt-get install valgrind");
    }
    let _shared = CORES.read().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO_BIN_EXE_instructions"));
    command.args(["--percent", "5", "--layers", "--lines", "--only", "64 bytes, 128 outstanding"]);
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
    let is_place = |line: &str| line.contains(" 100 % ") && line.contains("tcp/tx/");
    assert!(out.lines().any(is_place), "{out}");
}
