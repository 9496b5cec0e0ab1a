//! One-sided operations: the client writes to memory of the server and reads it back.
//!
//! ```text
//! write_read server memif:/tmp/fw.sock,server 198.18.0.1
//! write_read client memif:/tmp/fw.sock,client 198.18.0.2 198.18.0.1:4791
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ferrowarp::{
    Access, Config, ConnEvent, ConnParam, Context, Cq, DriveMode, EndReason, Qp, QpOptions,
    RemoteMr, Wc, WcStatus,
};

const USAGE: &str = "write_read server DEVICE ADDRESS | client DEVICE ADDRESS SERVER:PORT";
const PORT: u16 = 4791;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of memory that the server lends.
const LEN: usize = 4096;
const TEXT: &[u8] = b"written by the client";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [role, device, address, rest @ ..] = &args[..] else { bail!(USAGE) };
    // A helper thread answers the peer while our own thread sleeps or does other work.
    let config = Config::new(device.parse()?, address.parse()?, 24).drive(DriveMode::Helper);
    let context = Context::open(config)?;
    match (role.as_str(), rest) {
        ("server", []) => server(&context),
        ("client", [remote]) => client(&context, remote),
        _ => bail!(USAGE),
    }
}

fn server(context: &Context) -> Result<()> {
    let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
    // The peer may write and read this region, and no other memory.
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let region = pd.register(context.allocate(LEN)?, rights)?;
    let qp = pd.create_qp(&QpOptions::new(&cq))?;
    // For the empty Send that follows the Write. Posted before the connection: a Send that
    // finds no buffer ends it.
    qp.post_recv(0, [])?;

    let listener = context.listen(PORT, 1)?;
    println!("listening on port {PORT}");
    let request = listener.accept_timeout(Duration::MAX).context("the device is gone")?;
    // The protocol does not advertise memory: the private data of the reply does.
    let param = ConnParam::new().private_data(region.remote().to_bytes())?;
    request.accept(&qp, param)?;
    let info = qp.wait_established(TIMEOUT)?;
    println!("connected to {}", info.peer);

    // A Write gives no notice here. A later Send does: when it has arrived, the Write is placed.
    next(&cq, &qp)?;
    let mut text = [0; TEXT.len()];
    region.read(0, &mut text);
    println!("found: {}", String::from_utf8_lossy(&text));
    println!("end: {}", end(&qp)?);
    Ok(())
}

fn client(context: &Context, remote: &str) -> Result<()> {
    let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
    // The sink of a Read is written by the stack, so it needs LOCAL_WRITE. No right for the peer.
    let region = pd.register(context.allocate(LEN)?, Access::LOCAL_WRITE)?;
    let qp = pd.create_qp(&QpOptions::new(&cq))?;
    qp.connect(remote.parse()?, ConnParam::new())?;
    let info = qp.wait_established(TIMEOUT)?;
    let remote = RemoteMr::from_bytes(&info.private_data).context("the server lends no memory")?;
    println!("connected to {}, which lends {} bytes", info.peer, remote.len);

    region.write(0, TEXT);
    let len = u32::try_from(TEXT.len())?;
    // The three leave together. The peer executes them in order, so the Read finds what the Write
    // has placed. They complete in order, too: the completion of the last one covers the others,
    // which report only failure.
    let mut post = qp.post();
    post.write(region.sge(0, len), remote);
    post.read(region.sge(LEN / 2, len), remote);
    post.send_inline(b"").signaled();
    post.ring()?;
    next(&cq, &qp)?;
    let mut text = [0; TEXT.len()];
    region.read(LEN / 2, &mut text);
    println!("read back: {}", String::from_utf8_lossy(&text));

    // Everything posted is executed first. The event follows when both ends have closed.
    qp.close()?;
    println!("end: {}", end(&qp)?);
    Ok(())
}

/// Waits for a completion, and checks it.
fn next(cq: &Cq, qp: &Qp) -> Result<Wc> {
    match cq.wait(&mut [Wc::default()], TIMEOUT) {
        [] => bail!("the peer is silent"),
        [wc, ..] if wc.status == WcStatus::Success => Ok(*wc),
        // A failed request ends its connection: the event has the reason.
        [wc, ..] => bail!("request {}: {}: {}", wc.wr_id, wc.status, end(qp)?),
    }
}

/// Waits for the end of the connection, and returns its reason.
fn end(qp: &Qp) -> Result<EndReason> {
    match qp.wait_event(TIMEOUT) {
        Some(ConnEvent::Disconnected { reason, .. }) => Ok(reason),
        other => bail!("not the end of the connection: {other:?}"),
    }
}
