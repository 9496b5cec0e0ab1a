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
    let start = |mode, role, core| {
        let vdev = &format!(
            "net_memif0,role={role},id=0,socket={},socket-abstract=no,rsize={RING_LOG2},bsize={}",
            socket.display(),
            frame_capacity(mtu)
        );
        Testpmd::start(Role { mode, vdev, mtu, core, namespace: None }, folder)
    };
    let mut sink = start("rxonly", "server", cores[0])?;
    let mut source = start("txonly", "client", cores[1])?;
    sink.command("start")?;
    source.command("start")?;
    // The driver of the client connects when its alarms run.
    let deadline = Instant::now() + TIMEOUT;
    while sink.received_per_second()? == 0 {
        ensure!(Instant::now() < deadline, "frames of {} bytes do not arrive", mtu + 14);
        sleep(Duration::from_millis(20));
    }
    sleep(WARM_UP);
    sink.received_per_second()?;
    sleep(Duration::from_secs_f64(seconds));
    let rate = sink.received_per_second()?;
    Testpmd::end(sink, source)?;
    ensure!(rate > 0, "frames of {} bytes no longer arrive", mtu + 14);
    Ok(rate as f64 * 1e-9)
}
