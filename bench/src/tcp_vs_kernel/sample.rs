//! Result of one run.

use serde_json::Value;

/// Result of one run of a sender and a receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Goodput: bytes of received messages, in Gb/s.
    pub gbit_s: f64,
    /// Frames dropped by errors of the emulator.
    pub dropped: u64,
    /// Fraction of frames that the emulator sent late.
    pub late_fraction: f64,
    /// Maximum lateness in milliseconds.
    pub latest_ms: f64,
    /// Counters of the emulator, from `iwlink --json`.
    pub wire: Value,
}

/// Maximum fraction of late frames of a valid run.
const LATE_FRACTION_MAX: f64 = 0.02;

impl Sample {
    /// True if errors of the emulator invalidate the run.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.dropped > 0 || self.late_fraction > LATE_FRACTION_MAX
    }
}

/// Result of one run of a requester and a responder.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeSample {
    /// Time from each request to the end of its response in microseconds, in order.
    pub us: Vec<f64>,
    /// Fraction of frames that the emulator sent late.
    pub late_fraction: f64,
    /// Maximum lateness in milliseconds.
    pub latest_ms: f64,
    /// Frames dropped by errors of the emulator.
    pub dropped: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_or_dropped_frames_invalidate_a_sample() {
        let good = Sample {
            gbit_s: 1.0,
            dropped: 0,
            late_fraction: 0.01,
            latest_ms: 0.3,
            wire: Value::Null,
        };
        assert!(!good.is_invalid());
        assert!(Sample { dropped: 1, ..good.clone() }.is_invalid());
        assert!(Sample { late_fraction: 0.03, ..good }.is_invalid());
    }
}
