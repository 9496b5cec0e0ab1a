//! Steering of a port: the queue to which it gives a received frame.

use core::ops::Range;

use dpdk_sys::RxQueue;

pub use dpdk_sys::RssConfig;

use crate::device::quirks::{DriverQuirks, SteeringBy};

/// Rule by which a port spreads received frames over its queues. With one queue all arrive there.
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
        Self::of_borrowed(quirks, rx, &(0..queues))
    }

    /// Returns the steering over these queues of a started port, numbered from the first of them.
    /// If the port spreads frames over others as well, it is not known which reach them: the host
    /// program may steer by flow rules.
    pub(super) fn of_borrowed(quirks: &DriverQuirks, rx: &RxQueue, queues: &Range<u16>) -> Self {
        match quirks.steering {
            SteeringBy::Peer => Self::Mirrored,
            SteeringBy::Kernel => Self::Learned,
            SteeringBy::Port => rx
                .rss_config()
                .filter(|rss| rss.tcp_ipv4)
                .and_then(|rss| renumber(rss, queues))
                .map_or(Self::Unknown, Self::Predicted),
            SteeringBy::Other => Self::Unknown,
        }
    }
}

/// Numbers the queues of a redirection table from the first of `queues`; `None` if it has others.
fn renumber(mut rss: RssConfig, queues: &Range<u16>) -> Option<RssConfig> {
    for queue in &mut rss.table {
        *queue = queue.checked_sub(queues.start).filter(|_| queues.contains(queue))?;
    }
    Some(rss)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_the_table_are_numbered_from_the_first_that_is_borrowed() {
        let rss = |table: &[u16]| RssConfig {
            key: vec![0; 40],
            table: table.to_vec(),
            tcp_ipv4: true,
            tcp_ipv6: true,
        };
        assert_eq!(renumber(rss(&[0, 1, 1]), &(0..2)), Some(rss(&[0, 1, 1])));
        assert_eq!(renumber(rss(&[3, 2, 3]), &(2..4)), Some(rss(&[1, 0, 1])));
        for outside in [0, 1, 4] {
            assert_eq!(renumber(rss(&[2, outside]), &(2..4)), None);
        }
    }
}
