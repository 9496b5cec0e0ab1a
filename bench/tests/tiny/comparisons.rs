//! Programs that compare the stack with something else: the bound, testpmd, other devices, other
//! stacks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferrowarp_tests::skip;

use crate::{run, run_report, stdout_of};

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
