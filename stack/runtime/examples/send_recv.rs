//! Messages with flow control: the client streams messages and the server returns credits.
//!
//! ```text
//! send_recv server memif:/tmp/fw.sock,server 198.18.0.1
//! send_recv client memif:/tmp/fw.sock,client 198.18.0.2 198.18.0.1:4791
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ferrowarp::{
    Access, Config, ConnEvent, ConnParam, Context, Cq, DriveMode, EndReason, Qp, QpOptions, Wc,
    WcOpcode, WcStatus,
};

const USAGE: &str = "send_recv server DEVICE ADDRESS | client DEVICE ADDRESS SERVER:PORT";
const PORT: u16 = 4791;
const TIMEOUT: Duration = Duration::from_secs(10);
/// A multiple of `BATCH`, so that all credits return.
const MESSAGES: u64 = 10_000;
const LEN: u32 = 64;
/// Messages on their way at a time. The receiver has a buffer for each.
const DEPTH: usize = 32;
/// Messages for which the server returns credits at once, by an empty message.
const BATCH: usize = DEPTH / 2;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [role, device, address, rest @ ..] = &args[..] else { bail!(USAGE) };
    let config = Config::new(device.parse()?, address.parse()?, 24).drive(DriveMode::Helper);
    let context = Context::open(config)?;
    match (role.as_str(), rest) {
        ("server", []) => server(&context),
        ("client", [remote]) => client(&context, remote),
        _ => bail!(USAGE),
    }
}

fn server(context: &Context) -> Result<()> {
    // Room for all requests of both queues: one completion too many ends the connection.
    let (pd, cq) = (context.alloc_pd(), context.create_cq(2 * DEPTH)?);
    let region = pd.register(context.allocate(DEPTH * LEN as usize)?, Access::LOCAL_WRITE)?;
    let qp = pd.create_qp(&QpOptions::new(&cq).max_send_wr(DEPTH).max_recv_wr(DEPTH))?;
    let buffer = |slot: usize| region.sge(slot * LEN as usize, LEN);
    // Before the connection: a Send that finds no buffer ends it.
    qp.post_recvs((0..DEPTH).map(|slot| (slot as u64, buffer(slot))))?;
    let listener = context.listen(PORT, 1)?;
    println!("listening on port {PORT}");
    let request = listener.accept_timeout(Duration::MAX).context("the device is gone")?;
    request.accept(&qp, ConnParam::new())?;
    println!("connected to {}", qp.wait_established(TIMEOUT)?.peer);

    let mut received = 0;
    while received < MESSAGES {
        let wc = next(&cq, &qp)?;
        if wc.opcode != WcOpcode::Recv {
            continue;
        }
        let (slot, mut number) = (usize::try_from(wc.wr_id)?, [0; 8]);
        region.read(slot * LEN as usize, &mut number);
        if u64::from_be_bytes(number) != received {
            bail!("not message {received}");
        }
        received += 1;
        // First the buffer, then the credit for it.
        qp.post_recv(wc.wr_id, buffer(slot))?;
        if received % BATCH as u64 == 0 {
            qp.post().send_inline(b"").signaled().ring()?;
        }
    }
    println!("received {received} messages; end: {}", end(&qp)?);
    Ok(())
}

fn client(context: &Context, remote: &str) -> Result<()> {
    let (pd, cq) = (context.alloc_pd(), context.create_cq(2 * DEPTH)?);
    let qp = pd.create_qp(&QpOptions::new(&cq).max_send_wr(DEPTH))?;
    // The credits need buffers, too: as many as the messages that can return them at a time.
    qp.post_recvs((0..DEPTH / BATCH).map(|_| (0, [])))?;
    qp.connect(remote.parse()?, ConnParam::new())?;
    println!("connected to {}", qp.wait_established(TIMEOUT)?.peer);

    let (mut sent, mut credits, mut message) = (0, DEPTH, [0; LEN as usize]);
    while sent < MESSAGES || credits < DEPTH {
        let mut post = qp.post();
        while sent < MESSAGES && credits > 0 {
            message[..8].copy_from_slice(&sent.to_be_bytes());
            // A short message is copied into its request: no memory has to be registered for it.
            post.send_inline(&message).signaled();
            (sent, credits) = (sent + 1, credits - 1);
        }
        post.ring()?;
        if next(&cq, &qp)?.opcode == WcOpcode::Recv {
            qp.post_recv(0, [])?;
            credits += BATCH;
        }
    }
    qp.close()?;
    println!("sent {sent} messages; end: {}", end(&qp)?);
    Ok(())
}

/// Waits for a completion, and checks it.
fn next(cq: &Cq, qp: &Qp) -> Result<Wc> {
    match cq.wait(&mut [Wc::default()], TIMEOUT) {
        [] => bail!("the peer is silent"),
        [wc, ..] if wc.status == WcStatus::Success => Ok(*wc),
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
