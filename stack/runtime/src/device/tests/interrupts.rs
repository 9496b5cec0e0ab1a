//! Receive interrupts of ports whose link partner is the kernel: what an idle context costs, and
//! how soon one that sleeps wakes up. Needs root. `--nocapture` shows the figures.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use dpdk_sys::fd::wait_readable;
use dpdk_sys::netif;

use super::kernel::{in_namespace, ip};
use super::*;
use crate::{Config, ConnParam, Context, DriveMode, Notify, QpOptions};

/// Devices whose link partner is the kernel's interface `fwi0`.
const TAP: &str = "tap:fwi0";
const AF_PACKET: &str = "af_packet:fwi1";

const TIMEOUT: Duration = Duration::from_secs(20);
/// Share of a core that an idle context may use: on some virtual machines the looks at its link
/// take half of that.
const IDLE_SHARE_MAX: f64 = 0.002;
/// Wake-ups that are measured.
const COUNT: usize = 200;
/// Pauses before each: after the shorter one a helper sleeps, and after the longer one a thread
/// that polls while it waits does so for as long as it may.
const PAUSE: Duration = Duration::from_millis(1);
const LONG_PAUSE: Duration = Duration::from_millis(25);

/// MPA Request Frame of revision 1, with CRCs and without private data (RFC 5044 section 7.1.1).
const MPA_REQUEST: &[u8; 20] = b"MPA ID Req Frame\x40\x01\0\0";

/// Sets up the kernel's side. Before the device is opened for `af_packet`, and after it for `tap`.
fn set_up(device: &str, is_open: bool) {
    if device.starts_with("tap:") == is_open {
        if !is_open && !netif::exists("fwi1") {
            ip("link add fwi0 type veth peer name fwi1");
            ip("link set fwi1 up");
            compute_checksums();
        }
        ip("address replace 198.18.0.1/24 dev fwi0");
        ip("link set fwi0 up");
    }
}

/// The kernel leaves the checksums of frames to a veth's other end, which is no kernel here.
fn compute_checksums() {
    let output = Command::new("ethtool").args(["-K", "fwi0", "tx", "off"]).output();
    assert!(output.expect("ethtool is installed").status.success());
}

fn open_context(device: &str, drive: DriveMode) -> Context {
    let address = Ipv4Addr::new(198, 18, 0, 2);
    let config = Config::new(device.parse().unwrap(), address.into(), 24).drive(drive);
    set_up(device, false);
    let context = Context::open(config).unwrap();
    set_up(device, true);
    context
}

/// Processor time of the threads of this network namespace, except the calling one.
fn threads_time() -> Duration {
    let namespace = |task: &str| std::fs::read_link(format!("/proc/{task}/ns/net")).ok();
    let (own_namespace, own) = (namespace("thread-self"), std::fs::read_link("/proc/thread-self"));
    let own = own.unwrap().file_name().unwrap().to_owned();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let used = tasks.filter_map(|task| {
        let id = task.file_name();
        let path = PathBuf::from("self/task").join(&id);
        let is_of_context = id != own && namespace(path.to_str()?) == own_namespace;
        let times = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let used = times.split(' ').next()?.parse().ok()?;
        is_of_context.then_some(Duration::from_nanos(used))
    });
    used.sum()
}

/// Times from just before the kernel sends a connection request until a thread that slept in
/// `accept_timeout` runs, in order of size. Each comes after a pause for which all threads sleep.
fn request_delays(context: &Context, pause: Duration) -> Vec<Duration> {
    let listener = context.listen(4791, 4).unwrap();
    let (woken, wakes) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..COUNT {
                let request = listener.accept_timeout(TIMEOUT).expect("the request arrives");
                woken.send(Instant::now()).unwrap();
                // Fails if the connection has ended since.
                let _ = request.reject(&[]);
            }
        });
        delays(pause, |pause| {
            let mut stream = TcpStream::connect(("198.18.0.2", 4791)).unwrap();
            pause();
            let sent = Instant::now();
            stream.write_all(MPA_REQUEST).unwrap();
            let woken = wakes.recv_timeout(TIMEOUT).expect("the thread is woken");
            woken.saturating_duration_since(sent)
        })
    })
}

/// The same for a thread that sleeps on the descriptor of a bare device, which the kernel sends
/// datagrams.
fn descriptor_delays(device: &mut DpdkDevice) -> Vec<Duration> {
    let interrupt = device.rx_interrupt().unwrap();
    let socket = UdpSocket::bind(("198.18.0.1", 0)).unwrap();
    let (woken, wakes) = mpsc::channel();
    let (ready, sleeps) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for () in sleeps {
                while wait_readable([interrupt.as_fd()], TIMEOUT) != [true] {}
                woken.send(Instant::now()).unwrap();
            }
        });
        let sorted = delays(PAUSE, |pause| {
            while device.receive(&mut Vec::new(), 32) > 0 {}
            ready.send(()).unwrap();
            pause();
            let sent = Instant::now();
            socket.send_to(b"x", ("198.18.0.2", 9)).unwrap();
            let woken = wakes.recv_timeout(TIMEOUT).expect("the thread is woken");
            woken.saturating_duration_since(sent)
        });
        drop(ready);
        sorted
    })
}

/// The delays that `once` measures, in order of size. It is passed a function that lets all threads
/// fall asleep, for `pause` and a time of varying length.
fn delays(pause: Duration, mut once: impl FnMut(&dyn Fn()) -> Duration) -> Vec<Duration> {
    let more = |number| Duration::from_micros(number * 7_919 % 1_500);
    let mut delays: Vec<_> = (0..COUNT as u64)
        .map(|number| once(&|| std::thread::sleep(pause + more(number))))
        .collect();
    delays.sort_unstable();
    delays
}

fn print(case: &str, delays: &[Duration]) {
    let at = |percent: usize| delays[(delays.len() * percent / 100).min(delays.len() - 1)];
    println!("{case}: wake-up p50 {:?}, p99 {:?}", at(50), at(99));
}

/// A thread that sleeps in a call is woken by the helper, which sleeps as well, or by the port.
fn sleepers_wake_up(device: &'static str) {
    in_namespace(move || {
        set_up(device, false);
        let mut bare = open_single(device, &OpenConfig::new()).unwrap();
        set_up(device, true);
        ip("neighbour replace 198.18.0.2 lladdr 02:00:00:00:00:01 dev fwi0");
        let baseline = descriptor_delays(&mut bare);
        ip("neighbour delete 198.18.0.2 dev fwi0");
        drop(bare);
        wait_until("the interface is removed", || {
            !device.starts_with("tap:") || !netif::exists("fwi0")
        });
        for drive in [DriveMode::Helper, DriveMode::Hot, DriveMode::Inline] {
            let context = open_context(device, drive);
            let pause = if drive == DriveMode::Inline { LONG_PAUSE } else { PAUSE };
            let delays = request_delays(&context, pause);
            print(&format!("{device}, bare descriptor"), &baseline);
            print(&format!("{device}, {drive:?}"), &delays);
            // With all threads asleep and no traffic but this: it is no matter of the timers.
            assert!(delays[COUNT / 2] < Duration::from_millis(100), "{:?}", delays[COUNT / 2]);
            context.close();
        }
    });
}

#[test]
fn sleepers_on_a_tap_wake_up() {
    sleepers_wake_up(TAP);
}

#[test]
fn sleepers_on_a_packet_socket_wake_up() {
    sleepers_wake_up(AF_PACKET);
}

/// A thread that sleeps on the port is woken if another one polls, and finds what it waits for.
#[test]
fn sleeper_is_woken_by_the_poll_of_another_thread() {
    in_namespace(|| {
        let context = open_context(TAP, DriveMode::Inline);
        let is_over = AtomicBool::new(false);
        let delays = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    context.drive();
                    std::thread::yield_now();
                }
            });
            let delays = request_delays(&context, LONG_PAUSE);
            is_over.store(true, Ordering::Relaxed);
            delays
        });
        print("tap, polled by another thread", &delays);
        assert!(delays[COUNT / 2] < Duration::from_millis(100), "{:?}", delays[COUNT / 2]);
    });
}

/// Also with a connection that waits, an armed queue and an exported descriptor.
fn idle_context_sleeps(device: &'static str, drive: DriveMode) {
    in_namespace(move || {
        let context = open_context(device, drive);
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq_on(&channel, 16).unwrap();
        cq.req_notify(Notify::Next).unwrap();
        let qp = context.alloc_pd().create_qp(&QpOptions::new(&cq)).unwrap();
        let listener = context.listen(4791, 4).unwrap();
        let mut peer = TcpStream::connect(("198.18.0.2", 4791)).unwrap();
        peer.write_all(MPA_REQUEST).unwrap();
        let request = listener.accept_timeout(TIMEOUT).unwrap();
        request.accept(&qp, ConnParam::new()).unwrap();
        qp.wait_established(TIMEOUT).unwrap();
        threads_are_idle(&format!("{device}, {drive:?}"));
    });
}

/// Waits until the threads of this network namespace use next to no processor time.
fn threads_are_idle(case: &str) {
    let (mut share, mut rounds) = (1.0, 0);
    // The first rounds include what the kernel sends when an interface comes up.
    while share >= IDLE_SHARE_MAX {
        assert!(rounds < 10, "{case}: {share} of a core");
        rounds += 1;
        let (start, used) = (Instant::now(), threads_time());
        std::thread::sleep(Duration::from_secs(2));
        // Less: a thread that has opened the device has ended.
        let Some(used) = threads_time().checked_sub(used) else { continue };
        share = used.as_secs_f64() / start.elapsed().as_secs_f64();
        println!("{case}: idle context: {:.3} % of a core", share * 100.0);
    }
}

/// A thread of the application that polls while it waits sleeps on the port, until the context
/// ends.
fn waiting_thread_sleeps(device: &'static str) {
    in_namespace(move || {
        let context = open_context(device, DriveMode::Inline);
        let listener = context.listen(4791, 4).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| listener.accept_timeout(TIMEOUT).is_none());
            threads_are_idle(&format!("{device}, a call that waits"));
            context.close();
            assert!(waits.join().unwrap());
        });
    });
}

#[test]
fn waiting_thread_sleeps_on_a_tap() {
    waiting_thread_sleeps(TAP);
}

#[test]
fn waiting_thread_sleeps_on_a_packet_socket() {
    waiting_thread_sleeps(AF_PACKET);
}

#[test]
fn idle_context_on_a_tap_sleeps() {
    idle_context_sleeps(TAP, DriveMode::Helper);
}

#[test]
fn idle_context_on_a_packet_socket_sleeps() {
    idle_context_sleeps(AF_PACKET, DriveMode::Hot);
}

/// Each queue has a descriptor of its own, in order.
#[test]
fn descriptors_of_packet_sockets_are_those_of_their_queues() {
    in_namespace(|| {
        set_up(AF_PACKET, false);
        let config = OpenConfig { queues: 3, ..OpenConfig::new() };
        let Opened::One(mut devices) = open(&AF_PACKET.parse().unwrap(), &config).unwrap() else {
            panic!("one port");
        };
        set_up(AF_PACKET, true);
        ip("neighbour replace 198.18.0.2 lladdr 02:00:00:00:00:01 dev fwi0");
        let interrupts: Vec<_> =
            devices.iter().map(|device| device.rx_interrupt().unwrap()).collect();
        let [a, b, c] = [0, 1, 2].map(|at: usize| interrupts[at].as_fd());
        let mut seen = [false; 3];
        for round in 0..1_000 {
            for device in &mut devices {
                while device.receive(&mut Vec::new(), 32) > 0 {}
            }
            assert_eq!(wait_readable([a, b, c], Duration::ZERO), [false; 3], "round {round}");
            // Another flow each time, which the kernel hashes to any queue.
            let socket = UdpSocket::bind(("198.18.0.1", 0)).unwrap();
            socket.send_to(b"x", ("198.18.0.2", 9)).unwrap();
            let readable = wait_readable([a, b, c], TIMEOUT);
            let received = [0, 1, 2].map(|at: usize| devices[at].receive(&mut Vec::new(), 32) > 0);
            assert_eq!(readable, received, "round {round}");
            seen.iter_mut().zip(readable).for_each(|(seen, now)| *seen |= now);
            if seen == [true; 3] {
                return;
            }
        }
        panic!("only these queues received anything: {seen:?}");
    });
}
