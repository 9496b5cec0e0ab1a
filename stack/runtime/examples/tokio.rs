//! Tasks of tokio: one for each connection, in an echo server and in its client.
//!
//! ```text
//! tokio server memif:/tmp/fw.sock,server 198.18.0.1
//! tokio client memif:/tmp/fw.sock,client 198.18.0.2 198.18.0.1:4791
//! ```

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use ferrowarp::asynchronous::{AsyncCq, AsyncEvents};
use ferrowarp::{
    Access, Config, ConnEvent, ConnParam, ConnRequest, Context, DriveMode, EndReason, Qp,
    QpOptions, Wc, WcOpcode, WcStatus,
};
use tokio::task::JoinSet;

const USAGE: &str = "tokio server DEVICE ADDRESS | client DEVICE ADDRESS SERVER:PORT";
const PORT: u16 = 4791;
/// Connections of the client. The server ends with the last of them.
const CONNECTIONS: usize = 8;
const LEN: u32 = 64;

struct Node {
    context: Context,
    events: AsyncEvents,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [role, device, address, rest @ ..] = &args[..] else { bail!(USAGE) };
    let config = Config::new(device.parse()?, address.parse()?, 24).drive(DriveMode::Helper);
    let context = Context::open(config)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let node = Arc::new(Node { events: AsyncEvents::new(&context)?, context });
        let (mut tasks, mut result) = (JoinSet::new(), Ok(()));
        // Kept until the end: a request that is not accepted yet ends with its listener.
        let listener;
        match (role.as_str(), rest) {
            ("server", []) => {
                listener = node.context.listen(PORT, CONNECTIONS)?;
                println!("listening on port {PORT}");
                for _ in 0..CONNECTIONS {
                    let request = node.events.accept(&listener).await;
                    let request = request.context("the device is gone")?;
                    tasks.spawn(serve(Arc::clone(&node), request));
                }
            }
            ("client", [remote]) => {
                let remote: SocketAddr = remote.parse()?;
                (0..CONNECTIONS).for_each(|_| drop(tasks.spawn(talk(Arc::clone(&node), remote))));
            }
            _ => bail!(USAGE),
        }
        while let Some(ended) = tasks.join_next().await {
            // A connection that fails does not end the others.
            match ended? {
                Ok(reason) => println!("end: {reason}"),
                Err(error) => result = Err(error),
            }
        }
        result
    })
}

/// Returns each message, until the connection ends; returns the reason.
async fn serve(node: Arc<Node>, request: ConnRequest) -> Result<EndReason> {
    let (pd, mut cq) = (node.context.alloc_pd(), AsyncCq::new(&node.context, 4)?);
    let region = pd.register(node.context.allocate(LEN as usize)?, Access::LOCAL_WRITE)?;
    let qp = pd.create_qp(&QpOptions::new(cq.cq()))?;
    qp.post_recv(0, region.sge(0, LEN))?;
    request.accept(&qp, ConnParam::new())?;
    node.events.established(&qp).await?;
    loop {
        match cq.wait(&mut [Wc::default()]).await {
            [wc] if wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv => {
                let message = &mut [0; LEN as usize][..wc.byte_len as usize];
                region.read(0, message);
                // First the buffer: the client sends again when it has the echo.
                qp.post_recv(0, region.sge(0, LEN))?;
                qp.post().send_inline(message).signaled().ring()?;
            }
            [wc] if wc.status == WcStatus::Success => {}
            _ => return end(&node, &qp).await,
        }
    }
}

/// Sends messages and awaits the echo of each; returns the reason of the end.
async fn talk(node: Arc<Node>, remote: SocketAddr) -> Result<EndReason> {
    let (pd, mut cq) = (node.context.alloc_pd(), AsyncCq::new(&node.context, 4)?);
    let region = pd.register(node.context.allocate(LEN as usize)?, Access::LOCAL_WRITE)?;
    let qp = pd.create_qp(&QpOptions::new(cq.cq()))?;
    qp.connect(remote, ConnParam::new())?;
    node.events.established(&qp).await?;
    for _ in 0..1000 {
        qp.post_recv(0, region.sge(0, LEN))?;
        qp.post().send_inline(b"hello").signaled().ring()?;
        for _ in 0..2 {
            match cq.wait(&mut [Wc::default()]).await {
                [wc] if wc.status == WcStatus::Success => {}
                _ => return end(&node, &qp).await,
            }
        }
    }
    qp.close()?;
    end(&node, &qp).await
}

/// Awaits the end of a connection, and returns its reason.
async fn end(node: &Node, qp: &Qp) -> Result<EndReason> {
    match node.events.next_of(qp).await {
        Some(ConnEvent::Disconnected { reason, .. }) => Ok(reason),
        other => bail!("not the end of the connection: {other:?}"),
    }
}
