//! The time of a busy queue pair's Writes, alone and beside idle connections.

use std::time::Duration;

use anyhow::Result;

use super::allocations;
use super::busy::Busy;
use super::ends::{Depths, Ends};
use crate::paired::pairs::Paired;

/// Writes that are measured: name, bytes, outstanding at a time.
pub const WRITES: [(&str, u32, usize); 2] = [("64 KiB", 65_536, 16), ("64 bytes", 64, 64)];
/// Time before each measurement, with the same traffic.
const WARM_UP: Duration = Duration::from_millis(20);

/// Measures `rounds` pairs for each kind of Writes, in nanoseconds per Write, with `idle` idle
/// connections. In every other round those come first. The contexts stay the same, and so does the
/// busy queue pair.
///
/// # Errors
/// Errors of the device and the verbs.
pub fn run(
    idle: usize,
    rounds: usize,
    duration: Duration,
    mut progress: impl FnMut(&str),
) -> Result<Vec<(&'static str, Paired)>> {
    let mut rows = Vec::new();
    for (name, size, depth) in WRITES {
        let mut ends = Ends::open(idle + 1, allocations::uncounted)?;
        let mut busy = Busy::connect(&mut ends, size, depth)?;
        let mut pairs = Paired::default();
        for round in 0..rounds {
            let mut write_ns = [0.0; 2];
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for which in order {
                let count = if which == 1 { idle } else { 0 };
                let others = ends.set_up(count, Depths { send: 1, recv: 1 })?;
                busy.run(&mut ends, WARM_UP)?;
                write_ns[which] = busy.run(&mut ends, duration)?;
                ends.end(others)?;
                ends.wait_until_left(1)?;
            }
            progress(&format!(
                "idle-beside-busy, {name}, round {} of {rounds}: {:.0} ns per Write alone, {:.0} \
                 beside {idle} idle connections",
                round + 1,
                write_ns[0],
                write_ns[1]
            ));
            pairs.push(write_ns);
        }
        rows.push((name, pairs));
    }
    Ok(rows)
}
