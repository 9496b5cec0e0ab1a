//! Connections set up and ended per second, with none and with many others open.

use std::time::Instant;

use anyhow::Result;

use super::allocations;
use super::ends::{Depths, Ends};
use crate::paired::pairs::Paired;

/// Set-ups and ends per second: without other connections, and as subject with them.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Set-ups: queue pairs created at both ends, and connected.
    pub set_ups: Paired,
    /// Ends: closed at both ends, and their queue pairs destroyed.
    pub ends: Paired,
}

/// Measures `rounds` pairs of `count` connections, beside `open` others in one of each pair; in
/// every other round those come first.
///
/// # Errors
/// Errors of the device and the verbs.
pub fn run(
    open: usize,
    count: usize,
    rounds: usize,
    mut progress: impl FnMut(&str),
) -> Result<Rates> {
    let depths = Depths { send: 1, recv: 1 };
    let mut ends = Ends::open(open + count, allocations::uncounted)?;
    let mut rates = Rates::default();
    for round in 0..rounds {
        let mut of_round = [[0.0; 2]; 2];
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let others = ends.set_up(if which == 1 { open } else { 0 }, depths)?;
            let start = Instant::now();
            let connections = ends.set_up(count, depths)?;
            of_round[0][which] = count as f64 / start.elapsed().as_secs_f64();
            let start = Instant::now();
            ends.end(connections)?;
            of_round[1][which] = count as f64 / start.elapsed().as_secs_f64();
            ends.end(others)?;
            // TIME-WAIT is over: the next ones find nothing of these.
            ends.wait_until_left(0)?;
        }
        let [[set_up, set_up_beside], [end, end_beside]] = of_round;
        progress(&format!(
            "setup-rate, round {} of {rounds}: {set_up:.0} set-ups and {end:.0} ends per second, \
             {set_up_beside:.0} and {end_beside:.0} beside {open} others",
            round + 1
        ));
        rates.set_ups.push(of_round[0]);
        rates.ends.push(of_round[1]);
    }
    ends.check_nothing_left()?;
    Ok(rates)
}
