//! A process at the other end of a memif or vhost-user socket is killed: connections over the link
//! end within a second, and the next process is served.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use ferrowarp::{Access, ConnEvent, ConnParam, DriveMode, EndReason, Listener, Qp, WcStatus};
use ferrowarp_tests::process::{self, Running, TempDir};
use ferrowarp_tests::stack::{KERNEL, STACK, Stack, post_recv, post_send_inline};
use ferrowarp_tests::test_name;

use crate::two_processes::Link;

const TIMEOUT: Duration = Duration::from_secs(60);
const NOTICED: Duration = Duration::from_secs(1);
const PORT: u16 = 4791;
/// Device of the other process, and whether it serves.
const DEVICE: &str = "FERROWARP_TEST_KILLED_DEVICE";
const SERVES: &str = "FERROWARP_TEST_KILLED_SERVES";

fn open(device: &str, address: Ipv4Addr) -> Stack {
    Stack::on_device_with(device, address, |config| config.drive = DriveMode::Helper)
}

/// Program of the process that is killed.
fn other_process(device: &str) {
    let serves = std::env::var(SERVES).is_ok();
    let stack = open(device, if serves { STACK } else { KERNEL });
    let qp = stack.create_qp();
    let mr = stack.alloc_mr(64, Access::LOCAL_WRITE);
    post_recv(&qp, 0, mr.sge(0, 64));
    if serves {
        let listener = stack.context.listen(PORT, 1).unwrap();
        println!("ready");
        listener.accept_timeout(TIMEOUT).unwrap().accept(&qp, ConnParam::new()).unwrap();
    } else {
        qp.connect(SocketAddr::from((STACK, PORT)), ConnParam::new()).unwrap();
    }
    qp.wait_established(TIMEOUT).unwrap();
    println!("connected");
    std::thread::sleep(TIMEOUT);
}

struct Other {
    dir: TempDir,
    link: Link,
    count: usize,
}

impl Other {
    fn new(link: Link) -> Self {
        Self { dir: process::temp_dir().unwrap(), link, count: 0 }
    }

    fn device(&self, serves: bool) -> String {
        let socket = self.dir.path().join("fw.sock");
        if serves { self.link.server(&socket) } else { self.link.client(&socket) }
    }

    fn start(&mut self, name: &str, serves: bool) -> Running {
        self.count += 1;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]);
        command.env(DEVICE, self.device(serves));
        if serves {
            command.env(SERVES, "1");
        }
        let log = self.dir.path().join(format!("{}.log", self.count));
        Running::start(&mut command, log).unwrap()
    }
}

/// Accepts a connection of the other process, with a receive posted.
fn accept(stack: &Stack, listener: &Listener, other: &Running) -> Qp {
    let qp = stack.create_qp();
    let mr = stack.alloc_mr(64, Access::LOCAL_WRITE);
    post_recv(&qp, 7, mr.sge(0, 64));
    let request = listener.accept_timeout(TIMEOUT);
    let request = request.unwrap_or_else(|| panic!("no request: {}", other.output().unwrap()));
    request.accept(&qp, ConnParam::new()).unwrap();
    qp.wait_established(TIMEOUT).unwrap();
    qp
}

/// Kills the other process, and returns the time until the end of the connection.
fn kill(stack: &Stack, qp: &Qp, other: Running) -> Duration {
    let killed = Instant::now();
    other.signal("KILL").unwrap();
    let event = qp.wait_event(TIMEOUT);
    let took = killed.elapsed();
    let expected = ConnEvent::Disconnected { qp: qp.id(), reason: EndReason::LinkDown };
    assert_eq!(event, Some(expected), "after {took:?}");
    let flushed = stack.completions(1);
    assert_eq!((flushed[0].wr_id, flushed[0].status), (7, WcStatus::Flushed));
    assert!(took < NOTICED, "{took:?}");
    took
}

#[test]
fn killed_memif_client_is_noticed_and_the_next_is_served() {
    clients_are_killed(Link::Memif, test_name!());
}

#[test]
fn killed_virtio_client_is_noticed_and_the_next_is_served() {
    clients_are_killed(Link::Vhost, test_name!());
}

fn clients_are_killed(link: Link, name: &str) {
    if let Ok(device) = std::env::var(DEVICE) {
        return other_process(&device);
    }
    let mut others = Other::new(link);
    let stack = open(&others.device(true), STACK);
    let listener = stack.context.listen(PORT, 1).unwrap();
    for _ in 0..3 {
        let other = others.start(name, false);
        let qp = accept(&stack, &listener, &other);
        let took = kill(&stack, &qp, other);
        println!("{link:?}: noticed after {took:?}");
        assert_eq!(stack.context.connection_count(), 0);
    }
}

/// The connection ends also if data was outstanding, which TCP would retransmit for minutes.
#[test]
fn killed_memif_server_is_noticed() {
    if let Ok(device) = std::env::var(DEVICE) {
        return other_process(&device);
    }
    let mut others = Other::new(Link::Memif);
    let mut server = others.start(test_name!(), true);
    server.wait_for("ready", TIMEOUT).unwrap();
    let stack = open(&others.device(false), KERNEL);
    let qp = stack.create_qp();
    let mr = stack.alloc_mr(64, Access::LOCAL_WRITE);
    post_recv(&qp, 7, mr.sge(0, 64));
    qp.connect(SocketAddr::from((STACK, PORT)), ConnParam::new()).unwrap();
    qp.wait_established(TIMEOUT).unwrap();
    post_send_inline(&qp, 1, b"hello");
    assert_eq!(stack.expect_success().wr_id, 1);
    server.wait_for("connected", TIMEOUT).unwrap();
    let took = kill(&stack, &qp, server);
    println!("noticed after {took:?}");
}
