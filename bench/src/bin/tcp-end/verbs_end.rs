//! Our TCP through verbs: Sends into posted buffers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use ferrowarp::{
    Access, Config, ConnParam, Context, Cq, DriveMode, Mr, Operation, Payload, Pd, Qp, QpOptions,
    RecvWr, SendWr, Wc, WcOpcode, WcStatus,
};

use crate::exchange::ExchangeArgs;
use crate::message::MESSAGE_LEN;
use crate::meter::{MeasureWindow, Meter};

/// Posted messages, or receive buffers: 8 MiB, more than the bandwidth-delay product.
const DEPTH: usize = 128;
/// Maximum bytes in flight in each direction.
const PATH_BYTES: u32 = 8 << 20;
/// Timeout of the set-up, retransmissions included.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A context with the resources of one connection.
struct Endpoint {
    context: Context,
    _pd: Pd,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

pub(crate) fn config(dev: &str, ip: Ipv4Addr) -> Result<Config> {
    let device = dev.parse().map_err(|error| anyhow!("--dev: {error}"))?;
    let mut config = Config::new(device, IpAddr::V4(ip), 24);
    config.drive = DriveMode::Inline;
    config.linger = Duration::from_millis(100);
    // Here memif leads to an emulated link with a delay.
    config.pools.path_bytes = PATH_BYTES;
    Ok(config)
}

fn open(dev: &str, ip: Ipv4Addr) -> Result<Endpoint> {
    let context = Context::open(config(dev, ip)?).map_err(|error| anyhow!("{error}"))?;
    let (pd, cq) = (context.alloc_pd(), context.create_cq(4 * DEPTH)?);
    let options = QpOptions::new(&cq).max_send_wr(DEPTH).max_recv_wr(DEPTH);
    let qp = pd.create_qp(&options)?;
    let mr = pd.register(context.allocate(MESSAGE_LEN)?, Access::LOCAL_WRITE)?;
    mr.fill(0, MESSAGE_LEN, 0x5a);
    Ok(Endpoint { context, _pd: pd, cq, qp, mr })
}

impl Endpoint {
    fn post_send(&self) -> Result<()> {
        let payload = Payload::Gather([self.message()].into());
        let operation = Operation::Send { payload, solicited: false, invalidate: None };
        Ok(self.qp.post_send(SendWr { wr_id: 0, operation, signaled: true, fence: false })?)
    }

    fn post_recv(&self) -> Result<()> {
        let sg_list = [self.message()].into();
        Ok(self.qp.post_recv(RecvWr { wr_id: 0, sg_list })?)
    }

    /// Waits for a message, for which a buffer is posted, and posts the next. False: the peer
    /// closed the connection.
    fn receive(&self, wcs: &mut Vec<Wc>) -> Result<bool> {
        loop {
            self.poll(wcs);
            for wc in &*wcs {
                if wc.status != WcStatus::Success {
                    return Ok(false);
                }
                if wc.opcode == WcOpcode::Recv {
                    self.post_recv()?;
                    return Ok(true);
                }
            }
        }
    }

    /// Polls completions; yields the core to the peer's process if there are none.
    fn poll(&self, wcs: &mut Vec<Wc>) {
        wcs.clear();
        if self.cq.poll(wcs) == 0 {
            std::thread::yield_now();
        }
    }

    fn message(&self) -> ferrowarp::Sge {
        self.mr.sge(0, u32::try_from(MESSAGE_LEN).expect("a short message"))
    }

    /// Polls completions until one fails, which is when the peer closes; calls `on_progress` with
    /// the number of messages so far.
    fn run(
        &self,
        mut post: impl FnMut() -> Result<()>,
        mut on_progress: impl FnMut(u64),
    ) -> Result<()> {
        for _ in 0..DEPTH {
            post()?;
        }
        let mut messages = 0_u64;
        let mut wcs = Vec::with_capacity(4 * DEPTH);
        loop {
            self.poll(&mut wcs);
            for wc in &wcs {
                if wc.status != WcStatus::Success {
                    return Ok(());
                }
                messages += 1;
                if post().is_err() {
                    return Ok(());
                }
            }
            on_progress(messages);
        }
    }
}

pub(crate) fn send(dev: &str, ip: Ipv4Addr, address: SocketAddrV4) -> Result<()> {
    let end = open(dev, ip)?;
    end.qp.connect(SocketAddr::V4(address), ConnParam::default())?;
    end.qp.wait_established(TIMEOUT).context("cannot connect")?;
    end.run(|| end.post_send(), |_| ())
}

pub(crate) fn receive(dev: &str, ip: Ipv4Addr, port: u16, window: MeasureWindow) -> Result<()> {
    let end = open(dev, ip)?;
    let listener = end.context.listen(port, 4)?;
    println!("listening");
    let request = listener.accept_timeout(TIMEOUT).context("no connect request")?;
    request.accept(&end.qp, ConnParam::default())?;
    end.qp.wait_established(TIMEOUT).context("startup")?;
    let mut meter = Meter::start(window);
    end.run(|| end.post_recv(), |messages| meter.update(messages * MESSAGE_LEN as u64))?;
    bail!("the sender closed the connection")
}

pub(crate) fn request(
    dev: &str,
    ip: Ipv4Addr,
    address: SocketAddrV4,
    exchanges: ExchangeArgs,
) -> Result<()> {
    let end = open(dev, ip)?;
    end.post_recv()?;
    end.qp.connect(SocketAddr::V4(address), ConnParam::default())?;
    end.qp.wait_established(TIMEOUT).context("cannot connect")?;
    let (mut wcs, mut idle_wcs) = (Vec::with_capacity(DEPTH), Vec::with_capacity(DEPTH));
    let exchange = || {
        end.post_send()?;
        ensure!(end.receive(&mut wcs)?, "the responder closed the connection");
        Ok(())
    };
    exchanges.run(exchange, |_| end.poll(&mut idle_wcs))
}

pub(crate) fn respond(dev: &str, ip: Ipv4Addr, port: u16) -> Result<()> {
    let end = open(dev, ip)?;
    let listener = end.context.listen(port, 4)?;
    println!("listening");
    let request = listener.accept_timeout(TIMEOUT).context("no connect request")?;
    end.post_recv()?;
    request.accept(&end.qp, ConnParam::default())?;
    end.qp.wait_established(TIMEOUT).context("startup")?;
    let mut wcs = Vec::with_capacity(DEPTH);
    while end.receive(&mut wcs)? {
        end.post_send()?;
    }
    Ok(())
}
