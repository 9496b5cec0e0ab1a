//! Two processes connected by a socket and shared memory: memif, or vhost and virtio-user.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ferrowarp::{Access, ConnEvent, ConnParam};
use ferrowarp_tests::pattern;
use ferrowarp_tests::process::{self, Running, TempDir};
use ferrowarp_tests::skip;
use ferrowarp_tests::stack::{
    KERNEL, STACK, Stack, post_read, post_recv, post_send, post_send_inline, post_write,
};
use ferrowarp_tests::test_name;

const PROCESS_TIMEOUT: Duration = Duration::from_secs(60);

/// The device of the other process of [`rdma_between_two_processes`].
const DEVICE: &str = "FERROWARP_TEST_DEVICE";
const PORT: u16 = 4791;
const LEN: usize = 3_000_000;

/// Kind of link between two processes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Link {
    Memif,
    /// The server is the back end, the client the virtio driver.
    Vhost,
}

impl Link {
    pub(crate) fn server(self, socket: &Path) -> String {
        match self {
            Self::Memif => format!("memif:{},server", socket.display()),
            Self::Vhost => format!("vhost:{}", socket.display()),
        }
    }

    pub(crate) fn client(self, socket: &Path) -> String {
        match self {
            Self::Memif => format!("memif:{},client", socket.display()),
            Self::Vhost => format!("virtio-user:{}", socket.display()),
        }
    }
}

#[test]
fn rdma_over_memif() {
    rdma_between_two_processes(Link::Memif, test_name!());
}

#[test]
fn rdma_over_vhost() {
    rdma_between_two_processes(Link::Vhost, test_name!());
}

fn rdma_between_two_processes(link: Link, name: &str) {
    if let Ok(device) = std::env::var(DEVICE) {
        return client(&device);
    }
    let dir = process::temp_dir().unwrap();
    let socket = dir.path().join("fw.sock");
    let stack = Stack::on_device(&link.server(&socket), STACK);
    let listener = stack.context.listen(PORT, 1).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command.env(DEVICE, link.client(&socket));
    let other = Running::start(&mut command, dir.path().join("client.log")).unwrap();

    let qp = stack.create_qp();
    let shared = stack.alloc_mr(LEN, Access::ALL);
    let recv_mr = stack.alloc_mr(100, Access::LOCAL_WRITE);
    for wr_id in 0..2 {
        post_recv(&qp, wr_id, recv_mr.sge(0, 100));
    }
    let Some(request) = listener.accept_timeout(PROCESS_TIMEOUT) else {
        panic!("nobody came: {}", other.finish(Duration::ZERO).unwrap().output);
    };
    request.accept(&qp, ConnParam::default()).unwrap();
    qp.wait_established(PROCESS_TIMEOUT).unwrap();
    assert_eq!(stack.expect_success().wr_id, 0);
    let (addr, rkey) = (shared.addr().to_be_bytes(), shared.rkey().to_be_bytes());
    post_send_inline(&qp, 10, &[&addr[..], &rkey].concat());
    assert_eq!(stack.expect_success().wr_id, 10);
    assert_eq!(stack.expect_success().wr_id, 1);
    let mut found = vec![0; LEN];
    shared.read(0, &mut found);
    assert!(found == pattern(7, LEN), "what the other process wrote");
    // The other process reads it back, and then closes.
    assert!(matches!(qp.wait_event(PROCESS_TIMEOUT), Some(ConnEvent::Disconnected { .. })));
    let ended = other.finish(PROCESS_TIMEOUT).unwrap();
    assert!(ended.success(), "{:?}: {}", ended.status, ended.output);
    drop((qp, listener, shared, recv_mr));
    stack.context.clone().close();
    drop(stack);
    assert!(!socket.exists(), "the socket is left behind");
}

fn client(device: &str) {
    let stack = Stack::on_device(device, KERNEL);
    let recv_mr = stack.alloc_mr(100, Access::LOCAL_WRITE);
    let mine = stack.alloc_mr(LEN, Access::LOCAL_WRITE);
    let qp = stack.create_qp();
    post_recv(&qp, 0, recv_mr.sge(0, 100));
    qp.connect(SocketAddr::from((STACK, PORT)), ConnParam::default()).unwrap();
    qp.wait_established(PROCESS_TIMEOUT).unwrap();
    post_send_inline(&qp, 1, b"where?");
    let mut seen = [stack.expect_success(), stack.expect_success()].map(|wc| wc.wr_id);
    seen.sort_unstable();
    assert_eq!(seen, [0, 1]);
    let mut answer = [0; 12];
    recv_mr.read(0, &mut answer);
    let addr = u64::from_be_bytes(answer[..8].try_into().unwrap());
    let rkey = u32::from_be_bytes(answer[8..].try_into().unwrap());

    let (bytes, len) = (pattern(7, LEN), u32::try_from(LEN).unwrap());
    mine.write(0, &bytes);
    post_write(&qp, 2, mine.sge(0, len), rkey, addr);
    assert_eq!(stack.expect_success().wr_id, 2);
    mine.fill(0, LEN, 0);
    post_read(&qp, 3, mine.sge(0, len), rkey, addr);
    assert_eq!(stack.expect_success().wr_id, 3);
    let mut found = vec![0; LEN];
    mine.read(0, &mut found);
    assert!(found == bytes, "what comes back is what was written");
    post_send(&qp, 4, mine.sge(0, 10));
    assert_eq!(stack.expect_success().wr_id, 4);
    qp.disconnect().unwrap();
    assert!(matches!(qp.wait_event(PROCESS_TIMEOUT), Some(ConnEvent::Disconnected { .. })));
}

/// `iwperf` at both ends of a socket.
struct IwperfPair {
    link: Link,
    dir: TempDir,
    iwperf: std::path::PathBuf,
}

impl IwperfPair {
    fn new(link: Link) -> Option<Self> {
        let Some(iwperf) = process::program("iwperf") else {
            skip("no iwperf; cargo build --profile test --bins");
            return None;
        };
        Some(Self { link, dir: process::temp_dir().unwrap(), iwperf })
    }

    fn server_command(&self) -> Command {
        let device = self.link.server(&self.dir.path().join("fw.sock"));
        let mut command = Command::new(&self.iwperf);
        command.args(["server", "--ip", "198.18.0.1/24", "--dev", &device]);
        command
    }

    fn server(&self) -> Running {
        let mut command = self.server_command();
        let mut server = Running::start(&mut command, self.dir.path().join("server.log")).unwrap();
        // It prints this line once a client can connect.
        server.wait_for("waiting for clients", PROCESS_TIMEOUT).unwrap();
        server
    }

    fn client(&self, arguments: &[&str]) -> Command {
        let device = self.link.client(&self.dir.path().join("fw.sock"));
        let mut command = Command::new(&self.iwperf);
        command.args(arguments).args(["--ip", "198.18.0.2/24", "--dev", &device]);
        command
    }

    /// A client that is writing.
    fn busy_client(&self) -> Running {
        let mut command = self.client(&["write-bw", "198.18.0.1", "-D", "30"]);
        let mut client = Running::start(&mut command, self.dir.path().join("client.log")).unwrap();
        // The heading of its table, printed once connected to the server.
        client.wait_for("#bytes", PROCESS_TIMEOUT).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        client
    }
}

#[test]
fn every_iwperf_test_over_memif() {
    every_iwperf_test(Link::Memif);
}

#[test]
fn every_iwperf_test_over_vhost() {
    every_iwperf_test(Link::Vhost);
}

fn every_iwperf_test(link: Link) {
    let Some(ends) = IwperfPair::new(link) else { return };
    for test in ["write-bw", "read-bw", "send-bw", "write-lat", "read-lat", "send-lat"] {
        let server = ends.server();
        let mut command = ends.client(&[test, "198.18.0.1", "-s", "3000", "-n", "500", "--verify"]);
        let client = process::run(&mut command, PROCESS_TIMEOUT).unwrap();
        assert!(client.success(), "{test}: {:?}\n{}", client.status, client.output);
        assert!(client.output.contains("#bytes"), "{}", client.output);
        server.interrupt().unwrap();
        let ended = server.finish(PROCESS_TIMEOUT).unwrap();
        assert!(ended.status.is_some(), "the server does not end: {}", ended.output);
        assert!(!ended.output.contains("panicked"), "{}", ended.output);
        assert!(!ends.dir.path().join("fw.sock").exists(), "the socket is left behind");
    }
}

#[test]
fn largest_packets_over_memif() {
    let Some(ends) = IwperfPair::new(Link::Memif) else { return };
    for (test, size) in [("write-bw", "1M"), ("read-bw", "1M"), ("send-lat", "8")] {
        let mut command = ends.server_command();
        command.args(["--mtu", "65280", "--once"]);
        let log = ends.dir.path().join("server.log");
        let mut server = Running::start(&mut command, log).unwrap();
        server.wait_for("waiting for clients", PROCESS_TIMEOUT).unwrap();
        let line = [test, "198.18.0.1", "-s", size, "-n", "200", "--verify", "--mtu", "65280"];
        let client = process::run(&mut ends.client(&line), PROCESS_TIMEOUT).unwrap();
        assert!(client.success(), "{test} {size}: {:?}\n{}", client.status, client.output);
        let ended = server.finish(PROCESS_TIMEOUT).unwrap();
        assert!(ended.success(), "{test} {size}: {:?}\n{}", ended.status, ended.output);
    }
}

/// The virtio driver takes frames of less than 10 KiB, and says so.
#[test]
fn mtu_above_the_devices_is_refused_with_it() {
    let Some(ends) = IwperfPair::new(Link::Vhost) else { return };
    let server = ends.server();
    let line = ["write-bw", "198.18.0.1", "--mtu", "65280"];
    let client = process::run(&mut ends.client(&line), PROCESS_TIMEOUT).unwrap();
    let code = client.status.and_then(|status| status.code());
    assert_eq!((code, client.output.lines().count()), (Some(1), 1), "{}", client.output);
    let reason = "an MTU of 65280 was requested, the device supports at most 9";
    assert!(client.output.contains(reason), "{}", client.output);
    drop(server);
}

/// On a disconnect DPDK's memif driver unmaps its rings in its interrupt thread, even while they
/// are in use. Without the protection against that, the other end crashed (SIGSEGV) in one of
/// twenty-five kills when both processors were busy.
#[test]
fn memif_server_survives_killed_clients() {
    server_survives_killed_clients(Link::Memif);
}

/// The vhost library unmaps the peer's memory in a thread of its own.
#[test]
fn vhost_survives_killed_virtio_drivers() {
    server_survives_killed_clients(Link::Vhost);
}

fn server_survives_killed_clients(link: Link) {
    let Some(ends) = IwperfPair::new(link) else { return };
    for _ in 0..6 {
        let server = ends.server();
        let client = ends.busy_client();
        // Dropping kills it: no FIN, no RST, no memif disconnect message.
        drop(client);
        // Long enough for the driver to notice, too short for the server to drop the client.
        let ended = server.finish(Duration::from_millis(300)).unwrap();
        assert_eq!(ended.status, None, "the server went along: {}", ended.output);
    }
}

#[test]
fn memif_client_fails_when_the_server_is_killed() {
    client_fails_when_the_server_is_killed(Link::Memif);
}

#[test]
fn virtio_driver_fails_when_its_back_end_is_killed() {
    client_fails_when_the_server_is_killed(Link::Vhost);
}

fn client_fails_when_the_server_is_killed(link: Link) {
    let Some(ends) = IwperfPair::new(link) else { return };
    let server = ends.server();
    let client = ends.busy_client();
    drop(server);
    let ended = client.finish(PROCESS_TIMEOUT).unwrap();
    let status = ended.status.expect("the client ends");
    let failed = status.code().is_some_and(|code| code != 0 && code != 101);
    assert!(failed, "{status}: {}", ended.output);
}

#[test]
fn memif_socket_in_use_is_refused() {
    socket_in_use_is_refused(Link::Memif);
}

#[test]
fn vhost_socket_in_use_is_refused() {
    socket_in_use_is_refused(Link::Vhost);
}

fn socket_in_use_is_refused(link: Link) {
    let Some(ends) = IwperfPair::new(link) else { return };
    let first = ends.server();
    let second = process::run(&mut ends.server_command(), PROCESS_TIMEOUT).unwrap();
    let code = second.status.and_then(|status| status.code());
    assert!(code.is_some_and(|code| code != 0 && code != 101), "{code:?}: {}", second.output);
    assert_eq!(second.output.lines().count(), 1, "{}", second.output);
    drop(first);
}

/// A memif server serves one client at a time. The second one reports that soon.
#[test]
fn second_memif_client_ends_soon() {
    let Some(ends) = IwperfPair::new(Link::Memif) else { return };
    let server = ends.server();
    let first = ends.busy_client();
    let start = Instant::now();
    let second = process::run(&mut ends.client(&["write-bw", "198.18.0.1"]), PROCESS_TIMEOUT);
    let (second, took) = (second.unwrap(), start.elapsed());
    let code = second.status.and_then(|status| status.code());
    assert_eq!(code, Some(1), "{}", second.output);
    assert!(second.output.contains("no other program is connected"), "{}", second.output);
    // Most of it to start and to close on a busy machine; 5 s more before.
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop((first, server));
}

/// A back end serves one driver at a time. One whose driver was killed serves the next.
#[test]
fn second_virtio_driver_is_refused_until_the_first_is_gone() {
    let Some(ends) = IwperfPair::new(Link::Vhost) else { return };
    let server = ends.server();
    let first = ends.busy_client();
    let arguments = ["write-bw", "198.18.0.1", "-s", "3000", "-n", "100", "--verify"];
    let refused = process::run(&mut ends.client(&arguments), PROCESS_TIMEOUT).unwrap();
    assert!(refused.output.contains("is connected to this socket already"), "{}", refused.output);
    assert_eq!(refused.output.lines().count(), 1, "{}", refused.output);
    drop(first);
    // The server ends the session of the first once it knows that its driver is gone. Until then it
    // is busy.
    let is_served = (0..20).any(|_| {
        let second = process::run(&mut ends.client(&arguments), PROCESS_TIMEOUT).unwrap();
        let is_busy = second.output.contains("refused by the peer: busy with another client");
        assert!(second.success() || is_busy, "{:?}: {}", second.status, second.output);
        second.success()
    });
    assert!(is_served, "the server keeps the session of a driver that is gone");
    server.interrupt().unwrap();
    assert!(server.finish(PROCESS_TIMEOUT).unwrap().status.is_some());
}
