//! Two processes connected by a memif socket and shared memory.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use ferrowarp::{Access, ConnParam, Event, Payload};
use ferrowarp_tests::pattern;
use ferrowarp_tests::process::{self, Running, TempDir};
use ferrowarp_tests::skip;
use ferrowarp_tests::stack::{
    KERNEL, STACK, Stack, gather, post_read, post_recv, post_send, post_write,
};
use ferrowarp_tests::test_name;

const PROCESS_TIMEOUT: Duration = Duration::from_secs(60);

/// The socket to which the other process of [`rdma_between_two_processes`] connects.
const SOCKET: &str = "FERROWARP_TEST_SOCKET";
const PORT: u16 = 4791;
const LEN: usize = 3_000_000;

/// Inline payload of a Send.
fn inline(bytes: &[u8]) -> Payload {
    Payload::Inline(bytes.iter().copied().collect())
}

#[test]
fn rdma_between_two_processes() {
    if let Ok(socket) = std::env::var(SOCKET) {
        return client(&socket);
    }
    let dir = process::temp_dir().unwrap();
    let socket = dir.path().join("fw.sock");
    let stack = Stack::on_device(&format!("memif:{},server", socket.display()), STACK);
    let listener = stack.context.listen(PORT, 1).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test_name!(), "--nocapture"]);
    command.env(SOCKET, &socket);
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
    post_send(&qp, 10, inline(&[&addr[..], &rkey].concat()));
    assert_eq!(stack.expect_success().wr_id, 10);
    assert_eq!(stack.expect_success().wr_id, 1);
    let mut found = vec![0; LEN];
    shared.read(0, &mut found);
    assert!(found == pattern(7, LEN), "what the other process wrote");
    // The other process reads it back, and then closes.
    assert!(matches!(qp.wait_event(PROCESS_TIMEOUT), Some(Event::Disconnected { .. })));
    let ended = other.finish(PROCESS_TIMEOUT).unwrap();
    assert!(ended.success(), "{:?}: {}", ended.status, ended.output);
    drop((qp, listener, shared, recv_mr));
    stack.context.clone().close();
    drop(stack);
    assert!(!socket.exists(), "the socket is left behind");
}

fn client(socket: &str) {
    let stack = Stack::on_device(&format!("memif:{socket},client"), KERNEL);
    let recv_mr = stack.alloc_mr(100, Access::LOCAL_WRITE);
    let mine = stack.alloc_mr(LEN, Access::LOCAL_WRITE);
    let qp = stack.create_qp();
    post_recv(&qp, 0, recv_mr.sge(0, 100));
    qp.connect(SocketAddr::from((STACK, PORT)), ConnParam::default()).unwrap();
    qp.wait_established(PROCESS_TIMEOUT).unwrap();
    post_send(&qp, 1, inline(b"where?"));
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
    post_send(&qp, 4, gather(mine.sge(0, 10)));
    assert_eq!(stack.expect_success().wr_id, 4);
    qp.disconnect().unwrap();
    assert!(matches!(qp.wait_event(PROCESS_TIMEOUT), Some(Event::Disconnected { .. })));
}

/// `iwperf` at both ends of a socket.
struct IwperfPair {
    dir: TempDir,
    iwperf: std::path::PathBuf,
}

impl IwperfPair {
    fn new() -> Option<Self> {
        let Some(iwperf) = process::program("iwperf") else {
            skip("no iwperf; cargo build --profile test --bins");
            return None;
        };
        Some(Self { dir: process::temp_dir().unwrap(), iwperf })
    }

    fn device(&self, role: &str) -> String {
        format!("memif:{},{role}", self.dir.path().join("fw.sock").display())
    }

    fn server(&self) -> Running {
        let mut command = Command::new(&self.iwperf);
        command.args(["server", "--ip", "198.18.0.1/24", "--dev", &self.device("server")]);
        let mut server = Running::start(&mut command, self.dir.path().join("server.log")).unwrap();
        // It prints this line once a client can connect.
        server.wait_for("waiting for clients", PROCESS_TIMEOUT).unwrap();
        server
    }

    fn client(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.iwperf);
        command.args(arguments).args(["--ip", "198.18.0.2/24", "--dev", &self.device("client")]);
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
fn every_iwperf_test_between_two_processes() {
    let Some(ends) = IwperfPair::new() else { return };
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

/// On a disconnect DPDK's memif driver unmaps its rings in its interrupt thread, even while they
/// are in use. Without the protection against that, the other end crashed (SIGSEGV) in one of
/// twenty-five kills when both processors were busy.
#[test]
fn server_survives_killed_clients() {
    let Some(ends) = IwperfPair::new() else { return };
    for _ in 0..10 {
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
fn client_fails_when_the_server_is_killed() {
    let Some(ends) = IwperfPair::new() else { return };
    let server = ends.server();
    let client = ends.busy_client();
    drop(server);
    let ended = client.finish(PROCESS_TIMEOUT).unwrap();
    let status = ended.status.expect("the client ends");
    let failed = status.code().is_some_and(|code| code != 0 && code != 101);
    assert!(failed, "{status}: {}", ended.output);
}

#[test]
fn socket_in_use_is_refused() {
    let Some(ends) = IwperfPair::new() else { return };
    let first = ends.server();
    let mut command = Command::new(&ends.iwperf);
    command.args(["server", "--ip", "198.18.0.1/24", "--dev", &ends.device("server")]);
    let second = process::run(&mut command, PROCESS_TIMEOUT).unwrap();
    let code = second.status.and_then(|status| status.code());
    assert!(code.is_some_and(|code| code != 0 && code != 101), "{code:?}: {}", second.output);
    assert_eq!(second.output.lines().count(), 1, "{}", second.output);
    drop(first);
}
