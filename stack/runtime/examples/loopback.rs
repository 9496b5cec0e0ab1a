//! Rate of the stack with nothing but itself: two contexts joined by `ring`.
//!
//! `loopback write [SIZE] [MTU]`: RDMA Writes, both ends driven by one thread on core 0.
//! `loopback pingpong [SIZE] [MTU]`: Writes back and forth between threads pinned to cores 0 and 1,
//! each spinning on the last byte.
//! `loopback idle`: what polling costs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ferrowarp::device::DeviceSpec;
use ferrowarp::{
    Access, Config, ConnParam, Context, Cq, Mr, Qp, QpOptions, RemoteMr, SendFlags, Wc, WcStatus,
};

const TIMEOUT: Duration = Duration::from_secs(5);
const DEPTH: usize = 32;

struct Endpoint {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl Endpoint {
    fn new(context: Context, len: usize) -> Self {
        let (pd, cq) = (context.alloc_pd(), context.create_cq(1024).expect("a queue"));
        let options = QpOptions::new(&cq).max_send_wr(2 * DEPTH).max_recv_wr(1);
        let qp = pd.create_qp(&options).expect("a queue pair");
        let buffer = context.allocate(len).expect("memory");
        let mr = pd.register(buffer, Access::ALL).expect("a region");
        Self { context, cq, qp, mr }
    }
}

fn endpoints(mtu: u16, len: usize) -> (Endpoint, Endpoint) {
    let config = |host| {
        let address = IpAddr::V4(Ipv4Addr::new(198, 18, 0, host));
        Config::new(DeviceSpec::Ring, address, 24).mtu(mtu)
    };
    let (left, right) = Context::ring_pair(config(1), config(2)).expect("two ends");
    let (left, right) = (Endpoint::new(left, len), Endpoint::new(right, len));
    let listener = right.context.listen(4791, 1).expect("a listener");
    let server = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2)), 4791);
    left.qp.connect(server, ConnParam::new()).expect("an attempt");
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    request.accept(&right.qp, ConnParam::new()).expect("accepted");
    left.qp.wait_established(TIMEOUT).expect("connected");
    right.qp.wait_established(TIMEOUT).expect("connected");
    (left, right)
}

fn write(size: u32, mtu: u16) {
    core_affinity::set_for_current(core_affinity::CoreId { id: 0 });
    let (left, right) = endpoints(mtu, size as usize);
    let target = right.mr.remote();
    let mut wcs = [Wc::default(); DEPTH];
    let (mut posted, mut done) = (0_usize, 0_usize);
    for round in 0..4 {
        let (start, from) = (Instant::now(), done);
        let (busy, fpdus) = (core_seconds(), right.context.counters().engine.fpdus_in);
        while start.elapsed() < Duration::from_secs(2) {
            for _ in 0..64 {
                while posted - done < DEPTH {
                    let source = left.mr.sge(0, size);
                    left.qp.post().write(source, target).signaled().ring().expect("room");
                    posted += 1;
                }
                left.context.drive();
                right.context.drive();
                let found = left.cq.poll(&mut wcs);
                done += found.len();
                assert!(found.iter().all(|wc| wc.status == WcStatus::Success));
            }
        }
        let bytes = (done - from) as f64 * f64::from(size);
        let (wall, busy) = (start.elapsed().as_secs_f64(), core_seconds() - busy);
        let fpdus = right.context.counters().engine.fpdus_in - fpdus;
        println!(
            "round {round}: {:.2} Gb/s, {:.2} Gb per second of the core, {:.1} ns an FPDU",
            bytes * 8.0 / wall / 1e9,
            bytes * 8.0 / busy / 1e9,
            busy * 1e9 / fpdus as f64,
        );
    }
    println!("left  {:?}\nright {:?}", left.context.counters(), right.context.counters());
}

/// CPU time of this thread, where the operating system reports it; on a busy machine it is less
/// than the elapsed time.
fn core_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|field| field.parse::<f64>().ok());
    ns.unwrap_or(f64::NAN) / 1e9
}

fn pingpong(size: u32, mtu: u16) {
    const ROUNDS: usize = 200_000;
    let len = size as usize;
    let (left, right) = endpoints(mtu, 2 * len);
    let turn = |end: &Endpoint, peer: RemoteMr, core: usize, starts: bool| {
        core_affinity::set_for_current(core_affinity::CoreId { id: core });
        let mut wcs = [Wc::default(); 64];
        let mut times = Vec::with_capacity(ROUNDS);
        for round in 0..ROUNDS {
            let mark = (round % 251 + 1).to_le_bytes()[0];
            let begin = Instant::now();
            let mut send = || {
                end.mr.store_release(len + len - 1, mark);
                let source = end.mr.sge(len, size);
                let flags = SendFlags::SIGNALED.when(round % 16 == 0);
                while end.qp.post().write(source, peer).with(flags).ring().is_err() {
                    end.context.drive();
                }
                end.cq.poll(&mut wcs);
            };
            if starts {
                send();
            }
            while end.mr.load_last(len - 1) != mark {
                end.context.drive();
            }
            if !starts {
                send();
            }
            times.push(begin.elapsed().as_nanos());
        }
        // The last answer leaves in a pass.
        for _ in 0..100 {
            end.context.drive();
        }
        times
    };
    let (to_left, to_right) = (left.mr.remote(), right.mr.remote());
    let mut times = std::thread::scope(|scope| {
        let other = scope.spawn(|| turn(&right, to_left, 1, false));
        let times = turn(&left, to_right, 0, true);
        other.join().expect("the other end");
        times
    });
    times.drain(..ROUNDS / 10);
    times.sort_unstable();
    let half = |per_mille: usize| times[times.len() * per_mille / 1_000] as f64 / 2_000.0;
    println!(
        "half round trip: p50 {:.2} us, p99 {:.2} us, p99.9 {:.2} us",
        half(500),
        half(990),
        half(999)
    );
}

/// Cost of an idle poll.
fn idle() {
    const COUNT: u32 = 5_000_000;
    core_affinity::set_for_current(core_affinity::CoreId { id: 0 });
    let (left, _right) = endpoints(1500, 64);
    let mut wcs = [Wc::default(); 64];
    let busy = core_seconds();
    for _ in 0..COUNT {
        left.context.drive();
    }
    let drive = core_seconds() - busy;
    for _ in 0..COUNT {
        left.cq.poll(&mut wcs);
    }
    let poll = core_seconds() - busy - drive;
    let ns = |seconds: f64| seconds * 1e9 / f64::from(COUNT);
    println!("an idle pass takes {:.1} ns, an idle poll {:.1} ns", ns(drive), ns(poll));
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_else(|| "write".to_owned());
    let mut number =
        |default: u32| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    match what.as_str() {
        "write" => write(number(65_536), u16::try_from(number(1500)).expect("an MTU")),
        "pingpong" => pingpong(number(64), u16::try_from(number(1500)).expect("an MTU")),
        "idle" => idle(),
        _ => println!("loopback write|pingpong|idle [SIZE] [MTU]"),
    }
}
