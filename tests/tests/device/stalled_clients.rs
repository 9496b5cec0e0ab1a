//! Clients that take nothing, and clients that are killed, hold no server for longer than it says.

use std::net::TcpStream;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ferrowarp_tests::netns::ip;
use ferrowarp_tests::peer::{PEER_STAG, Peer, Startup, opcode};
use ferrowarp_tests::process::{self, Running, TempDir};
use ferrowarp_tests::stack::{KERNEL, STACK, TIMEOUT};
use ferrowarp_tests::{skip, test_name};

use crate::tap::ready;

/// Port of `iwping server`.
const PORT: u16 = 7174;
/// Clients that take nothing.
const STALLED: usize = 40;
/// Timeout of the server.
const SERVER_TIMEOUT: Duration = Duration::from_secs(4);
/// Time by which a server on a busy machine may exceed what it says.
const SLACK: Duration = Duration::from_secs(15);

fn run_ip(command: &str) {
    ip(&command.split_whitespace().collect::<Vec<_>>()).unwrap();
}

/// Starts a program; `None` if it was not built.
fn start(line: &str, dir: &TempDir, log: &str) -> Option<Running> {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap();
    let Some(path) = process::program(name) else {
        skip(&format!("no {name}; cargo build --profile test --bins"));
        return None;
    };
    Some(Running::start(Command::new(path).args(words), dir.path().join(log)).unwrap())
}

/// A client on a kernel socket that follows rping's protocol.
struct Client(Peer);

impl Client {
    fn connect() -> Self {
        let stream = TcpStream::connect((STACK, PORT)).unwrap();
        let (mut peer, _) = Peer::initiate(stream, &Startup::default()).unwrap();
        peer.memory = vec![7; 1 << 16];
        Self(peer)
    }

    /// Offers the source of a ping, which the server reads, and then the sink.
    fn begin(&mut self, size: u32) {
        let fields = [0, 0, PEER_STAG, size];
        let advert: Vec<u8> = fields.iter().flat_map(|field: &u32| field.to_be_bytes()).collect();
        let answered = self.0.sends.len() + 1;
        self.0.send(opcode::SEND, 0, &advert).unwrap();
        self.0.serve_until(|peer| peer.sends.len() == answered).unwrap();
        self.0.send(opcode::SEND, 0, &advert).unwrap();
    }

    /// A whole round.
    fn ping(&mut self) {
        self.begin(64);
        let answered = self.0.sends.len() + 1;
        self.0.serve_until(|peer| peer.sends.len() == answered).unwrap();
    }
}

/// Starts `iwping server` with these options on a tap whose other end is the kernel.
fn ping_server(options: &str, dir: &TempDir) -> Option<Running> {
    let seconds = SERVER_TIMEOUT.as_secs();
    let line =
        format!("iwping server -P {options} --timeout {seconds} --dev tap:fw0 --ip {STACK}/24");
    let mut server = start(&line, dir, "server")?;
    server.wait_for("waiting", TIMEOUT).unwrap();
    run_ip(&format!("address add {KERNEL}/24 dev fw0"));
    run_ip("link set fw0 up");
    Some(server)
}

fn given_up(server: &Running) -> usize {
    server.output().unwrap().matches("a client failed").count()
}

/// They leave a Write in their sockets, whose windows close, and answer every window probe.
#[test]
fn clients_that_take_nothing_are_given_up_while_others_are_served() {
    if !ready(test_name!()) {
        return;
    }
    // Of this namespace: no socket takes a whole ping.
    std::fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 8192 8192").unwrap();
    let dir = process::temp_dir().unwrap();
    let Some(server) = ping_server("", &dir) else { return };
    let mut stalled = Vec::new();
    let mut last = Instant::now();
    for _ in 0..STALLED {
        let mut client = Client::connect();
        client.begin(65_535);
        stalled.push(client);
        last = Instant::now();
    }
    let mut other = Client::connect();
    other.ping();
    while given_up(&server) < STALLED {
        other.ping();
        sleep(Duration::from_millis(50));
        let count = given_up(&server);
        assert!(last.elapsed() < SERVER_TIMEOUT + SLACK, "{count} of {STALLED} are given up");
    }
    println!("{STALLED} given up {:.1} s after the last one stalled", last.elapsed().as_secs_f64());
    assert!(stalled.iter_mut().all(|client| client.0.is_closed()), "they are reset");
    other.ping();
    assert_eq!(given_up(&server), STALLED, "the client that takes its data stays");
}

/// A client that answers keepalive and pings no more holds a place only while there is another one.
#[test]
fn idle_client_loses_its_place_if_that_is_the_last_one() {
    if !ready(test_name!()) {
        return;
    }
    let dir = process::temp_dir().unwrap();
    let Some(server) = ping_server("--clients 2", &dir) else { return };
    let mut idle = Client::connect();
    idle.ping();
    sleep(SERVER_TIMEOUT + Duration::from_secs(1));
    idle.ping();
    assert_eq!(given_up(&server), 0);
    let mut busy = Client::connect();
    let start = Instant::now();
    while given_up(&server) == 0 {
        busy.ping();
        sleep(Duration::from_millis(50));
        assert!(start.elapsed() < SERVER_TIMEOUT + SLACK, "the idle one keeps its place");
    }
    assert!(start.elapsed() >= SERVER_TIMEOUT - Duration::from_secs(1), "{:?}", start.elapsed());
    let mut next = Client::connect();
    next.ping();
    busy.ping();
    assert!(idle.0.is_closed());
    let output = server.output().unwrap();
    assert!(output.contains("it was idle") && given_up(&server) == 1, "{output}");
}

/// A client that is killed sends nothing, and its neighbors answer for it no more.
#[test]
fn server_is_free_soon_after_its_client_was_killed() {
    if !ready(test_name!()) {
        return;
    }
    run_ip("link add bridge type bridge");
    run_ip("link set bridge up");
    // To the bridge, once there is such an interface.
    let plug = |tap: &str| {
        let start = Instant::now();
        while let Err(error) = ip(&["link", "set", tap, "master", "bridge", "up"]) {
            assert!(start.elapsed() < TIMEOUT, "{error}");
            sleep(Duration::from_millis(20));
        }
    };
    let dir = process::temp_dir().unwrap();
    for (server, client, busy, short, within) in [
        // The session makes no progress.
        (
            "iwperf server --timeout 3",
            "iwperf write-bw 198.18.7.1",
            "-D 60",
            "-n 10 -s 100",
            Duration::from_secs(3),
        ),
        // Between two rounds: only keepalive finds out. Five seconds, then nine probes, of which
        // the first is due then.
        (
            "iwping server -P --clients 1 --keepalive 1",
            "iwping client 198.18.7.1",
            "",
            "-C 1",
            Duration::from_secs(10),
        ),
    ] {
        let line = format!("{server} --dev tap:fws --ip 198.18.7.1/24");
        let Some(mut server) = start(&line, &dir, "server") else { return };
        server.wait_for("waiting", TIMEOUT).unwrap();
        plug("fws");
        let client_line =
            |tap: &str, more: &str| format!("{client} {more} --dev tap:{tap} --ip 198.18.7.2/24");
        let killed = start(&client_line("fwk", busy), &dir, "killed").unwrap();
        plug("fwk");
        let served = Instant::now();
        let is_busy = |client: &Running| {
            let output = client.output().unwrap();
            output.contains("#bytes") || output.contains("usec")
        };
        while !is_busy(&killed) && served.elapsed() < Duration::from_secs(3) {
            sleep(Duration::from_millis(20));
        }
        drop(killed);
        let since = Instant::now();
        let mut tries = 0;
        loop {
            tries += 1;
            let tap = format!("fwn{tries}");
            let next = start(&client_line(&tap, short), &dir, &tap).unwrap();
            plug(&tap);
            let ended = next.finish(TIMEOUT).unwrap();
            if ended.success() {
                break;
            }
            assert!(ended.output.contains("busy"), "{}", ended.output);
            assert!(since.elapsed() < within + SLACK, "{}", ended.output);
        }
        println!("{line}: free after {:.1} s", since.elapsed().as_secs_f64());
    }
}
