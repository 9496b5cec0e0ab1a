//! Exchanges of a message each way, timed.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

/// Exchanges of a request and a response.
#[derive(Args, Clone, Copy)]
pub(crate) struct ExchangeArgs {
    /// Exchanges before the measurement.
    #[arg(long)]
    warm_up: usize,
    /// Measured exchanges.
    #[arg(long)]
    count: usize,
    /// Milliseconds between a response and the next request.
    #[arg(long, default_value_t = 0)]
    pause: u64,
}

impl ExchangeArgs {
    /// Runs the exchanges by `exchange`, and calls `idle` with the time left until each pause is
    /// over. Prints the result.
    pub(crate) fn run(
        self,
        mut exchange: impl FnMut() -> Result<()>,
        mut idle: impl FnMut(Duration),
    ) -> Result<()> {
        let mut us = Vec::with_capacity(self.count);
        for round in 0..self.warm_up + self.count {
            let start = Instant::now();
            exchange()?;
            if round >= self.warm_up {
                us.push(start.elapsed().as_secs_f64() * 1e6);
            }
            let end = Instant::now() + Duration::from_millis(self.pause);
            while let Some(left) = end.checked_duration_since(Instant::now()) {
                idle(left);
            }
        }
        println!("{}", serde_json::json!({ "us": us }));
        Ok(())
    }
}
