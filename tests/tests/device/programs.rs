//! The programs as a user starts them: errors on bad input, and cleanup.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ferrowarp_tests::process::{self, ProcessResult};
use ferrowarp_tests::skip;

const TIMEOUT: Duration = Duration::from_secs(60);

fn program(name: &str) -> Option<PathBuf> {
    let path = process::program(name);
    if path.is_none() {
        skip(&format!("no {name}; cargo build --profile test --bins"));
    }
    path
}

fn run(path: &PathBuf, arguments: &str) -> ProcessResult {
    process::run(Command::new(path).args(arguments.split_whitespace()), TIMEOUT).unwrap()
}

/// Expects a one-line error message with advice, a nonzero exit status, and no panic.
fn expect_one_line_error(name: &str, arguments: &[&str]) {
    let Some(path) = program(name) else { return };
    let mut complaints = Vec::new();
    for line in arguments {
        let ended = run(&path, line);
        let lines: Vec<_> = ended.output.lines().filter(|line| !line.trim().is_empty()).collect();
        let code = ended.status.and_then(|status| status.code());
        // 101 is the status of a panic; no code means a signal or a timeout.
        if code.is_none_or(|code| code == 0 || code == 101)
            || lines.len() != 1
            || ended.output.contains("panicked")
        {
            complaints.push(format!("{name} {line}: status {code:?}\n{}", ended.output));
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn iwlink_rejects_bad_arguments_in_one_line() {
    expect_one_line_error(
        "iwlink",
        &[
            "",
            "--left tap:fw0",
            "--left ring --right ring",
            "--left nosuchdevice --right tap:fw0",
            "--left af_packet:nosuchif0 --right tap:fw0",
            "--left tap:fw0 --right tap:fw1 --loss 200%",
            "--left tap:fw0 --right tap:fw1 --delay 10",
            "--left tap:fw0 --right tap:fw1 --rate fast",
            "--left tap:fw0 --right tap:fw1 --queue 10k",
            "--left tap:fw0 --right tap:fw1 --to-left speed=1",
        ],
    );
}

#[test]
fn iwperf_rejects_bad_arguments_in_one_line() {
    expect_one_line_error(
        "iwperf",
        &[
            "",
            "nonsense",
            "loop",
            "loop nonsense",
            "loop write-bw --no-such-option",
            "loop write-bw -s",
            "loop write-bw -s 0",
            "loop write-bw -s -1",
            "loop write-bw -s 99999999999999999999",
            "loop write-bw -n 0",
            "loop write-bw -q 0",
            "loop write-bw -t 0",
            "loop write-bw --mtu 20",
            "loop write-bw --mtu 70000",
            "server --dev af_packet:lo --ip 198.18.0.1/24 --mtu 65280",
            "loop write-bw --cores 4095",
            "loop write-bw --cores 0,1,2",
            "loop write-bw --cores x",
            "loop write-bw --mpa-revision 3",
            "loop write-bw --mpa-revision 0 --no-crc",
            "loop write-bw --mpa-revision 1 --peer-to-peer write",
            "loop write-bw --peer-to-peer nonsense",
            "loop atomic-bw --mpa-revision 0",
            "loop write-bw --ird 0",
            "loop write-bw --ord 129",
            "loop write-bw -n 10 --json /nonexistent/folder/file.json",
            "server",
            "server --dev nosuchdevice --ip 198.18.0.1/24",
            "server --dev memif: --ip 198.18.0.1/24",
            "server --dev memif:/nonexistent/folder/fw.sock,server --ip 198.18.0.1/24",
            "server --dev memif:/tmp/fw-test.sock,neither --ip 198.18.0.1/24",
            "server --dev vhost:/nonexistent/folder/fw.sock --ip 198.18.0.1/24",
            "server --dev virtio-user:/tmp/fw-test-nobody.sock --ip 198.18.0.1/24",
            "server --dev vhost:/tmp/fw-test.sock,client --ip 198.18.0.1/24",
            "server --dev af_packet:nosuchif0 --ip 198.18.0.1/24",
            "server --dev pci:0000:ff:1f.7 --ip 198.18.0.1/24",
            "server --dev tap:a-name-that-is-much-too-long --ip 198.18.0.1/24",
            "server --dev ring --ip 198.18.0.1/99",
            "server --dev ring --ip nonsense",
            "write-bw 198.18.0.1 --dev memif:/tmp/fw-test-nobody.sock,client --ip 198.18.0.2/24",
            "write-bw not.an.address --dev ring --ip 198.18.0.2/24",
        ],
    );
}

#[test]
fn iwping_rejects_bad_arguments_in_one_line() {
    expect_one_line_error(
        "iwping",
        &[
            "",
            "nonsense",
            "loop -C x",
            "loop -S 0",
            "loop -S 99999999999",
            "loop --mpa-revision 3",
            "loop --mpa-revision 2 --immediate",
            "loop --mpa-revision 0 --no-crc",
            "loop --immediate --no-crc",
            "loop --immediate --peer-to-peer write",
            "loop --mpa-revision 0 --peer-to-peer write",
            "loop --ird 0",
            "loop --ord 129",
            "server --ird 200 --dev ring --ip 198.18.0.1/24",
            "client",
            "client nonsense --dev ring --ip 198.18.0.2/24",
            "server --dev nosuchdevice --ip 198.18.0.1/24",
            "client 198.18.0.1 --dev memif:/tmp/fw-test-nobody.sock,client --ip 198.18.0.2/24",
        ],
    );
}

#[test]
fn iwcopy_rejects_bad_arguments_in_one_line() {
    expect_one_line_error(
        "iwcopy",
        &[
            "",
            "loop",
            "loop /nonexistent/file --by write",
            "loop /etc --by write",
            "loop /etc/hostname --by magic",
            "loop /etc/hostname --by write --no-such-option",
        ],
    );
}

#[test]
fn help_and_version_succeed() {
    for name in ["iwperf", "iwping", "iwcopy", "iwlink"] {
        let Some(path) = program(name) else { return };
        let version =
            format!("{} (DPDK {})", env!("CARGO_PKG_VERSION"), ferrowarp::device::dpdk_version());
        for (option, expected) in [("--help", "Usage"), ("--version", version.as_str())] {
            let ended = run(&path, option);
            assert!(ended.success() && ended.output.contains(expected), "{name} {option}");
        }
    }
}

#[test]
fn loop_modes_run() {
    let (Some(iwperf), Some(iwping), Some(iwcopy)) =
        (program("iwperf"), program("iwping"), program("iwcopy"))
    else {
        return;
    };
    let dir = process::temp_dir().unwrap();
    let json = dir.path().join("result.json");
    for test in ["write-bw", "read-bw", "send-bw", "write-lat", "read-lat", "send-lat"] {
        let line = format!("loop {test} -s 5000 -n 200 --verify --json {}", json.display());
        let ended = run(&iwperf, &line);
        assert!(ended.success(), "{test}: {:?}\n{}", ended.status, ended.output);
        assert!(ended.output.contains("#bytes"), "{test}: {}", ended.output);
        let text = std::fs::read_to_string(&json).unwrap();
        let result: serde_json::Value = serde_json::from_str(&text).unwrap();
        let entry = &result["results"][0];
        assert_eq!(entry["test"], test, "{text}");
        assert_eq!((&entry["size_bytes"], &entry["errors"]), (&5000.into(), &0.into()), "{text}");
        let verified = entry["bytes_verified"].as_u64().unwrap();
        assert!(verified >= 200 * 5000, "{verified} bytes verified: {text}");
        assert_eq!(entry["lat_us"].is_null(), test.ends_with("bw"), "{text}");
    }
    let ended = run(&iwping, "loop -C 5 -S 1000 -V");
    assert!(ended.success(), "{}", ended.output);
    for start in ["--mpa-revision 0", "--mpa-revision 1", "--mpa-revision 2", "--immediate"] {
        let ended = run(&iwping, &format!("loop -C 5 -S 1000 -V -v {start}"));
        assert!(ended.success(), "{start}: {}", ended.output);
        let revision = start.strip_prefix("--mpa-revision ").unwrap_or("0");
        let negotiated = format!("negotiated: MPA revision {revision}, CRC on");
        assert!(ended.output.contains(&negotiated), "{start}: {}", ended.output);
    }

    let file = dir.path().join("real");
    let program = std::fs::read(&iwperf).unwrap();
    std::fs::write(&file, &program[..program.len() - 1]).unwrap();
    for by in ["write", "read"] {
        let ended = run(&iwcopy, &format!("loop {} --by {by}", file.display()));
        assert!(ended.success(), "{by}: {}", ended.output);
        let sum = Command::new("sha256sum").arg(&file).output().unwrap().stdout;
        let digest = str::from_utf8(&sum).unwrap().split(' ').next().unwrap();
        assert!(ended.output.contains(digest), "{by}, {digest}: {}", ended.output);
    }
}

#[test]
fn json_results_are_valid_after_a_failure() {
    let Some(iwperf) = program("iwperf") else { return };
    let dir = process::temp_dir().unwrap();
    let json = dir.path().join("result.json");
    let socket = dir.path().join("nobody.sock");
    let (socket, json_path) = (socket.display(), json.display());
    let line = format!(
        "write-bw 198.18.0.1 --dev memif:{socket},client --ip 198.18.0.2/24 --json {json_path}"
    );
    assert!(!run(&iwperf, &line).success());
    let text = std::fs::read_to_string(&json).unwrap();
    let result: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(result["results"].is_array(), "{text}");
    assert!(result["environment"].is_object(), "{text}");
}
