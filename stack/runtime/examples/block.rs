//! Block storage as in iSER and NVMe: the server moves blocks by RDMA. Ctrl-C ends it.
//!
//! ```text
//! block server memif:/tmp/fw.sock,server 198.18.0.1 [FILE]
//! block client memif:/tmp/fw.sock,client 198.18.0.2 198.18.0.1:4791
//! ```

use std::fs::File;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ferrowarp::{
    Access, Config, ConnParam, Context, DriveMode, Qp, QpOptions, QpState, RemoteMr, Wc, WcOpcode,
    WcStatus,
};

const USAGE: &str = "block server DEVICE ADDRESS [FILE] | client DEVICE ADDRESS SERVER:PORT";
const PORT: u16 = 4791;
const TIMEOUT: Duration = Duration::from_secs(10);
const CLIENTS: usize = 8;
/// Commands that a client may have outstanding. A response returns the credit of its command.
const CREDITS: usize = 16;
const BLOCK: u32 = 4096;
const DISK: usize = 256 * BLOCK as usize;
/// Bytes of a command: 1 to write or 0 to read, number of the block, memory of the client.
const COMMAND: usize = 2 + RemoteMr::WIRE_LEN;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [role, device, address, rest @ ..] = &args[..] else { bail!(USAGE) };
    let config = Config::new(device.parse()?, address.parse()?, 24).drive(DriveMode::Helper);
    let context = Context::open(config)?;
    match (role.as_str(), rest) {
        ("server", [] | [_]) => server(&context, rest.first()),
        ("client", [remote]) => client(&context, remote),
        _ => bail!(USAGE),
    }
}

fn server(context: &Context, file: Option<&String>) -> Result<()> {
    let (pd, buffers, len) = (context.alloc_pd(), CLIENTS * CREDITS, u32::try_from(COMMAND)?);
    let disk = pd.register(context.allocate(DISK)?, Access::LOCAL_WRITE)?;
    if let Some(file) = file {
        // Straight into the memory from which the clients get it.
        let contents = File::open(file).with_context(|| file.clone())?;
        println!("read {} bytes of {file}", disk.pread(contents, 0, DISK, 0)?);
    }
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
            let _ = if command[0] == 1 { post.read(block, to) } else { post.write(block, to) };
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
    // Passes over all blocks: read, write, read. Each is complete before the next one begins.
    for [pass, block] in (0..768_u16).map(u16::to_be_bytes) {
        let offset = usize::from(block) * BLOCK as usize;
        blocks.fill(offset, BLOCK as usize, if pass == 1 { block } else { 0 });
        let place = RemoteMr { addr: remote.addr + offset as u64, len: BLOCK.into(), ..remote };
        let command = [&[pass % 2, block], &place.to_bytes()[..]].concat();
        qp.post().send_inline(&command).signaled().ring()?;
        credits -= 1;
        while credits == 0 || block == 255 && credits < CREDITS {
            let [wc] = cq.wait(&mut wcs, TIMEOUT) else { bail!("the server is silent") };
            ensure!(wc.status == WcStatus::Success, "{}: {:?}", wc.status, qp.attrs());
            if wc.opcode == WcOpcode::Recv {
                qp.post_recv(0, [])?;
                credits += 1;
            }
        }
        if (pass, block) == (0, 255) {
            println!("the disk began with {:?}", char::from(blocks.load_last(0)));
        }
    }
    let is_right = |block: u8| blocks.load_last(usize::from(block) * BLOCK as usize) == block;
    println!("wrote and read 256 blocks; right: {}", (0..=255).all(is_right));
    qp.close()?;
    qp.wait_event(TIMEOUT).context("the server does not close")?;
    println!("end: {}", qp.attrs().and_then(|attrs| attrs.end).context("no connection")?);
    Ok(())
}
