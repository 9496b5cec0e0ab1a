//! The kernel interface below a device goes down, loses its carrier, is renamed or deleted: the
//! library and the programs report it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ferrowarp::{Access, AsyncEvent, ConnEvent, ConnParam, EndReason, Qp, QpState};
use ferrowarp_tests::netns::ip;
use ferrowarp_tests::process::{self, Running};
use ferrowarp_tests::stack::{KERNEL, STACK, Stack, TIMEOUT, post_write};
use ferrowarp_tests::{skip, test_name};

use crate::tap::ready;

const PORT: u16 = 4791;
/// Length of a transfer, in bytes.
const LEN: usize = 20_000;

/// A device, its interface, and commands for `ip`.
struct Case {
    device: &'static str,
    interface: &'static str,
    /// Before the device is opened.
    make: &'static [&'static str],
    /// The device at the other end, and how to connect it.
    peer: &'static str,
    join: &'static [&'static str],
    no_carrier: &'static str,
    carrier: &'static str,
}

const CASES: [Case; 2] = [
    Case {
        device: "tap:fwt0",
        interface: "fwt0",
        make: &[],
        peer: "tap:fwt1",
        join: &[
            "link add bridge type bridge",
            "link set bridge up",
            "link set fwt0 master bridge",
            "link set fwt1 master bridge up",
        ],
        no_carrier: "link set fwt0 carrier off",
        carrier: "link set fwt0 carrier on",
    },
    Case {
        device: "af_packet:fwv0",
        interface: "fwv0",
        make: &["link add fwv0 type veth peer name fwv1", "link set fwv1 up"],
        peer: "af_packet:fwv1",
        join: &[],
        no_carrier: "link set fwv1 down",
        carrier: "link set fwv1 up",
    },
];

fn run_ip(command: &str) {
    ip(&command.split_whitespace().collect::<Vec<_>>()).unwrap();
}

impl Case {
    fn make(&self) {
        self.make.iter().for_each(|command| run_ip(command));
    }

    /// Runs a command of `ip` about the interface.
    fn set(&self, command: &str) {
        run_ip(&command.replace("IF", self.interface));
    }
}

/// True if the kernel's interface of this name is set up.
fn is_up(interface: &str) -> bool {
    let shown = Command::new("ip").args(["-o", "link", "show", interface, "up"]).output().unwrap();
    !shown.stdout.is_empty()
}

/// Connects the peer to the stack; returns the queue pairs of both.
fn connect(stack: &Stack, peer: &Stack) -> (Qp, Qp) {
    let listener = stack.context.listen(PORT, 4).unwrap();
    let (qp, peer_qp) = (stack.create_qp(), peer.create_qp());
    peer_qp.connect(SocketAddr::from((STACK, PORT)), ConnParam::default()).unwrap();
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    request.accept(&qp, ConnParam::default()).unwrap();
    qp.wait_established(TIMEOUT).unwrap();
    peer_qp.wait_established(TIMEOUT).unwrap();
    (qp, peer_qp)
}

/// Failures of the link that pass end no connection; the end of the interface ends all.
#[test]
fn connections_survive_a_failure_and_end_with_their_interface() {
    if !ready(test_name!()) {
        return;
    }
    for case in CASES {
        case.make();
        let stack = Stack::on_device(case.device, STACK);
        let channel = stack.context.event_channel().unwrap();
        case.set("link set IF up");
        let peer = Stack::on_device(case.peer, KERNEL);
        case.join.iter().for_each(|command| run_ip(command));
        let (qp, peer_qp) = connect(&stack, &peer);
        let shared = stack.alloc_mr(LEN, Access::REMOTE_WRITE);
        let transfer = || {
            let source = peer.alloc_mr(LEN, Access::LOCAL_READ);
            post_write(
                &peer_qp,
                1,
                source.sge(0, LEN.try_into().unwrap()),
                shared.rkey(),
                shared.addr(),
            );
            let _ = peer.expect_success();
        };
        transfer();
        let next_state = || loop {
            let event = channel.wait(TIMEOUT).expect("a change of the link is reported");
            if matches!(event, AsyncEvent::PortError | AsyncEvent::PortActive) {
                return event;
            }
        };
        // Events of the start: the carrier comes up a little later.
        while !stack.context.link_is_up() {
            sleep(Duration::from_millis(5));
        }
        sleep(Duration::from_millis(300));
        while channel.next_event().is_some() {}
        for (command, event) in [
            ("link set IF down", AsyncEvent::PortError),
            ("link set IF up", AsyncEvent::PortActive),
            (case.no_carrier, AsyncEvent::PortError),
            (case.carrier, AsyncEvent::PortActive),
            ("link set IF down", AsyncEvent::PortError),
        ] {
            case.set(command);
            assert_eq!(next_state(), event, "{}: {command}", case.device);
            assert_eq!(stack.context.link_is_up(), event == AsyncEvent::PortActive);
        }
        case.set("link set IF name renamed");
        run_ip("link set renamed up");
        assert_eq!(next_state(), AsyncEvent::PortActive);
        transfer();

        run_ip("link delete renamed");
        // Another one of the first name is not the device's.
        case.set("link add IF type veth peer name other");
        run_ip("link set other up");
        case.set("link set IF up");
        let ended = qp.wait_event(TIMEOUT);
        let expected = ConnEvent::Disconnected { qp: qp.id(), reason: EndReason::DeviceRemoved };
        assert_eq!(ended, Some(expected), "{}", case.device);
        let mut events = Vec::new();
        while events.last() != Some(&AsyncEvent::Failed) {
            events.push(channel.wait(TIMEOUT).expect("the context fails"));
        }
        assert!(events.contains(&AsyncEvent::PortError), "{events:?}");
        let start = Instant::now();
        while !stack.context.has_failed() {
            assert!(start.elapsed() < TIMEOUT, "the event comes before the state");
        }
        assert!(!stack.context.link_is_up());
        assert_eq!(qp.state(), QpState::Error);
        let start = Instant::now();
        stack.context.close();
        assert!(start.elapsed() < TIMEOUT, "{}", case.device);
        assert!(is_up(case.interface), "{}: closing sets another interface down", case.device);
        case.set("link delete IF");
    }
}

/// Starts a program on the device; `None` if it was not built.
fn start(name: &str, arguments: &str, dir: &Path) -> Option<Running> {
    let Some(path) = process::program(name) else {
        skip(&format!("no {name}; cargo build --profile test --bins"));
        return None;
    };
    let mut command = Command::new(path);
    command.args(arguments.split_whitespace());
    Some(Running::start(&mut command, dir.join(format!("{name}.log"))).unwrap())
}

/// The programs report each failure in a line, and end when the interface has.
#[test]
fn programs_report_their_interface() {
    if !ready(test_name!()) {
        return;
    }
    for (name, arguments, announced, error) in [
        ("iwping", "server -P --ip 198.18.7.2/24 --dev DEV", "waiting", "device was removed"),
        ("iwperf", "server --ip 198.18.7.2/24 --dev DEV", "waiting", "device was removed"),
        ("iwcopy", "server --ip 198.18.7.2/24 --dev DEV", "waiting", "device was removed"),
        ("iwlink", "--left DEV --right tap:fwt9", "seed", "--left: the device was removed"),
    ] {
        for case in CASES {
            case.make();
            let dir = process::temp_dir().unwrap();
            let arguments = arguments.replace("DEV", case.device);
            let Some(mut program) = start(name, &arguments, dir.path()) else { return };
            program.wait_for(announced, TIMEOUT).unwrap();
            let reported = |state: &str| {
                let output = program.output().unwrap();
                output.matches(&format!("the link is {state}")).count()
            };
            let wait = |command: &str, is_reported: &dyn Fn() -> bool| {
                let start = Instant::now();
                while !is_reported() {
                    let output = program.output();
                    assert!(start.elapsed() < TIMEOUT, "{name} {command}: {output:?}");
                    sleep(Duration::from_millis(20));
                }
            };
            case.set("link set IF up");
            // No news, unless the program saw it down before.
            sleep(Duration::from_millis(500));
            wait("at the start", &|| reported("down") == reported("up"));
            for (fails, works) in
                [("link set IF down", "link set IF up"), (case.no_carrier, case.carrier)]
            {
                for (command, state) in [(fails, "down"), (works, "up")] {
                    let before = reported(state);
                    case.set(command);
                    wait(command, &|| reported(state) == before + 1);
                }
            }
            let before = program.output().unwrap();
            case.set("link delete IF");
            let ended = program.finish(TIMEOUT).unwrap();
            let code = ended.status.and_then(|status| status.code());
            assert_eq!(code, Some(1), "{name} {}: {}", case.device, ended.output);
            let last: Vec<_> = ended.output[before.len()..].lines().collect();
            let errors = last.iter().filter(|line| line.contains("removed")).count();
            assert!(last.last().is_some_and(|line| line.contains(error)), "{last:?}");
            assert_eq!((errors, last.len()), (1, last.len()), "{last:?}");
        }
    }
}
