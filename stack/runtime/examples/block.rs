//! Block storage as in iSER and NVMe: the server moves blocks by RDMA. Ctrl-C ends it.
//!
//! ```text
//! block server memif:/tmp/fw.sock,server 198.18.0.1
//! block client memif:/tmp/fw.sock,client 198.18.0.2 198.18.0.1:4791
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ferrowarp::{
    Access, Config, ConnParam, Context, DriveMode, Qp, QpOptions, QpState, RemoteMr, Wc, WcOpcode,
    WcStatus,
};

const USAGE: &str = "block server DEVICE ADDRESS | client DEVICE ADDRESS SERVER:PORT";
const PORT: u16 = 4791;
const TIMEOUT: Duration = Duration::from_secs(10);
const CLIENTS: usize = 8;
/// Commands that a client may have outstanding. A response returns the credit of its command.
const CREDITS: usize = 16;
const BLOCK: u32 = 4096;
const DISK: usize = 256 * BLOCK as usize;
/// Bytes of a command: 0 to write or 1 to read, number of the block, memory of the client.
const COMMAND: usize = 2 + RemoteMr::WIRE_LEN;

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
    let (pd, buffers, len) = (context.alloc_pd(), CLIENTS * CREDITS, u32::try_from(COMMAND)?);
    let disk = pd.register(context.allocate(DISK)?, Access::LOCAL_WRITE)?;
    let commands = pd.register(context.allocate(buffers * COMMAND)?, Access::LOCAL_WRITE)?;
    // All clients share the buffers. A command has one, and at most three completions.
    let (srq, cq) = (pd.create_srq(buffers)?, context.create_cq(3 * buffers)?);
    let buffer = |slot: usize| (slot as u64, commands.sge(slot * COMMAND, len));
    srq.post_recvs((0..buffers).map(buffer))?;
    srq.cap(CREDITS)?;
    let listener = context.listen(PORT, CLIENTS)?;
    println!("listening on port {PORT}");
    let (mut clients, mut wcs) = (Vec::<Qp>::new(), [Wc::default(); 32]);
    loop {
        if let Some(request) = listener.next_request() {
            // Of clients that left. Not at once: their completions, and buffers, leave with them.
            clients.retain(|qp| qp.state() != QpState::Error);
            let qp = pd.create_qp(&QpOptions::new(&cq).srq(&srq))?;
            if clients.len() < CLIENTS && request.accept(&qp, ConnParam::new()).is_ok() {
                clients.push(qp);
            }
        }
        let found = cq.wait(&mut wcs, Duration::from_millis(10));
        for wc in found.iter().filter(|wc| wc.opcode == WcOpcode::Recv) {
            let (slot, mut command) = (usize::try_from(wc.wr_id)?, [0; COMMAND]);
            commands.read(slot * COMMAND, &mut command);
            // First the buffer, then the response with its credit.
            srq.post_recvs([buffer(slot)])?;
            let client = clients.iter().find(|qp| qp.id() == wc.qp && wc.byte_len == len);
            let Some((qp, to)) = client.zip(RemoteMr::from_bytes(&command[2..])) else { continue };
            let block = disk.sge(usize::from(command[1]) * BLOCK as usize, BLOCK);
            let mut post = qp.post();
            let _ = if command[0] == 0 { post.read(block, to) } else { post.write(block, to) };
            // The fence delays the response until a block that is read has arrived.
            post.send_inline(b"").signaled().fence();
            // Refused if the client has exceeded its credits.
            let _ = post.ring().or_else(|_| qp.disconnect());
        }
    }
}

fn client(context: &Context, remote: &str) -> Result<()> {
    let (pd, cq) = (context.alloc_pd(), context.create_cq(2 * CREDITS)?);
    let blocks =
        pd.register(context.allocate(DISK)?, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    let qp = pd.create_qp(&QpOptions::new(&cq))?;
    qp.post_recvs([(0, []); CREDITS])?;
    qp.connect(remote.parse()?, ConnParam::new())?;
    qp.wait_established(TIMEOUT)?;
    let (mut credits, mut wcs, remote) = (CREDITS, [Wc::default()], blocks.remote());
    for [op, block] in (0..512_u16).map(u16::to_be_bytes) {
        let offset = usize::from(block) * BLOCK as usize;
        blocks.fill(offset, BLOCK as usize, if op == 0 { block } else { 0 });
        let place = RemoteMr { addr: remote.addr + offset as u64, len: BLOCK.into(), ..remote };
        let mut command = [op; COMMAND];
        command[1] = block;
        command[2..].copy_from_slice(&place.to_bytes());
        qp.post().send_inline(&command).signaled().ring()?;
        credits -= 1;
        // All blocks are written before the first is read.
        while credits == 0 || block == 255 && credits < CREDITS {
            let [wc] = cq.wait(&mut wcs, TIMEOUT) else { bail!("the server is silent") };
            ensure!(wc.status == WcStatus::Success, "{}: {}", wc.status, end(&qp));
            if wc.opcode == WcOpcode::Recv {
                qp.post_recv(0, [])?;
                credits += 1;
            }
        }
    }
    let is_right = |block: u8| blocks.load_last(usize::from(block) * BLOCK as usize) == block;
    println!("wrote and read 256 blocks; right: {}", (0..=255).all(is_right));
    qp.close()?;
    qp.wait_event(TIMEOUT).context("the server does not close")?;
    println!("end: {}", end(&qp));
    Ok(())
}

/// Returns the reason why the connection has ended.
fn end(qp: &Qp) -> String {
    let end = qp.attrs().and_then(|attrs| attrs.end);
    end.map_or("it was never connected".to_owned(), |end| end.to_string())
}
