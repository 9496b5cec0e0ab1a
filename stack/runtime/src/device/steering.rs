//! How a port spreads the frames it receives over its queues.

use dpdk_sys::RxQueue;

pub use dpdk_sys::RssConfig;

use crate::device::quirks::{DriverQuirks, SteeringBy};

/// How a port spreads the frames it receives over its queues. With one queue all arrive there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Steering {
    /// RSS (receive side scaling): the queue follows from the Toeplitz hash of the four-tuple, with
    /// the key and the redirection table that the port was asked for after it was started.
    Predicted(RssConfig),
    /// Queue i is connected to queue i of the link partner (`ring`, memif, vhost).
    Mirrored,
    /// The kernel returns a flow to the queue on which it was sent last, and otherwise hashes as it
    /// likes (`tap`).
    Learned,
    /// By a rule that is not known here (`af_packet`, and NICs without RSS over the four-tuple).
    Unknown,
}

impl Steering {
    /// Returns the steering of a started port with `queues` queue pairs.
    pub(super) fn of(quirks: &DriverQuirks, rx: &RxQueue, queues: u16) -> Self {
        match quirks.steering {
            SteeringBy::Peer => Self::Mirrored,
            SteeringBy::Kernel => Self::Learned,
            SteeringBy::Port => rx
                .rss_config()
                .filter(|rss| rss.tcp_ipv4 && rss.table.iter().all(|&queue| queue < queues))
                .map_or(Self::Unknown, Self::Predicted),
            SteeringBy::Other => Self::Unknown,
        }
    }
}
