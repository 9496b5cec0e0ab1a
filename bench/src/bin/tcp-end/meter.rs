//! Counter of the bytes received within the measured time.

use std::time::{Duration, Instant};

/// Measured time, from the start of a connection.
#[derive(Clone, Copy)]
pub(crate) struct MeasureWindow {
    pub(crate) warm_up: Duration,
    pub(crate) seconds: Duration,
}

/// Counts bytes within the window.
pub(crate) struct Meter {
    window: MeasureWindow,
    start: Instant,
    from: Option<(Instant, u64)>,
    printed: bool,
}

impl Meter {
    pub(crate) fn start(window: MeasureWindow) -> Self {
        Self { window, start: Instant::now(), from: None, printed: false }
    }

    /// Updates the bytes received since the start; called regularly. Prints the result after the
    /// measured time.
    pub(crate) fn update(&mut self, bytes: u64) {
        let now = Instant::now();
        match self.from {
            None if now - self.start >= self.window.warm_up => self.from = Some((now, bytes)),
            Some((from, before)) if now - from >= self.window.seconds && !self.printed => {
                let seconds = (now - from).as_secs_f64();
                let bytes = bytes - before;
                println!("{}", serde_json::json!({"octets": bytes, "seconds": seconds}));
                self.printed = true;
            }
            _ => {}
        }
    }
}
