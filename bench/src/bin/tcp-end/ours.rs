//! Our TCP through verbs: Sends into posted buffers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use ferrowarp::{
    Access, Config, ConnParam, Context, Cq, DriveMode, Mr, Operation, Payload, Pd, Qp, QpOptions,
    RecvWr, SendWr, WcStatus,
};

use crate::message::MESSAGE_LEN;
use crate::{Meter, Window};

/// Messages, or buffers, posted at a time: 8 MiB, more than the path holds.
const DEPTH: usize = 128;
/// Octets that the path holds each way at most.
const PATH_BYTES: u32 = 8 << 20;
/// How long setting up may take, retransmissions included.
const PATIENCE: Duration = Duration::from_secs(20);

/// A context with what a connection needs.
struct Ready {
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
    // Behind memif there is a wire of some length here.
    config.pools.path_bytes = PATH_BYTES;
    Ok(config)
}

fn open(dev: &str, ip: Ipv4Addr) -> Result<Ready> {
    let context = Context::open(config(dev, ip)?).map_err(|error| anyhow!("{error}"))?;
    let (pd, cq) = (context.alloc_pd(), context.create_cq(4 * DEPTH)?);
    let options = QpOptions { send_cq: &cq, recv_cq: &cq, max_send_wr: DEPTH, max_recv_wr: DEPTH };
    let qp = pd.create_qp(&context, &options)?;
    let mr = pd.register(context.allocate(MESSAGE_LEN)?, Access::LOCAL_WRITE)?;
    mr.fill(0, MESSAGE_LEN, 0x5a);
    Ok(Ready { context, _pd: pd, cq, qp, mr })
}

impl Ready {
    fn message(&self) -> ferrowarp::Sge {
        self.mr.sge(0, u32::try_from(MESSAGE_LEN).expect("a short message"))
    }

    /// Takes completions until something went wrong, which is how the other end's going shows;
    /// `tell` hears how many messages there were so far.
    fn run(&self, mut post: impl FnMut() -> Result<()>, mut tell: impl FnMut(u64)) -> Result<()> {
        for _ in 0..DEPTH {
            post()?;
        }
        let mut messages = 0_u64;
        let mut wcs = Vec::with_capacity(4 * DEPTH);
        loop {
            wcs.clear();
            if self.cq.poll(&mut wcs) == 0 {
                // The other end may have the same core.
                std::thread::yield_now();
            }
            for wc in &wcs {
                if wc.status != WcStatus::Success {
                    return Ok(());
                }
                messages += 1;
                if post().is_err() {
                    return Ok(());
                }
            }
            tell(messages);
        }
    }
}

pub(crate) fn send(dev: &str, ip: Ipv4Addr, address: SocketAddrV4) -> Result<()> {
    let end = open(dev, ip)?;
    end.qp.connect(SocketAddr::V4(address), ConnParam::default())?;
    end.qp.wait_established(PATIENCE).context("cannot connect")?;
    let post = || {
        let payload = Payload::Gather([end.message()].into_iter().collect());
        let operation = Operation::Send { payload, solicited: false, invalidate: None };
        Ok(end.qp.post_send(SendWr { wr_id: 0, operation, signaled: true, fence: false })?)
    };
    end.run(post, |_| ())
}

pub(crate) fn receive(dev: &str, ip: Ipv4Addr, port: u16, window: Window) -> Result<()> {
    let end = open(dev, ip)?;
    let listener = end.context.listen(port, 4)?;
    println!("listening");
    let request = listener.accept_timeout(PATIENCE).context("nobody connects")?;
    let post = || {
        let sg_list = [end.message()].into_iter().collect();
        Ok(end.qp.post_recv(RecvWr { wr_id: 0, sg_list })?)
    };
    request.accept(&end.qp, ConnParam::default())?;
    end.qp.wait_established(PATIENCE).context("start-up")?;
    let mut meter = Meter::start(window);
    end.run(post, |messages| meter.at(messages * MESSAGE_LEN as u64))?;
    bail!("the sender has gone")
}
