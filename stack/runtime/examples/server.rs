//! Echo server in one thread, which sleeps in `poll`. It ends with the last of its many clients.
//!
//! ```text
//! server server memif:/tmp/fw.sock,server 198.18.0.1
//! server client memif:/tmp/fw.sock,client 198.18.0.2 198.18.0.1:4791
//! ```

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use ferrowarp::{
    Access, AsyncEvent, Config, ConnEvent, ConnParam, Context, DriveMode, Keepalive, Notify, Qp,
    QpOptions, QpState, TcpSettings, Wc, WcOpcode, WcStatus,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const USAGE: &str = "server server DEVICE ADDRESS | client DEVICE ADDRESS SERVER:PORT";
const PORT: u16 = 4791;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Two for each of 100 clients: the next message may arrive before the last echo has left.
const BUFFERS: usize = 2 * 100;
const LEN: u32 = 256;
const CONNECTIONS: usize = 8;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [role, device, address, rest @ ..] = &args[..] else { bail!(USAGE) };
    let config = Config::new(device.parse()?, address.parse()?, 24).drive(DriveMode::Helper);
    // Otherwise nobody notices when an idle client is killed or its host loses power.
    let keepalive = Keepalive::new(Duration::from_secs(10), Duration::from_secs(2), 3);
    let tcp = TcpSettings::new().keepalive(keepalive);
    let context = Context::open(config.tcp(tcp))?;
    match (role.as_str(), rest) {
        ("server", []) => server(&context),
        ("client", [remote]) => client(&context, remote),
        _ => bail!(USAGE),
    }
}

fn server(context: &Context) -> Result<()> {
    let (events, completions) = (context.event_channel()?, context.create_comp_channel()?);
    // A buffer has one request at a time, so there are never more completions than buffers.
    let (pd, cq) = (context.alloc_pd(), context.create_cq_on(&completions, BUFFERS)?);
    let region = pd.register(context.allocate(BUFFERS * LEN as usize)?, Access::LOCAL_WRITE)?;
    // All clients share the buffers. One that takes more than two ends its own connection.
    let srq = pd.create_srq(BUFFERS)?;
    srq.cap(2)?;
    let buffer = |slot: usize| (slot as u64, region.sge(slot * LEN as usize, LEN));
    srq.post_recvs((0..BUFFERS).map(buffer))?;
    let listener = context.listen(PORT, CONNECTIONS)?;
    println!("listening on port {PORT}");
    let (mut clients, mut wcs) = (HashMap::<_, Qp>::new(), [Wc::default(); BUFFERS]);
    loop {
        // In this order: a completion that comes after the poll raises an event.
        while completions.next_event().is_some() {}
        cq.req_notify(Notify::Next)?;
        for wc in cq.poll(&mut wcs) {
            let slot = usize::try_from(wc.wr_id)?;
            match clients.get(&wc.qp) {
                Some(qp) if (wc.status, wc.opcode) == (WcStatus::Success, WcOpcode::Recv) => {
                    let message = region.sge(slot * LEN as usize, wc.byte_len);
                    qp.post().send(message).wr_id(wc.wr_id).signaled().ring()?;
                }
                // The echo is sent, or the connection has ended.
                _ => srq.post_recvs([buffer(slot)])?,
            }
        }
        let fds = [events.as_fd(), completions.as_fd()];
        poll(&mut fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)), PollTimeout::NONE)?;
        while let Some(event) = events.next_event() {
            let AsyncEvent::Connection { qp } = event else { continue };
            while let Some(event) = clients.get(&qp).and_then(Qp::next_event) {
                match event {
                    ConnEvent::Established { .. } => continue,
                    ConnEvent::Disconnected { reason, .. } => println!("a client left: {reason}"),
                    other => println!("{other:?}"),
                }
                if clients.values().all(|qp| qp.state() == QpState::Error) {
                    return Ok(());
                }
            }
        }
        while let Some(request) = listener.next_request() {
            // Not at once: completions of a queue pair leave with it, and their buffers.
            clients.retain(|_, qp| qp.state() != QpState::Error);
            let qp = pd.create_qp(&QpOptions::new(&cq).srq(&srq))?;
            // Fails if the client has given up. A request that is dropped is rejected.
            if clients.len() < BUFFERS / 2 && request.accept(&qp, ConnParam::new()).is_ok() {
                clients.insert(qp.id(), qp);
            }
        }
    }
}

fn client(context: &Context, remote: &str) -> Result<()> {
    let (pd, cq) = (context.alloc_pd(), context.create_cq(2 * CONNECTIONS)?);
    let region = pd.register(context.allocate(LEN as usize)?, Access::LOCAL_WRITE)?;
    let (mut qps, mut wcs) = (Vec::new(), [Wc::default()]);
    for _ in 0..CONNECTIONS {
        let qp = pd.create_qp(&QpOptions::new(&cq))?;
        qp.connect(remote.parse()?, ConnParam::new())?;
        qp.wait_established(TIMEOUT)?;
        qps.push(qp);
    }
    for _ in 0..1000 {
        for qp in &qps {
            qp.post_recv(0, region.sge(0, LEN))?;
            qp.post().send_inline(b"hello").signaled().ring()?;
        }
        for _ in 0..2 * CONNECTIONS {
            let [wc] = cq.wait(&mut wcs, TIMEOUT) else { bail!("the server is silent") };
            ensure!(wc.status == WcStatus::Success, "no echo: {}", wc.status);
        }
    }
    println!("all messages were returned");
    qps.iter().try_for_each(|qp| Ok(qp.close()?))
}
