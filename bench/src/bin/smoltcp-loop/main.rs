//! Two TCP sockets of smoltcp over `ring`, in one process on one core: bandwidth and latency, for
//! the comparison with `iwperf loop`. Prints JSON as `iwperf` does.

mod port;

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::{Parser, ValueEnum};
use ferrowarp::device::{OpenConfig, open, register_current_thread};
use serde_json::json;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use crate::port::Port;

/// Addresses of client and server (benchmark range).
const ADDRESSES: [IpAddress; 2] = [IpAddress::v4(198, 18, 0, 1), IpAddress::v4(198, 18, 0, 2)];
const SERVER_PORT: u16 = 4791;
const CLIENT_PORT: u16 = 49_152;
/// Round trips before the measurement, and the part of the time that they may take.
const WARM_UP: usize = 1000;
const WARM_UP_PART: f64 = 0.1;
/// Polls until the connection has to be established.
const CONNECT_POLLS_MAX: usize = 1_000_000;
/// Polls between two looks at the clock.
const POLLS_PER_CLOCK_READ: usize = 32;

#[derive(Parser)]
#[command(about = "Bandwidth and latency of smoltcp's TCP over ring, on one core")]
struct Options {
    /// Test
    test: Test,
    /// Bytes per message: what is written by one call
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,
    /// MTU in bytes
    #[arg(long, default_value_t = 1500)]
    mtu: u16,
    /// Seconds to run
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Core to run on
    #[arg(long, default_value_t = 0)]
    core: usize,
    /// Bytes of each socket's buffers: the window. With more, the frames leave the cache
    #[arg(long, default_value_t = 262_144)]
    buffer: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Test {
    /// Bandwidth of a stream in one direction
    Bw,
    /// Half the round trip of a ping-pong
    Lat,
}

/// One end: interface, port and socket.
struct End {
    interface: Interface,
    port: Port,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

impl End {
    fn new(mut port: Port, address: IpAddress, test: Test, buffer: usize) -> Result<Self> {
        let config = Config::new(EthernetAddress(port.mac()).into());
        let now = smoltcp::time::Instant::now();
        let mut interface = Interface::new(config, &mut port, now);
        let mut added = Ok(());
        interface.update_ip_addrs(|addresses| {
            added = addresses.push(IpCidr::new(address, 24));
        });
        ensure!(added.is_ok(), "no room for an address");
        let buffer = || tcp::SocketBuffer::new(vec![0; buffer]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        // A stream is faster with Nagle's algorithm, which merges short messages.
        socket.set_nagle_enabled(test == Test::Bw);
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Ok(Self { interface, port, sockets, handle })
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn poll(&mut self) {
        let now = smoltcp::time::Instant::now();
        self.interface.poll(now, &mut self.port, &mut self.sockets);
        self.port.flush();
    }
}

/// Establishes the connection.
fn connect(ends: &mut [End; 2]) -> Result<()> {
    let [client, server] = ends;
    server.socket().listen(SERVER_PORT)?;
    let socket = client.sockets.get_mut::<tcp::Socket<'_>>(client.handle);
    socket.connect(client.interface.context(), (ADDRESSES[1], SERVER_PORT), CLIENT_PORT)?;
    for _ in 0..CONNECT_POLLS_MAX {
        client.poll();
        server.poll();
        if client.socket().may_send() && server.socket().may_recv() {
            return Ok(());
        }
    }
    bail!("no connection")
}

/// Writes messages until the time is over, and ends when the last byte has been read.
fn bandwidth(
    [client, server]: &mut [End; 2],
    size: usize,
    seconds: f64,
) -> Result<serde_json::Value> {
    let (source, mut sink) = (vec![0x5a; size], vec![0; size]);
    let (mut sent, mut received) = (0_u64, 0_u64);
    let (mut source_at, mut sink_at) = (0, 0);
    let start = Instant::now();
    let mut is_over = false;
    while !is_over || received < sent {
        for _ in 0..POLLS_PER_CLOCK_READ {
            // A message that was begun is completed.
            while !is_over || source_at > 0 {
                let written = client.socket().send_slice(&source[source_at..])?;
                if written == 0 {
                    break;
                }
                sent += written as u64;
                source_at = (source_at + written) % size;
            }
            client.poll();
            server.poll();
            while let read @ 1.. = server.socket().recv_slice(&mut sink[sink_at..])? {
                received += read as u64;
                sink_at = (sink_at + read) % size;
            }
        }
        is_over = start.elapsed().as_secs_f64() >= seconds;
    }
    let elapsed = start.elapsed().as_secs_f64();
    ensure!(sink == source, "other bytes than were sent");
    let messages = received as f64 / size as f64;
    Ok(json!({
        "errors": 0, "iterations": messages, "duration_s": elapsed, "lat_us": null,
        "bw_gbit_s": received as f64 * 8e-9 / elapsed, "msg_rate_mops": messages * 1e-6 / elapsed,
    }))
}

/// Exchanges messages, one at a time.
fn latency(ends: &mut [End; 2], size: usize, seconds: f64) -> Result<serde_json::Value> {
    let (source, mut sink) = (vec![0x5a; size], vec![0; size]);
    let mut round_trips_ns = Vec::with_capacity(1 << 22);
    let start = Instant::now();
    let mut before = start;
    let mut rounds = 0;
    while before.duration_since(start).as_secs_f64() < seconds {
        for from in [0, 1] {
            let (mut sent, mut received) = (0, 0);
            while received < size {
                if sent < size {
                    sent += ends[from].socket().send_slice(&source[sent..])?;
                }
                ends[from].poll();
                ends[1 - from].poll();
                received += ends[1 - from].socket().recv_slice(&mut sink[received..])?;
            }
        }
        let after = Instant::now();
        rounds += 1;
        let since_start = after.duration_since(start).as_secs_f64();
        if rounds > WARM_UP || since_start > seconds * WARM_UP_PART {
            round_trips_ns.push(after.duration_since(before).as_nanos() as f64);
        }
        before = after;
    }
    let count = round_trips_ns.len();
    ensure!(count > 0, "too short for one round trip");
    let duration_s = round_trips_ns.iter().sum::<f64>() * 1e-9;
    round_trips_ns.sort_by(f64::total_cmp);
    let at = |per_mille: usize| round_trips_ns[(count - 1) * per_mille / 1000] / 2e3;
    Ok(json!({
        "errors": 0, "iterations": count, "duration_s": duration_s,
        "bw_gbit_s": 0, "msg_rate_mops": 0,
        "lat_us": { "p50": at(500), "p90": at(900), "p99": at(990), "p999": at(999) },
    }))
}

fn main() -> Result<()> {
    let options = Options::parse();
    core_affinity::set_for_current(core_affinity::CoreId { id: options.core });
    let mut config = OpenConfig::default();
    config.mtu = options.mtu;
    let Some((left, right)) = open(&"ring".parse()?, &config)?.into_pair() else {
        bail!("a ring has two ends");
    };
    register_current_thread();
    let end = |device, index: usize| {
        End::new(Port::new(device), ADDRESSES[index], options.test, options.buffer)
    };
    let mut ends = [end(left, 0)?, end(right, 1)?];
    connect(&mut ends)?;
    let size = options.size as usize;
    let result = match options.test {
        Test::Bw => bandwidth(&mut ends, size, options.seconds)?,
        Test::Lat => latency(&mut ends, size, options.seconds)?,
    };
    println!("{}", json!({ "results": [result] }));
    Ok(())
}
