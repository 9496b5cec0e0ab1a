//! Service under attack: a host that sends raw frames attacks the stack as one case says, and
//! meanwhile clients on kernel sockets are served and verified, each within a second. The resources
//! held by the host are printed and bounded, and are released once it is silent.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrowarp::stats::Usage;
use ferrowarp::{Context, Keepalive};
use ferrowarp_tests::{netns, skip, test_name};

pub(crate) mod host;
mod junk;
mod scenarios;
pub(crate) mod server;

use host::Host;
use scenarios::AttackContext;
use server::{PORT, Running};

const INTERFACE: &str = "fw0";
/// Time within which a client is served.
const SERVED_WITHIN: Duration = Duration::from_secs(1);
/// Clients, one after the other. On a busy machine a client may take longer through no fault of the
/// stack: a fifth of them has to be fast enough, or all of them where `FERROWARP_QUIET` is set,
const CLIENTS: usize = 10;
/// and none may take as long as if it had waited for the host's connections to time out.
const SERVED_AT_LAST: Duration = Duration::from_secs(6);
/// Maximum number of clients, if too few have been fast enough.
const CLIENTS_MAX: usize = 50;
/// Idle time before the first keepalive; the peer is dropped nine probes later.
const PROBE: Duration = Duration::from_millis(500);
/// Time until a peer that acknowledges nothing is dropped.
const USER_TIMEOUT: Duration = Duration::from_secs(9);
/// Time until all resources are released.
const RELEASED_WITHIN: Duration = Duration::from_secs(80);

/// One attack.
struct Case {
    /// Connections, or frames.
    count: usize,
    /// The attack, which runs until the clients are done.
    attack: fn(&mut Host, &AttackContext<'_>),
    /// Bounds on the resources that all connections of the host may hold.
    bounds: Bounds,
}

/// Maximum resources in use while clients are served.
#[derive(Clone, Copy)]
struct Bounds {
    connections: usize,
    half_open: usize,
    awaiting_request: usize,
    awaiting_decision: usize,
    partial_bytes: usize,
    held_frames: usize,
    held_bytes: usize,
}

/// Bounds of a stack with default settings, used for every case.
const BOUNDS: Bounds = Bounds {
    connections: 16_384,
    half_open: 1024,
    awaiting_request: 4096,
    // The backlog of the server.
    awaiting_decision: 64,
    partial_bytes: 128 << 20,
    // Frames for 8 MiB in flight, of 1,460 bytes.
    held_frames: 5746,
    held_bytes: 16 << 20,
};

/// True inside a namespace with all prerequisites.
fn ready(name: &str) -> bool {
    if !Path::new("/dev/net/tun").exists() {
        skip("no /dev/net/tun, so no tap devices");
        return false;
    }
    netns::inside(name)
}

macro_rules! table {
    ($($name:ident: $count:expr, $attack:path, $bounds:expr;)*) => {
        $(
            #[test]
            fn $name() {
                if ready(test_name!()) {
                    let case = Case { count: $count, attack: $attack, bounds: $bounds };
                    case.run();
                }
            }
        )*
    };
}

table! {
    silent_peers: 1000, scenarios::silent, BOUNDS;
    partial_mpa_requests: 1000, scenarios::partial_request, BOUNDS;
    partial_fpdus: 1100, scenarios::partial_fpdu, BOUNDS;
    peers_that_never_ack: 1000, scenarios::never_ack, BOUNDS;
    zero_window_peers: 1000, scenarios::zero_window, BOUNDS;
    one_byte_per_second: 1000, scenarios::one_byte_per_second, BOUNDS;
    many_ooo_holes: 16, scenarios::ooo_holes, BOUNDS;
    request_then_rst: 1000, scenarios::request_and_reset, BOUNDS;
    junk_at_line_rate: 1000, scenarios::junk, BOUNDS;
}

impl Case {
    fn run(&self) {
        let running = Running::new(INTERFACE, |config| {
            config.tcp.keepalive = Some(Keepalive::new(PROBE, PROBE, 9));
            config.tcp.user_timeout = USER_TIMEOUT;
        });
        let alone = server::client().expect("served without an attack");
        let before = running.context.usage();
        let (is_set, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (peak, sent) = std::thread::scope(|scope| {
            let context = running.context.clone();
            let (count, shared) = (self.count, running.shared);
            let (is_set, is_over) = (&is_set, &is_over);
            let attacker = scope.spawn(move || {
                let received = move || context.counters().engine.frames_in;
                let mut host = Host::new(INTERFACE, PORT, Box::new(received));
                let began = Instant::now();
                (self.attack)(&mut host, &AttackContext { count, shared, is_set, is_over });
                (host.sent, began.elapsed())
            });
            while !is_set.load(Ordering::Relaxed) && !attacker.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Also if a client is not served: the host has to stop before the test does.
            let over = SetOnDrop(is_over);
            let peak = self.serve(&running.context, alone);
            drop(over);
            (peak, attacker.join().expect("the host's script"))
        });
        let frames_per_s = sent.0 as f64 / sent.1.as_secs_f64();
        println!("{} frames sent, {frames_per_s:.0} per second", sent.0);
        let silent = Instant::now();
        self.check(&peak);
        let mut left = running.context.usage();
        while !is_released(&left, &before) && silent.elapsed() < RELEASED_WITHIN {
            std::thread::sleep(Duration::from_millis(50));
            left = running.context.usage();
        }
        assert!(is_released(&left, &before), "still held: {left:?}");
        println!(
            "all resources released {:.1} s after the attacks",
            silent.elapsed().as_secs_f64()
        );
        server::client().expect("served when all is over");
    }

    /// Serves clients; returns the peak usage meanwhile.
    fn serve(&self, context: &Context, alone: Duration) -> Usage {
        let mut times = Vec::new();
        let mut peak = context.usage();
        let enough = |times: &[Duration]| {
            let fast = times.iter().filter(|&&time| time < SERVED_WITHIN).count();
            times.len() >= CLIENTS && fast * 5 >= times.len()
        };
        while !enough(&times) && times.len() < CLIENTS_MAX {
            match server::client() {
                Ok(time) => {
                    let usage = context.usage();
                    let nth = times.len() + 1;
                    assert!(time < SERVED_AT_LAST, "client {nth} took {time:?}: {usage:?}");
                    times.push(time);
                }
                Err(error) => {
                    let usage = context.usage();
                    panic!("client {} is not served: {error}; {usage:?}", times.len() + 1);
                }
            }
            raise_to(&mut peak, &context.usage());
        }
        times.sort_unstable();
        let [first, middle, last] =
            [0, times.len() / 2, times.len() - 1].map(|index| times[index].as_secs_f64() * 1e3);
        println!(
            "{} clients: {first:.1} to {last:.1} ms, median {middle:.1} ms; {:.1} ms alone",
            times.len(),
            alone.as_secs_f64() * 1e3
        );
        assert!(enough(&times), "a client is served within {SERVED_WITHIN:?}: {times:?}");
        if std::env::var_os("FERROWARP_QUIET").is_some() {
            let slowest = times[times.len() - 1];
            assert!(slowest < SERVED_WITHIN, "each client, of a quiet machine: {times:?}");
        }
        peak
    }

    /// Prints the peak usage and checks it against the bounds.
    fn check(&self, peak: &Usage) {
        let (usage, bounds) = (&peak.engine, &self.bounds);
        println!("for {} peers: {usage:?}, {:?}", self.count, peak.frames_free);
        for (what, value, most) in [
            ("connections", usage.connections, bounds.connections),
            ("half-open connections", usage.half_open, bounds.half_open),
            ("without a request", usage.awaiting_request, bounds.awaiting_request),
            ("without a decision", usage.awaiting_decision, bounds.awaiting_decision),
            ("bytes of partial FPDUs", usage.partial_bytes, bounds.partial_bytes),
            ("frames held", usage.ooo_frames, bounds.held_frames),
            ("bytes held", usage.ooo_bytes, bounds.held_bytes),
        ] {
            println!("  {what}: {value}, at most {most}");
            assert!(value <= most, "{what}: {value}, at most {most}");
        }
    }
}

/// Sets a flag when dropped.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Raises each number of `peak` to the one of `usage`; lowers the free frames.
fn raise_to(peak: &mut Usage, usage: &Usage) {
    let (most, now) = (&mut peak.engine, &usage.engine);
    for (most, now) in [
        (&mut most.connections, now.connections),
        (&mut most.half_open, now.half_open),
        (&mut most.awaiting_request, now.awaiting_request),
        (&mut most.awaiting_decision, now.awaiting_decision),
        (&mut most.partial_fpdus, now.partial_fpdus),
        (&mut most.partial_bytes, now.partial_bytes),
        (&mut most.sent_copies, now.sent_copies),
        (&mut most.ooo_frames, now.ooo_frames),
        (&mut most.ooo_bytes, now.ooo_bytes),
        (&mut most.retained_segments, now.retained_segments),
        (&mut most.retained_segments_max, now.retained_segments_max),
        (&mut most.timers, now.timers),
    ] {
        *most = now.max(*most);
    }
    if let (Some(least), Some(now)) = (&mut peak.frames_free, usage.frames_free) {
        least.data = least.data.min(now.data);
        least.control = least.control.min(now.control);
        least.reserve = least.reserve.min(now.reserve);
    }
}

/// True if the usage is no higher than before.
fn is_released(usage: &Usage, before: &Usage) -> bool {
    let (now, frames) = (&usage.engine, usage.frames_free.unwrap_or_default());
    let enough = before.frames_free.unwrap_or_default().data;
    let held = now.ooo_frames + now.ooo_bytes + now.partial_fpdus + now.retained_segments;
    // The client's own connection may still be in TIME-WAIT.
    now.connections <= CLIENTS_MAX && held == 0 && frames.data + 64 >= enough
}
