//! What to measure: tests, places, sizes, how often.

/// The tests, bandwidth first.
pub const TESTS: [&str; 6] =
    ["write-bw", "read-bw", "send-bw", "write-lat", "read-lat", "send-lat"];

/// Where both ends run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One process over `ring`, both ends on one core.
    OneCore(usize),
    /// One process over `ring`, an end on each core.
    TwoCores([usize; 2]),
    /// Two processes over `memif`, an end on each core; both on one if there is only one.
    Memif([usize; 2]),
}

impl Topology {
    /// For headings.
    #[must_use]
    pub fn title(&self) -> &'static str {
        match self {
            Self::OneCore(_) => "`ring`, one core",
            Self::TwoCores(_) => "`ring`, two cores",
            Self::Memif(_) => "`memif`, two processes on two cores",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where, with which MTU.
    pub tables: Vec<(Topology, u16)>,
    /// Bytes per message.
    pub sizes: Vec<u64>,
    /// How often everything is done.
    pub rounds: usize,
    /// Seconds of each run of `iwperf`.
    pub seconds: f64,
    /// Seconds of each measurement of the bound.
    pub bound_seconds: f64,
}
