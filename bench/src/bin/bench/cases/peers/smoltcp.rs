//! smoltcp: two interfaces over `ring` in this process, a TCP socket each, on one core.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use ferrowarp::device::{Device as _, register_current_thread};
use hdrhistogram::Histogram;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use super::smoltcp_device::Port;
use super::{LATENCIES, Peer, Test, rate};
use crate::cores::on_core;
use crate::ring::open_ring;
use crate::runner::{Figures, us};

/// Addresses of client and server (benchmark range).
const ADDRESSES: [IpAddress; 2] = [IpAddress::v4(198, 18, 0, 1), IpAddress::v4(198, 18, 0, 2)];
const SERVER_PORT: u16 = 4791;
const CLIENT_PORT: u16 = 49_152;
/// Round trips before the measurement.
const WARM_UP: usize = 1000;
/// Polls until the connection has to be established.
const CONNECT_POLLS_MAX: usize = 1_000_000;
/// Polls between two looks at the clock.
const POLLS_PER_CLOCK_READ: usize = 32;
/// Bytes of each socket's buffers: the window. With more, the frames leave the cache.
const BUFFER_LEN: usize = 262_144;

/// Returns smoltcp on a core, with an MTU.
pub(crate) fn peer(core: usize, mtu: u16) -> Peer {
    let lock = include_str!("../../../../../../Cargo.lock");
    let version = lock.lines().skip_while(|line| *line != "name = \"smoltcp\"").nth(1);
    let version = version.unwrap_or_default().trim_start_matches("version = ").replace('"', "");
    let about = "two interfaces of smoltcp over `ring`, a TCP socket each: a stream, of which a \
                 message is one call";
    Peer {
        name: "smoltcp",
        about: about.to_owned(),
        is_ours: false,
        version: Ok(version),
        supports: Box::new(|test| {
            matches!(test, Test::Stream { connections: 1, .. } | Test::PingPong { .. })
        }),
        run: Box::new(move |test, seconds| on_core(core, || run(mtu, test, seconds))),
    }
}

fn run(mtu: u16, test: Test, seconds: f64) -> Result<Figures> {
    let (left, right) = open_ring(mtu, 1)?;
    register_current_thread();
    let end = |device, index: usize| End::new(Port::new(device), ADDRESSES[index], test);
    let mut ends = [end(left, 0), end(right, 1)];
    connect(&mut ends)?;
    match test {
        Test::Stream { size, .. } => bandwidth(&mut ends, usize::try_from(size)?, seconds),
        Test::PingPong { size } => latency(&mut ends, usize::try_from(size)?, seconds),
    }
}

/// One end: interface, port and socket.
struct End {
    interface: Interface,
    port: Port,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

impl End {
    fn new(mut port: Port, address: IpAddress, test: Test) -> Self {
        let config = Config::new(EthernetAddress(port.device.capabilities().mac).into());
        let now = smoltcp::time::Instant::now();
        let mut interface = Interface::new(config, &mut port, now);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(address, 24)).expect("there is room for one");
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER_LEN]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        // A stream is faster with Nagle's algorithm, which merges short messages.
        socket.set_nagle_enabled(matches!(test, Test::Stream { .. }));
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Self { interface, port, sockets, handle }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn poll(&mut self) {
        let now = smoltcp::time::Instant::now();
        self.interface.poll(now, &mut self.port, &mut self.sockets);
        self.port.device.flush();
    }
}

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
fn bandwidth([client, server]: &mut [End; 2], size: usize, seconds: f64) -> Result<Figures> {
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
    Ok(rate(received as f64 / size as f64 / elapsed, size as u64))
}

/// Exchanges messages, one at a time.
fn latency(ends: &mut [End; 2], size: usize, seconds: f64) -> Result<Figures> {
    let (source, mut sink) = (vec![0x5a; size], vec![0; size]);
    let mut half_trips = Histogram::<u64>::new(3)?;
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
        if rounds > WARM_UP {
            half_trips.record(u64::try_from((after - before).as_nanos() / 2)?)?;
        }
        before = after;
    }
    ensure!(!half_trips.is_empty(), "too short for {WARM_UP} round trips: more --seconds");
    let us = |quantile| us(&half_trips, quantile);
    Ok(LATENCIES.into_iter().zip([0.5, 0.99, 0.999].map(us)).collect())
}
