//! What one run says.

use serde_json::Value;

/// What one run of a sender and a receiver says.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Bytes of messages that arrived, in Gb/s.
    pub gbit_s: f64,
    /// Frames that the wire should have passed on and dropped.
    pub dropped: u64,
    /// The share of frames that left it late.
    pub late_fraction: f64,
    /// The latest, in milliseconds.
    pub latest_ms: f64,
    /// What the wire counted, as `iwlink --json` says it.
    pub wire: Value,
}

/// Frames that the wire may drop by itself, or deliver late, before a run is spoiled: as a share.
const LATE_FRACTION_MAX: f64 = 0.02;

impl Sample {
    /// The wire was not what it was meant to be.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.dropped > 0 || self.late_fraction > LATE_FRACTION_MAX
    }
}

/// What one run of a requester and a responder says.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeSample {
    /// Microseconds from a request until its response is complete, in order.
    pub us: Vec<f64>,
    /// The share of frames that left the wire late.
    pub late_fraction: f64,
    /// The latest, in milliseconds.
    pub latest_ms: f64,
    /// Frames that the wire should have passed on and dropped.
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
