//! Over `memif`: bytes per second from one process to another.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ferrowarp_proto::device::frame_capacity;

use super::program::{Role, TIMEOUT, Testpmd};

/// Base 2 logarithm of the ring size in frames, as the stack's `memif`.
const RING_LOG2: u32 = 9;
/// Time before the measurement, when frames arrive.
const WARM_UP: Duration = Duration::from_millis(300);

/// Measures testpmd, receiver and sender on these cores; returns Gb/s of whole frames.
pub(crate) fn measure(folder: &Path, mtu: u16, cores: [usize; 2], seconds: f64) -> Result<f64> {
    let socket = folder.join("testpmd.sock");
    let _ = std::fs::remove_file(&socket);
    let vdev = |role| {
        format!(
            "net_memif0,role={role},id=0,socket={},socket-abstract=no,rsize={RING_LOG2},bsize={}",
            socket.display(),
            frame_capacity(mtu)
        )
    };
    let (server, client) = (vdev("server"), vdev("client"));
    let role = |mode, vdev, core| Role { mode, vdev, mtu, core, namespace: None };
    let log = |name| folder.join(name);
    let mut sink = Testpmd::start(role("rxonly", &server, cores[0]), &log("rxonly.log"))?;
    let mut source = Testpmd::start(role("txonly", &client, cores[1]), &log("txonly.log"))?;
    sink.command("start")?;
    source.command("start")?;
    // The driver of the client connects when its alarms run.
    let deadline = Instant::now() + TIMEOUT;
    while sink.received()?.packets == 0 {
        ensure!(Instant::now() < deadline, "frames of {} bytes do not arrive", mtu + 14);
        sleep(Duration::from_millis(20));
    }
    sleep(WARM_UP);
    let before = sink.received()?;
    sleep(Duration::from_secs_f64(seconds));
    let after = sink.received()?;
    Testpmd::end(sink, source)?;
    ensure!(after.bytes > before.bytes, "frames of {} bytes no longer arrive", mtu + 14);
    let elapsed = after.at - before.at;
    Ok((after.bytes - before.bytes) as f64 * 8e-9 / elapsed.as_secs_f64())
}
