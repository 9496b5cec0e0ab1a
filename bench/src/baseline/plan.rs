//! Plan of the measurement: tests, core placements, sizes, number of rounds.

/// The tests, bandwidth first.
pub const TESTS: [&str; 6] =
    ["write-bw", "read-bw", "send-bw", "write-lat", "read-lat", "send-lat"];

/// Placement of both ends on processes and cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One process over `ring`, both ends on one core.
    OneCore(usize),
    /// One process over `ring`, an end on each core.
    TwoCores([usize; 2]),
    /// One process over `ring`, a shard of both ends on each core.
    Shards(Vec<usize>),
    /// Two processes over `memif`, an end on each core; both on one if there is only one.
    Memif([usize; 2]),
    /// Two processes over vhost-user, the server as back end and the client as virtio driver, on
    /// cores as with `memif`.
    Vhost([usize; 2]),
}

impl Topology {
    /// Returns the title for headings.
    #[must_use]
    pub fn title(&self) -> &'static str {
        match self {
            Self::OneCore(_) => "`ring`, one core",
            Self::TwoCores(_) => "`ring`, two cores",
            Self::Shards(_) => "`ring`, a shard of both ends on each core",
            Self::Memif(_) => "`memif`, two processes on two cores",
            Self::Vhost(_) => "`vhost` and `virtio-user`, two processes on two cores",
        }
    }

    /// Returns the cores of the two ends, one if they share it, or those of the shards.
    #[must_use]
    pub fn cores(&self) -> Vec<usize> {
        match self {
            Self::OneCore(core) => vec![*core],
            Self::TwoCores(cores) | Self::Memif(cores) | Self::Vhost(cores) => match cores {
                [a, b] if a == b => vec![*a],
                _ => cores.to_vec(),
            },
            Self::Shards(cores) => cores.clone(),
        }
    }
}

/// Parameters of all measurements.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Topologies and MTUs.
    pub tables: Vec<(Topology, u16)>,
    /// Message sizes in bytes.
    pub sizes: Vec<u64>,
    /// Number of rounds.
    pub rounds: usize,
    /// Duration of each run of `iwperf` in seconds.
    pub seconds: f64,
    /// Duration of each measurement of the frozen bound in seconds.
    pub bound_seconds: f64,
}
