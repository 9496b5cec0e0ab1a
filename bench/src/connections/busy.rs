//! RDMA Writes of one busy queue pair.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ferrowarp::{Access, Mr, Operation, Payload, SendWr, WcStatus};

use super::ends::{Connection, Depths, Ends};

/// Polls between readings of the clock.
const POLLS: usize = 16;
/// Time without a completion after which a measurement is given up.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A queue pair that always has Writes outstanding while it runs.
pub struct Busy {
    // Before the regions: fields are dropped in their order.
    /// Its connection.
    pub connection: Connection,
    source: Mr,
    sink: Mr,
    size: u32,
    depth: usize,
    runs: u8,
}

impl Busy {
    /// Connects it, with `depth` Writes of `size` bytes.
    ///
    /// # Errors
    /// Errors of the verbs.
    pub fn connect(ends: &mut Ends, size: u32, depth: usize) -> Result<Self> {
        let mut connections = ends.set_up(1, Depths { send: depth, recv: 1 })?;
        let len = size as usize;
        let source = ends.left.pd.register(ends.left.context.allocate(len)?, Access::LOCAL_READ)?;
        let sink =
            ends.right.pd.register(ends.right.context.allocate(len)?, Access::REMOTE_WRITE)?;
        let connection = connections.remove(0);
        Ok(Self { connection, source, sink, size, depth, runs: 0 })
    }

    /// Writes for about `duration`; returns the nanoseconds per Write. Other completions are
    /// refused.
    ///
    /// # Errors
    /// If a Write fails, or the bytes of the last ones are not those sent.
    pub fn run(&mut self, ends: &mut Ends, duration: Duration) -> Result<f64> {
        self.runs = self.runs.wrapping_add(1);
        let byte = |at: u32| at.to_le_bytes()[0].wrapping_add(self.runs);
        let bytes: Vec<u8> = (0..self.size).map(byte).collect();
        self.source.write(0, &bytes);
        self.sink.fill(0, self.size as usize, 0);
        let (mut completed, mut outstanding) = (0_u64, 0);
        let start = Instant::now();
        let mut elapsed = Duration::ZERO;
        while elapsed < duration {
            for _ in 0..POLLS {
                self.post(self.depth - outstanding)?;
                outstanding = self.depth;
                let count = poll(ends)?;
                outstanding -= count;
                completed += count as u64;
            }
            elapsed = start.elapsed();
        }
        ensure!(completed > 0, "no Write has completed in {elapsed:?}");
        let write_ns = elapsed.as_nanos() as f64 / completed as f64;
        let start = Instant::now();
        let mut placed = vec![0; self.size as usize];
        // Completion does not say that the peer has placed it.
        while outstanding > 0 || placed != bytes {
            outstanding -= poll(ends)?;
            self.sink.read(0, &mut placed);
            ensure!(start.elapsed() < TIMEOUT, "{outstanding} Writes left, or other bytes placed");
        }
        Ok(write_ns)
    }

    #[inline]
    fn post(&self, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let wrs = (0..count).map(|_| {
            let payload = Payload::Gather([self.source.sge(0, self.size)].into());
            let (rkey, remote) = (self.sink.rkey(), self.sink.addr());
            let operation = Operation::Write { payload, rkey, remote };
            SendWr { wr_id: 0, operation, signaled: true, fence: false }
        });
        let (posted, error) = self.connection.active.post_sends(wrs);
        ensure!(posted == count, "{posted} of {count} posted: {error:?}");
        Ok(())
    }
}

/// Polls both ends; returns the number of completions at the left one.
#[inline]
fn poll(ends: &mut Ends) -> Result<usize> {
    let mut count = 0;
    ends.left.poll(|wc| {
        ensure!(wc.status == WcStatus::Success, "{wc:?}");
        count += 1;
        Ok(())
    })?;
    ends.right.poll(|wc| bail!("{wc:?}"))?;
    Ok(count)
}
