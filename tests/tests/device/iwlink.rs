//! `iwlink` as a program, between two ports of this process: no root, no network.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferrowarp::device::{OpenConfig, RawPort, open_raw, register_current_thread};
use ferrowarp_tests::process::{self, ProcessResult, Running, TempDir};
use ferrowarp_tests::skip;
use ferrowarp_tests::stack::TIMEOUT;
use serde_json::Value;

/// Frames sent each way.
const COUNT: usize = 2000;

const SIGINT: i32 = 2;

/// Each test keeps a core busy and measures times.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The program, and the folder of its files.
pub(crate) struct Iwlink {
    program: Running,
    dir: TempDir,
}

impl Iwlink {
    /// Returns the path of the program, or reports the test as skipped.
    pub(crate) fn path() -> Option<PathBuf> {
        let path = process::program("iwlink");
        if path.is_none() {
            skip("no iwlink; cargo build --profile test --bins");
        }
        path
    }

    /// Starts it between two devices.
    pub(crate) fn start(path: &Path, devices: [&str; 2], options: &str, dir: TempDir) -> Self {
        let mut command = Command::new(path);
        command.args(["--left", devices[0], "--right", devices[1]]);
        command.args(options.split_whitespace()).arg("--json").arg(dir.path().join("counters"));
        let mut program = Running::start(&mut command, dir.path().join("output")).unwrap();
        program.wait_for("seed", TIMEOUT).unwrap();
        Self { program, dir }
    }

    /// Stops the program; returns its result and counters.
    pub(crate) fn stop(self) -> (ProcessResult, Value) {
        self.program.interrupt().unwrap();
        self.finish()
    }

    /// Stops the program; returns its counters. On a busy machine it may have lost frames itself,
    /// and then dies of the signal.
    pub(crate) fn stop_busy(self) -> Value {
        self.program.interrupt().unwrap();
        let ended = self.program.finish(TIMEOUT).unwrap();
        let signal = ended.status.and_then(|status| status.signal());
        assert!(ended.success() || signal == Some(SIGINT), "{ended:?}");
        counters(&self.dir)
    }

    /// Waits for its end; returns its result and counters.
    fn finish(self) -> (ProcessResult, Value) {
        let ended = self.program.finish(TIMEOUT).unwrap();
        assert!(ended.success(), "{ended:?}");
        (ended, counters(&self.dir))
    }
}

/// The counters that the program has written.
fn counters(dir: &TempDir) -> Value {
    let text = std::fs::read_to_string(dir.path().join("counters")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The program, and the port of this process at each end.
struct Wire {
    iwlink: Iwlink,
    ports: [RawPort; 2],
}

impl Wire {
    fn open(path: &Path, options: &str) -> Self {
        let dir = process::temp_dir().unwrap();
        let sockets = ["left", "right"].map(|name| dir.path().join(name).display().to_string());
        let [left, right] = sockets.each_ref().map(|socket| format!("memif:{socket},server"));
        let iwlink = Iwlink::start(path, [&left, &right], options, dir);
        let ports = sockets.map(|socket| {
            let spec = format!("memif:{socket},client").parse().unwrap();
            open_raw(&spec, &OpenConfig::new()).unwrap()
        });
        register_current_thread();
        let deadline = Instant::now() + TIMEOUT;
        while !ports.iter().all(RawPort::link_is_up) {
            assert!(Instant::now() < deadline, "the links come up");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { iwlink, ports }
    }

    /// Sends numbered frames both ways; returns the numbers received at the right and at the left,
    /// in order of arrival, once nothing has arrived for `quiet`.
    fn exchange(&mut self, quiet: Duration) -> [Vec<usize>; 2] {
        let mut arrived = [Vec::new(), Vec::new()];
        let mut sent = 0;
        let mut last = Instant::now();
        while last.elapsed() < quiet {
            for (index, port) in self.ports.iter_mut().enumerate() {
                if sent < COUNT
                    && let Some(frame) = port.copy(&frame(sent))
                {
                    port.send(frame);
                    port.flush();
                    last = Instant::now();
                }
                port.receive(32, |frame| {
                    arrived[1 - index].push(number(frame.bytes()));
                    last = Instant::now();
                });
            }
            sent += 1;
            std::thread::sleep(Duration::from_micros(20));
        }
        for port in &self.ports {
            assert_eq!(port.counters().overrun, 0);
        }
        arrived
    }
}

/// UDP over IPv4, with a number at the end.
fn frame(number: usize) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[23] = 17;
    bytes[92..].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn number(bytes: &[u8]) -> usize {
    usize::from_be_bytes(bytes[92..].try_into().unwrap())
}

#[test]
fn same_seed_drops_the_same_frames() {
    let Some(path) = Iwlink::path() else { return };
    let _serial = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // On a busy machine a port may not take a frame in time; the frames lost that way do not depend
    // on the seed.
    let once = |options: &str| {
        let attempts = (0..5).find_map(|_| {
            let mut wire = Wire::open(&path, options);
            let arrived = wire.exchange(Duration::from_secs(1));
            let (_, counters) = wire.iwlink.stop();
            let own = ["port_full", "port_lost", "no_buffer"];
            let is_undisturbed =
                (0..2).all(|way| own.iter().all(|own| counters[way]["own"][own] == 0));
            is_undisturbed.then_some((arrived, counters))
        });
        let (arrived, counters) = attempts.expect("the ports take what passes the wire");
        for (way, arrived) in arrived.iter().enumerate() {
            assert_eq!(counters[way]["frames_in"], COUNT, "{counters}");
            assert_eq!(counters[way]["frames_out"], arrived.len(), "{counters}");
            assert_eq!(counters[way]["lost"], COUNT - arrived.len(), "{counters}");
            assert!(arrived.is_sorted());
        }
        arrived
    };
    let options = "--loss 10% --burst 3 --seed 5 --delay 1ms --jitter 500us";
    let first = once(options);
    assert_eq!(first, once(options), "whenever the frames come");
    assert_ne!(first[0], first[1], "each direction has its own chance");
    assert!(first.iter().all(|arrived| (1600..1950).contains(&arrived.len())));
    assert_ne!(first, once("--loss 10% --burst 3 --seed 6 --delay 1ms"));
    let one_way = once("--to-left loss=100%");
    assert_eq!((one_way[0].len(), one_way[1].len()), (COUNT, 0));
}

#[test]
fn delay_duplication_and_reordering_are_as_configured() {
    let Some(path) = Iwlink::path() else { return };
    let _serial = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut wire = Wire::open(&path, "--delay 30ms --duplicate 5% --reorder 5% --report 0.05");
    let start = Instant::now();
    let first = wire.ports[0].copy(&frame(0)).unwrap();
    wire.ports[0].send(first);
    while wire.ports[1].receive(1, |_| ()) == 0 {
        // A port that has only just come up may take it a little later.
        wire.ports[0].flush();
        assert!(start.elapsed() < TIMEOUT);
    }
    assert!(start.elapsed() >= Duration::from_millis(30), "{:?}", start.elapsed());
    for arrived in wire.exchange(Duration::from_millis(300)) {
        let numbers: BTreeSet<usize> = arrived.iter().copied().collect();
        assert_eq!(numbers.len(), COUNT, "none is lost");
        assert!((50..150).contains(&(arrived.len() - COUNT)), "{} in all", arrived.len());
        assert!(!arrived.is_sorted());
    }
    let (ended, _) = wire.iwlink.stop();
    assert!(ended.output.matches(" | ").count() > 4, "reports: {}", ended.output);
    assert!(ended.output.contains("emulator errors"), "{}", ended.output);
}

#[test]
fn rate_limit_queues_and_drops() {
    let Some(path) = Iwlink::path() else { return };
    let _serial = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // Each second 100 frames of 124 bytes fit on the wire: most are dropped.
    let mut wire = Wire::open(&path, "--rate 99.2kbit --queue 1000");
    let arrived = wire.exchange(Duration::from_millis(300));
    let (_, counters) = wire.iwlink.stop();
    for (way, arrived) in arrived.iter().enumerate() {
        assert!(arrived.len() < COUNT / 4, "{}", arrived.len());
        assert_eq!(counters[way]["overflowed"], COUNT - arrived.len(), "{counters}");
    }
}

#[test]
fn duration_option_ends_the_program() {
    let Some(path) = Iwlink::path() else { return };
    let _serial = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let _ = Wire::open(&path, "--duration 1").iwlink.finish();
    assert!(start.elapsed() >= Duration::from_secs(1));
}
