//! The programs as a user runs them, over a pair of rings in one process: neither root nor huge
//! pages nor a network are needed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::RwLockReadGuard;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::with_others;

const TESTS: [&str; 6] = ["write-bw", "read-bw", "send-bw", "write-lat", "read-lat", "send-lat"];

/// A folder that is removed after the test.
pub(crate) struct LoopRunner {
    folder: TempDir,
    _shared: RwLockReadGuard<'static, ()>,
}

impl LoopRunner {
    pub(crate) fn new() -> Self {
        Self { _shared: with_others(), folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `iwperf loop` and returns what it printed and the parsed report.
    pub(crate) fn iwperf(&self, line: &str) -> (Output, Value) {
        self.iwperf_command(&format!("loop {line}"))
    }

    /// As [`LoopRunner::iwperf`], with any subcommand.
    fn iwperf_command(&self, line: &str) -> (Output, Value) {
        let report = self.path("report.json");
        let output = Command::new(env!("CARGO_BIN_EXE_iwperf"))
            .args(line.split_whitespace())
            .arg("--json")
            .arg(&report)
            .output()
            .unwrap();
        let text = std::fs::read_to_string(&report)
            .unwrap_or_else(|_| panic!("iwperf {line} wrote no report: {output:?}"));
        (output, serde_json::from_str(&text).unwrap())
    }

    /// Like [`LoopRunner::iwperf`] for a run that must succeed; returns its results.
    pub(crate) fn results(&self, line: &str) -> Vec<Value> {
        let (output, report) = self.iwperf(line);
        assert!(output.status.success(), "iwperf loop {line}: {output:?}");
        assert!(report["failure"].is_null(), "{report}");
        report["results"].as_array().unwrap().clone()
    }
}

pub(crate) fn error_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let errors: Vec<&str> =
        text.lines().filter(|line| !line.trim_start().starts_with("WARN")).collect();
    assert_eq!(errors.len(), 1, "one line, not: {text}");
    errors[0].to_owned()
}

/// Two cores of this machine, or one twice.
pub(crate) fn two_cores() -> String {
    let cores = core_affinity::get_core_ids().unwrap();
    format!("{},{}", cores[0].id, cores[cores.len() - 1].id)
}

#[test]
fn six_tests_verify_on_one_and_two_cores() {
    let fx = LoopRunner::new();
    let two = two_cores();
    let one = two.split(',').next().unwrap();
    for cores in [one, &two] {
        for test in TESTS {
            let iterations = 300;
            let line = format!("{test} -s 5000 -n {iterations} -t 16 --verify --cores {cores}");
            let results = fx.results(&line);
            let result = &results[0];
            assert_eq!(result["test"], test);
            assert_eq!(result["iterations"], iterations);
            assert_eq!(result["errors"], 0);
            // A ping-pong is checked at both ends.
            let ways = if ["write-lat", "send-lat"].contains(&test) { 2 } else { 1 };
            assert_eq!(result["bytes_verified"], 5000 * iterations * ways, "{line}");
            assert_eq!(result["lat_us"].is_object(), test.ends_with("lat"));
            assert!(result["bw_gbit_s"].as_f64().unwrap() > 0.0);
        }
    }
}

#[test]
fn bidirectional_run_with_four_queue_pairs_verifies() {
    let fx = LoopRunner::new();
    for test in &TESTS[..3] {
        let line = format!("{test} -q 4 -b -n 100 -s 3000 -t 8 --verify --mtu 9000");
        let result = &fx.results(&line)[0];
        assert_eq!(result["iterations"], 4 * 2 * 100, "{line}");
        assert_eq!(result["bytes_verified"], 4 * 2 * 100 * 3000, "{line}");
        assert_eq!((&result["qps"], &result["mtu"]), (&Value::from(4), &Value::from(9000)));
    }
}

#[test]
fn largest_packets_verify() {
    let fx = LoopRunner::new();
    for line in ["write-bw -s 1", "write-bw -s 1M", "read-bw -s 1M", "send-lat -s 200K"] {
        let result = &fx.results(&format!("{line} -n 30 -t 8 --verify --mtu 65280"))[0];
        assert_eq!((&result["errors"], &result["mtu"]), (&0.into(), &65280.into()), "{line}");
    }
}

#[test]
fn queue_pairs_share_a_buffer() {
    let fx = LoopRunner::new();
    for test in &TESTS[..3] {
        let result = &fx.results(&format!("{test} -q 32 -n 50 -s 4K -t 4 --shared-buffer"))[0];
        assert_eq!((&result["iterations"], &result["errors"]), (&(32 * 50).into(), &0.into()));
    }
}

#[test]
fn atomic_tests_fetch_consecutive_values() {
    let fx = LoopRunner::new();
    for (line, words, ends) in [
        ("atomic-lat", 1, 1),
        ("atomic-lat -A CMP_AND_SWAP", 1, 1),
        ("atomic-bw -A FETCH_AND_ADD -q 3 -t 16", 3, 1),
        ("atomic-bw -A CMP_AND_SWAP -b", 1, 2),
    ] {
        let result = &fx.results(&format!("{line} -n 300 --verify"))[0];
        assert_eq!((&result["size_bytes"], &result["errors"]), (&8.into(), &0.into()), "{line}");
        assert_eq!(result["iterations"], 300 * words * ends, "{line}");
        // Everything that was fetched, and each word in the end.
        assert_eq!(result["bytes_verified"], 8 * words * ends * (300 + 1), "{line}");
        assert_eq!(result["lat_us"].is_object(), line.starts_with("atomic-lat"));
    }
    for test in ["atomic-bw", "atomic-lat"] {
        let result = &fx.results(&format!("{test} -D 0.1"))[0];
        assert!(result["iterations"].as_u64().unwrap() > 0, "{test}");
    }
}

#[test]
fn write_with_imm_is_counted_at_sink() {
    let fx = LoopRunner::new();
    for more in ["", "--verify", "-b -q 2 --verify"] {
        let line = format!("write-bw --write-with-imm -s 5000 -n 300 -t 16 {more}");
        let result = &fx.results(&line)[0];
        let messages = if more.starts_with("-b") { 4 * 300 } else { 300 };
        assert_eq!((&result["iterations"], &result["errors"]), (&messages.into(), &0.into()));
        let verified = if more.is_empty() { 0 } else { 5000 * messages };
        assert_eq!(result["bytes_verified"], verified, "{line}");
    }
}

#[test]
fn all_option_runs_every_size() {
    let fx = LoopRunner::new();
    for test in ["write-bw", "send-bw", "read-lat", "send-lat"] {
        let results = fx.results(&format!("{test} -a -n 3 -t 16 --verify"));
        let sizes: Vec<u64> = results.iter().map(|r| r["size_bytes"].as_u64().unwrap()).collect();
        let expected: Vec<u64> = (1..=23).map(|bits| 1 << bits).collect();
        assert_eq!(sizes, expected);
        assert!(results.iter().all(|result| result["errors"] == 0));
    }
}

#[test]
fn duration_bounds_run_and_options_are_in_json() {
    let fx = LoopRunner::new();
    for test in TESTS {
        let result = &fx.results(&format!("{test} -D 0.2 --no-crc --checksum"))[0];
        let seconds = result["duration_s"].as_f64().unwrap();
        assert!(seconds >= 0.19, "{test} took {seconds} s");
        assert_eq!((&result["crc"], &result["checksum"]), (&false.into(), &"software".into()));
    }
}

#[test]
fn checksum_modes_are_reported_and_refused_where_nobody_offers_them() {
    let fx = LoopRunner::new();
    for (option, kind) in [("", "none"), ("--checksum=none", "none"), ("--checksum", "software")] {
        let result = &fx.results(&format!("write-bw -n 10 {option}"))[0];
        assert_eq!(result["checksum"], kind, "{option}");
    }
    let (output, _) = fx.iwperf("write-bw -n 10 --checksum=offload");
    let error = error_line(&output);
    assert!(error.contains("ring: the port does not compute TCP checksums"), "{error}");
}

#[test]
fn hdr_option_writes_histogram_log() {
    let fx = LoopRunner::new();
    let log = fx.path("latency.hlog");
    fx.results(&format!("send-lat -s 64 -n 500 --hdr {}", log.display()));
    let text = std::fs::read_to_string(log).unwrap();
    assert!(text.contains("Tag=send-lat-64,"), "{text}");
}

#[test]
fn failure_prints_one_line_and_writes_json() {
    let fx = LoopRunner::new();
    let (output, report) = fx.iwperf("write-bw --cores 99999");
    assert_eq!(output.status.code(), Some(1));
    let line = error_line(&output);
    assert!(line.starts_with("iwperf: core 99999 cannot be used"), "{line}");
    assert_eq!(report["results"][0]["errors"], 1);
    assert!(report["failure"].as_str().unwrap().contains("core 99999"));
}

#[test]
fn server_writes_json_after_a_failure() {
    let fx = LoopRunner::new();
    let absent = fx.path("absent/fw.sock");
    let line = format!("server --dev memif:{},server --ip 198.18.0.1/24", absent.display());
    let (output, report) = fx.iwperf_command(&line);
    assert_eq!(output.status.code(), Some(1));
    let failure = report["failure"].as_str().unwrap();
    assert!(error_line(&output).ends_with(failure), "{failure}");
    assert_eq!(report["environment"]["port"], Value::Null);
    let unwritable = fx.path("absent/report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_iwperf"))
        .args(line.split_whitespace())
        .arg("--json")
        .arg(&unwritable)
        .output()
        .unwrap();
    assert!(error_line(&output).contains("absent/report.json: choose another place"));
}

#[test]
fn iwping_loop_verifies_rounds() {
    let _fx = LoopRunner::new();
    let output = Command::new(env!("CARGO_BIN_EXE_iwping"))
        .args(["loop", "-C", "20", "-S", "4321", "-V", "-v"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("ping data: rdma-ping-")).count(), 20);
    assert!(text.contains("20 rounds of 4321 bytes"), "{text}");
    let clock = text.lines().next().unwrap();
    assert!(clock.starts_with("clock: ") && clock.contains(" ns per reading"), "{text}");
}

#[test]
fn iwping_goes_on_after_it_was_stopped_for_ten_seconds() {
    let shared = with_others();
    let mut child = Command::new(env!("CARGO_BIN_EXE_iwping"))
        .args(["loop", "-C", "4000000000", "-V", "--timeout", "60"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, pid.as_str()]).status();
        assert!(status.unwrap().success());
    };
    std::thread::sleep(Duration::from_secs(1));
    signal("-STOP");
    // It keeps no core busy meanwhile.
    drop(shared);
    std::thread::sleep(Duration::from_secs(10));
    assert!(child.try_wait().unwrap().is_none(), "ended before it was stopped");
    signal("-CONT");
    std::thread::sleep(Duration::from_secs(2));
    assert!(child.try_wait().unwrap().is_none(), "ended by its own pause");
    signal("-INT");
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(" rounds of 64 bytes, every byte verified"), "{text}");
}

#[test]
fn iwping_mpa_options_are_negotiated_and_printed() {
    let _fx = LoopRunner::new();
    for (line, client, server) in [
        ("", "revision 2, CRC on, markers received off, markers sent off, IRD 4, ORD 4", ""),
        (
            "--no-crc --markers",
            "revision 2, CRC off, markers received on, markers sent on, IRD 4, ORD 4",
            "",
        ),
        (
            "--mpa-revision 2 --ird 2 --ord 7 --peer-to-peer send",
            "revision 2, CRC on, markers received off, markers sent off, IRD 2, ORD 7",
            "revision 2, CRC on, markers received off, markers sent off, IRD 7, ORD 2",
        ),
        ("--peer-to-peer write", "revision 2,", ""),
        ("--peer-to-peer read,send", "revision 2,", ""),
        ("--mpa-revision 1 --no-crc", "revision 1, CRC off,", ""),
        ("--mpa-revision 1 --ird 2", "revision 1, CRC on,", ""),
        ("--mpa-revision 0", "revision 0, CRC on, markers received on, markers sent on,", ""),
        ("--immediate", "revision 0, CRC on, markers received on, markers sent on,", ""),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_iwping"))
            .args(["loop", "-C", "5", "-S", "20000", "-V", "-v"])
            .args(line.split_whitespace())
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        for (word, expected) in [("negotiated: MPA ", client), ("server negotiated: MPA ", server)]
        {
            let negotiated: Vec<_> =
                text.lines().filter_map(|line| line.strip_prefix(word)).collect();
            assert_eq!(negotiated.len(), 1, "{line}: {text}");
            assert!(negotiated[0].starts_with(expected), "{line}: {word}{}", negotiated[0]);
        }
    }
}

/// None of these starts EAL: each ends with one line and status 2.
#[test]
fn values_that_cannot_work_are_refused_at_the_start() {
    let iwping = "iwping server --dev tap:x0 --ip 198.18.0.1/24";
    let client = "iwping client --dev tap:x0 --ip 198.18.0.1/24";
    let addresses = [
        ("198.18.0.255/24", "whole link"),
        ("198.18.0.0/24", "whole link"),
        ("::ffff:198.18.0.1/96", "write the IPv4 address as 198.18.0.1"),
        ("127.0.0.1/8", "loopback"),
        ("224.0.0.1/24", "multicast"),
        ("0.0.0.0/0", "unspecified"),
        ("198.18.0.1/33", "too long"),
        ("fe80::1%eth0/64", "tap:x0 has the zone %x0"),
        ("2001:2::1%x0/64", "only a link-local address has a zone"),
    ];
    let peers = [
        ("198.18.0.1", "address of this end"),
        ("198.18.0.255", "cannot be reached"),
        ("198.18.1.1", "cannot be reached"),
        ("2001:2::1", "cannot be reached"),
        ("fe80::1%eth0", "cannot be reached"),
        ("2001:2::1%x0", "only a link-local address has a zone"),
        ("localhost", "no host on a link has such an address"),
        ("host/name", "give an address or a host name"),
        ("198.18.0.2:0", "port 0"),
    ];
    let mut lines = vec![
        (format!("{iwping} -p 0"), "1..=65535"),
        ("iwping loop -p 0".to_owned(), "1..=65535"),
        ("iwping loop -C 0".to_owned(), "give 1 or more"),
        ("iwping loop --immediate --mpa-revision 1".to_owned(), "omit --mpa-revision"),
        ("iwping loop --dev tap:x0".to_owned(), "omit --dev"),
        (format!("{iwping} --gateway 198.18.1.1"), "198.18.1.1 is not another host"),
        (format!("{iwping} --gateway 198.18.0.255"), "is not another host"),
        (format!("{iwping} --gateway 127.0.0.1"), "loopback"),
        (format!("{iwping} --gateway 198.18.0.2,mtu=500"), "give 576 or more"),
        (format!("{iwping} --gateway fe80::2%x1"), "tap:x0 has the zone %x0"),
        (format!("{iwping} --neighbor 198.18.0.2=ff:ff:ff:ff:ff:ff"), "give a unicast one"),
        (format!("{iwping} --neighbor 198.18.0.2=02"), "198.18.0.2=02:00:00:00:00:02"),
        (format!("{iwping} --neighbor 198.18.0.1=02:00:00:00:00:02"), "is not another host"),
        (format!("{iwping} --neighbor 198.18.1.2=02:00:00:00:00:02"), "is not another host"),
        (format!("{iwping} --route 224.0.0.0/4 via 198.18.0.2"), "224.0.0.0"),
        (format!("{iwping} --route 198.19.0.0/16 via ff02::1"), "multicast"),
        ("iwperf server --dev ring --ip 198.18.0.1/24".to_owned(), "use loop"),
        ("iwperf server --dev tap:x0".to_owned(), "--address"),
        ("iwperf server --dev tap:x0 --ip 198.18.0.1/24 -p 0".to_owned(), "1..=65535"),
        ("iwperf server --dev tap:x0 --ip 2001:2::1/64 --mtu 1000".to_owned(), "IPv6 requires"),
        ("iwperf loop write-bw --mtu 0".to_owned(), "0 is not in 576..=65280"),
        ("iwperf loop write-bw --mtu 67".to_owned(), "67 is not in 576..=65280"),
        ("iwcopy loop /dev/null --mtu 65281".to_owned(), "65281 is not in 576..=65280"),
        (format!("{iwping} --mtu 65536"), "65536 is not in 576..=65280"),
        ("iwlink --left tap:x0 --right tap:x1 --mtu 65281".to_owned(), "576..=65280"),
        ("iwperf loop write-lat -q 2".to_owned(), "omit -q"),
        ("iwperf loop write-bw -n 0".to_owned(), "give 1 or more"),
        ("iwperf loop write-bw -D 0".to_owned(), "give seconds"),
        ("iwperf loop write-bw -s 99999999999999999999".to_owned(), "give 1 to"),
        ("iwperf loop write-bw -q 65536 -t 8192".to_owned(), "use fewer -q"),
        ("iwcopy server --dev tap:x0 --ip 198.18.0.1/24 -p 0".to_owned(), "1..=65535"),
        ("iwlink --left ring --right tap:x0".to_owned(), "--left ring"),
        ("iwlink --left tap:x0 --right tap:x0".to_owned(), "are one device"),
        ("iwlink --left tap:%d --right tap:x0".to_owned(), "percent sign"),
    ];
    let devices = ["tap:%d", "tap:a/b", "tap:abcdefghijklmnop", "af_packet:..", "tap:", "nonsense"];
    let with = |device: &&str| {
        let [args, dev] = ["iwcopy server --ip 198.18.0.1/24", "--dev:"];
        (format!("{args} --dev {device}"), dev)
    };
    lines.extend(devices.iter().map(with));
    let server = |(own, reason)| (format!("iwping server --dev tap:x0 --ip {own}"), reason);
    lines.extend(addresses.map(server));
    lines.extend(peers.map(|(peer, reason)| (format!("{client} {peer}"), reason)));
    for (line, reason) in lines {
        let (program, args) = line.split_once(' ').unwrap();
        let path = match program {
            "iwperf" => env!("CARGO_BIN_EXE_iwperf"),
            "iwping" => env!("CARGO_BIN_EXE_iwping"),
            "iwcopy" => env!("CARGO_BIN_EXE_iwcopy"),
            _ => env!("CARGO_BIN_EXE_iwlink"),
        };
        let output = Command::new(path).args(args.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {output:?}");
        let text = error_line(&output);
        assert!(text.starts_with(program) && text.contains(reason), "{line}: {text}");
    }
}

#[test]
fn iwperf_mpa_options_are_negotiated() {
    let fx = LoopRunner::new();
    for (line, crc, markers) in [
        ("--mpa-revision 2 --peer-to-peer read --ird 1 --ord 2", true, false),
        ("--mpa-revision 1 --outs 32", true, false),
        ("--mpa-revision 1 --no-crc --markers", false, true),
        ("--mpa-revision 0", true, true),
    ] {
        for test in ["read-bw", "write-bw", "send-lat"] {
            let results = fx.results(&format!("{test} -s 3000 -n 100 --verify {line}"));
            assert_eq!(results[0]["crc"], crc, "{test} {line}");
            assert_eq!(results[0]["markers"], markers, "{test} {line}");
            assert_eq!(results[0]["errors"], 0, "{test} {line}");
        }
    }
}

#[test]
fn iwcopy_preserves_file() {
    let fx = LoopRunner::new();
    let file = fx.path("file");
    for len in [0, 1, (1 << 20) + 1, 9_000_001] {
        let mut bytes = vec![0; len];
        ferrowarp_apps::pattern::Pattern::new(1, 2).fill(0, &mut bytes);
        std::fs::write(&file, &bytes).unwrap();
        for by in ["write", "read"] {
            let copy = fx.path("copy");
            let output = iwcopy(&file, &["--by", by, "--out", copy.to_str().unwrap()]);
            assert!(output.status.success(), "{output:?}");
            assert!(std::fs::read(&copy).unwrap() == bytes, "{len} bytes by {by}");
            std::fs::remove_file(copy).unwrap();
        }
    }
    let missing = iwcopy(&fx.path("missing"), &[]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(error_line(&missing).contains("cannot read"));
}

#[test]
fn iwcopy_names_the_cause_in_each_run() {
    let fx = LoopRunner::new();
    let (file, there) = (fx.path("file"), fx.path("there"));
    std::fs::write(&file, [7; 1000]).unwrap();
    std::fs::write(&there, "old").unwrap();
    for run in 0..6 {
        let cores = two_cores();
        let cores = if run % 2 == 0 { &cores } else { cores.split(',').next().unwrap() };
        let output = iwcopy(&file, &["--out", there.to_str().unwrap(), "--cores", cores]);
        assert_eq!(output.status.code(), Some(1));
        assert!(error_line(&output).contains("File exists"), "{output:?}");
    }
    assert_eq!(std::fs::read(there).unwrap(), b"old");
}

fn iwcopy(file: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_iwcopy")).arg("loop").arg(file).args(more).output().unwrap()
}

#[test]
fn ipv6_and_vlan_runs_succeed() {
    let fx = LoopRunner::new();
    for network in ["-6", "--vlan 42", "-6 --vlan 4094"] {
        let line = format!("write-bw {network} --checksum -s 5000 -n 200 --verify");
        assert_eq!(fx.results(&line).len(), 1, "{network}");
    }
}
