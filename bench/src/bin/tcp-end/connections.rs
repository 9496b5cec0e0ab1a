//! Connections set up per second: TCP handshake, MPA startup exchange, graceful close.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use ferrowarp::device::DeviceSpec;
use ferrowarp::{Config, ConnParam, Context, Cq, Event, Listener, Pd, Qp, QpOptions};
use ferrowarp_tests::netns;
use ferrowarp_tests::peer::{Peer, Role, Startup, StartupFrame};

use crate::verbs_end;

const PORT: u16 = 4791;
const OURS: Ipv4Addr = Ipv4Addr::new(198, 18, 65, 2);
const KERNEL: Ipv4Addr = Ipv4Addr::new(198, 18, 65, 1);
const INTERFACE: &str = "fwc0";
/// Timeout without progress.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Measures the kernel with itself: one thread connects, one accepts.
pub(crate) fn kernel(count: usize, batch: usize) -> Result<f64> {
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, PORT);
    let listener = TcpListener::bind(address)?;
    let acceptor = std::thread::spawn(move || kernel_accepts(&listener, count, batch));
    let start = Instant::now();
    kernel_connects(address, count, batch)?;
    let rate = rate(count, start);
    join_thread(acceptor)?;
    Ok(rate)
}

/// Measures ours with ours, both ends on this thread.
pub(crate) fn ring(count: usize, batch: usize) -> Result<f64> {
    let config =
        |host| Config::new(DeviceSpec::Ring, IpAddr::V4(Ipv4Addr::new(198, 18, 65, host)), 24);
    let (left, right) =
        Context::ring_pair(config(1), config(2)).map_err(|error| anyhow!("{error}"))?;
    let (left, right) = (Endpoint::new(left)?, Endpoint::new(right)?);
    let listener = right.context.listen(PORT, batch)?;
    let mut acceptor = Acceptor { end: &right, listener, open: Vec::new(), done: 0 };
    let mut connector = Connector::new(&left, SocketAddrV4::new(OURS, PORT), count, batch);
    let start = Instant::now();
    let mut watchdog = Watchdog::new();
    while connector.done < count || acceptor.done < count {
        connector.step()?;
        acceptor.step()?;
        watchdog.progress(connector.done + acceptor.done)?;
    }
    Ok(rate(count, start))
}

/// Measures ours to the kernel over a tap.
pub(crate) fn ours_to_kernel(count: usize, batch: usize) -> Result<f64> {
    let ours = open_on_tap()?;
    let address = SocketAddrV4::new(KERNEL, PORT);
    let listener = TcpListener::bind(address)?;
    let acceptor = std::thread::spawn(move || kernel_accepts(&listener, count, batch));
    let mut connector = Connector::new(&ours, address, count, batch);
    let start = Instant::now();
    let mut watchdog = Watchdog::new();
    while connector.done < count {
        connector.step()?;
        watchdog.progress(connector.done)?;
    }
    let rate = rate(count, start);
    join_thread(acceptor)?;
    Ok(rate)
}

/// Measures the kernel to ours over a tap.
pub(crate) fn kernel_to_ours(count: usize, batch: usize) -> Result<f64> {
    let ours = open_on_tap()?;
    let listener = ours.context.listen(PORT, batch)?;
    let mut acceptor = Acceptor { end: &ours, listener, open: Vec::new(), done: 0 };
    let start = Instant::now();
    let connector =
        std::thread::spawn(move || kernel_connects(SocketAddrV4::new(OURS, PORT), count, batch));
    let mut watchdog = Watchdog::new();
    while acceptor.done < count {
        acceptor.step()?;
        watchdog.progress(acceptor.done)?;
    }
    let rate = rate(count, start);
    join_thread(connector)?;
    Ok(rate)
}

fn rate(count: usize, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

fn join_thread(thread: std::thread::JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Opens our TCP on a tap of the kernel, in the namespace of this process.
fn open_on_tap() -> Result<Endpoint> {
    let config = verbs_end::config(&format!("tap:{INTERFACE}"), OURS)?;
    let context = Context::open(config).map_err(|error| anyhow!("{error}"))?;
    netns::ip(&["addr", "add", &format!("{KERNEL}/24"), "dev", INTERFACE])?;
    netns::ip(&["link", "set", INTERFACE, "up"])?;
    Endpoint::new(context)
}

fn kernel_connects(address: SocketAddrV4, count: usize, batch: usize) -> Result<()> {
    let request = Startup::default().encode(Role::Initiator);
    let mut left = count;
    while left > 0 {
        let mut streams = (0..batch.min(left))
            .map(|_| TcpStream::connect(address))
            .collect::<Result<Vec<_>, _>>()
            .context("cannot connect")?;
        for stream in &mut streams {
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.write_all(&request)?;
        }
        for stream in &mut streams {
            StartupFrame::read(stream, Role::Responder)?;
        }
        left -= streams.len();
    }
    Ok(())
}

fn kernel_accepts(listener: &TcpListener, count: usize, batch: usize) -> Result<()> {
    let mut left = count;
    while left > 0 {
        let streams = (0..batch.min(left))
            .map(|_| listener.accept().map(|(stream, _)| stream))
            .collect::<Result<Vec<_>, _>>()?;
        left -= streams.len();
        for stream in &streams {
            Peer::respond(stream.try_clone()?, &Startup::default())?;
        }
        for mut stream in streams {
            // `io::copy` retries after the signals of a tap.
            let rest = std::io::copy(&mut stream, &mut std::io::sink())?;
            ensure!(rest == 0, "data after the request");
        }
    }
    Ok(())
}

/// Fails without progress.
struct Watchdog {
    last_done: usize,
    since: Instant,
    calls: u32,
}

impl Watchdog {
    fn new() -> Self {
        Self { last_done: 0, since: Instant::now(), calls: 0 }
    }

    fn progress(&mut self, done: usize) -> Result<()> {
        self.calls = self.calls.wrapping_add(1);
        if !self.calls.is_multiple_of(256) {
            return Ok(());
        }
        if done != self.last_done {
            (self.last_done, self.since) = (done, Instant::now());
        }
        ensure!(self.since.elapsed() < TIMEOUT, "no progress after {done} connections");
        Ok(())
    }
}

/// One of our ends.
struct Endpoint {
    context: Context,
    pd: Pd,
    cq: Cq,
}

impl Endpoint {
    fn new(context: Context) -> Result<Self> {
        let (pd, cq) = (context.alloc_pd(), context.create_cq(64)?);
        Ok(Self { context, pd, cq })
    }

    fn qp(&self) -> Result<Qp> {
        let options = QpOptions::new(&self.cq).max_send_wr(2).max_recv_wr(2);
        Ok(self.pd.create_qp(&options)?)
    }
}

/// Connects, and closes established connections.
struct Connector<'a> {
    end: &'a Endpoint,
    address: SocketAddr,
    count: usize,
    batch: usize,
    started: usize,
    open: Vec<Qp>,
    done: usize,
}

impl<'a> Connector<'a> {
    fn new(end: &'a Endpoint, address: SocketAddrV4, count: usize, batch: usize) -> Self {
        let address = SocketAddr::V4(address);
        Self { end, address, count, batch, started: 0, open: Vec::new(), done: 0 }
    }

    fn step(&mut self) -> Result<()> {
        while self.open.len() < self.batch && self.started < self.count {
            let qp = self.end.qp()?;
            qp.connect(self.address, ConnParam::default())?;
            self.open.push(qp);
            self.started += 1;
        }
        self.end.context.drive();
        let mut index = 0;
        while index < self.open.len() {
            match self.open[index].next_event() {
                Some(Event::Established { .. }) => self.open[index].disconnect()?,
                Some(Event::Disconnected { .. }) => {
                    self.open.swap_remove(index);
                    self.done += 1;
                    continue;
                }
                Some(other) => bail!("{other:?}"),
                None => {}
            }
            index += 1;
        }
        Ok(())
    }
}

/// Accepts, and waits for the peer to close.
struct Acceptor<'a> {
    end: &'a Endpoint,
    listener: Listener,
    open: Vec<Qp>,
    done: usize,
}

impl Acceptor<'_> {
    fn step(&mut self) -> Result<()> {
        while let Some(request) = self.listener.poll() {
            let qp = self.end.qp()?;
            request.accept(&qp, ConnParam::default())?;
            self.open.push(qp);
        }
        let done = &mut self.done;
        self.open.retain(|qp| match qp.next_event() {
            Some(Event::Disconnected { .. } | Event::ConnectFailed { .. }) => {
                *done += 1;
                false
            }
            _ => true,
        });
        Ok(())
    }
}
