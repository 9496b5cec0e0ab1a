//! Port that delivers the frames of one host to the receive queues of its shards, as RSS predicts
//! or otherwise.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferrowarp_proto::steering::toeplitz::{KEY_LEN_MIN, RssTable};
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::wire::tcp::FourTuple;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// Maximum number of shards of an end.
pub const SHARD_COUNT_MAX: usize = 4;
/// Entries of a redirection table.
const TABLE_LEN: usize = 128;

/// Rule by which a port delivers frames to its queues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Steering {
    /// By the hash key and the table that the shards know.
    Predicted,
    /// By a key and a table that the shards do not know.
    Mispredicted,
    /// As predicted, but this share of the frames go to a random queue. They overtake others of
    /// their connection, or are overtaken.
    Scattered(f64),
    /// By a table that is replaced after random times of up to so many nanoseconds.
    Changing(u64),
    /// To the first queue.
    FirstQueue,
}

/// The shards of both ends.
#[derive(Clone, Copy, Debug)]
pub struct ShardOptions {
    /// Number of shards of each end, 1 to [`SHARD_COUNT_MAX`].
    pub counts: [usize; 2],
    /// Rule by which their ports deliver frames.
    pub steering: Steering,
    /// The shards know hash key and table of their port; otherwise they know nothing of how it
    /// delivers frames.
    pub is_rss_known: bool,
    /// Messages that the ring from one shard to another holds.
    pub ring_len: usize,
    /// Maximum number of connections of an end.
    pub connections_max: usize,
}

impl ShardOptions {
    /// Shards whose ports deliver as predicted.
    #[must_use]
    pub const fn new(counts: [usize; 2]) -> Self {
        Self {
            counts,
            steering: Steering::Predicted,
            is_rss_known: true,
            ring_len: 256,
            connections_max: 1024,
        }
    }
}

/// A random hash key and table for `count` queues.
fn random_table(rng: &mut SmallRng, count: usize) -> RssTable {
    let mut key = [0; KEY_LEN_MIN];
    rng.fill_bytes(&mut key);
    // The windows at the local port, of IPv4 and of IPv6, end in all combinations of two bits:
    // there are ports for each queue.
    for byte in [14, 15, 38, 39] {
        key[byte] = 0x6d;
    }
    let queues: Vec<u16> = (0u16..).take(count).cycle().take(TABLE_LEN).collect();
    RssTable::new(&key, &queues).expect("the key is long enough")
}

/// Delivery of the frames of one port.
pub(super) struct SimPort {
    rng: SmallRng,
    steering: Steering,
    count: usize,
    /// Table that the shards predict with.
    predicted: RssTable,
    /// Table that the port uses.
    table: RssTable,
    changes_at: Instant,
}

impl SimPort {
    pub(super) fn new(steering: Steering, count: usize, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let predicted = random_table(&mut rng, count);
        let table = match steering {
            Steering::Mispredicted => random_table(&mut rng, count),
            _ => predicted.clone(),
        };
        Self { rng, steering, count, predicted, table, changes_at: Instant::ZERO }
    }

    /// Returns hash key and table that the shards may know.
    pub(super) const fn predicted(&self) -> &RssTable {
        &self.predicted
    }

    /// Returns the queue that gets a frame. Frames other than whole TCP segments go to any queue.
    pub(super) fn queue_of(&mut self, now: Instant, frame: &[u8]) -> usize {
        match self.steering {
            Steering::FirstQueue => return 0,
            Steering::Scattered(share) if self.rng.random_bool(share) => {
                return self.rng.random_range(0..self.count);
            }
            Steering::Changing(longest_ns) if now >= self.changes_at => {
                self.table = random_table(&mut self.rng, self.count);
                self.changes_at = now + self.rng.random_range(0..longest_ns);
            }
            _ => {}
        }
        match four_tuple(frame) {
            Some(tuple) => usize::from(self.table.queue_of(&tuple)),
            None => self.rng.random_range(0..self.count),
        }
    }
}

/// The four-tuple of a whole TCP segment, from its receiver's point of view.
fn four_tuple(frame: &[u8]) -> Option<FourTuple> {
    let is_tagged = frame.get(12..14)? == [0x81, 0];
    let packet = &frame[if is_tagged { 18 } else { 14 }..];
    let [src, dst, ports] = if packet.first()? >> 4 == 4 {
        let is_whole = packet.get(6)? & 0x3f == 0 && packet.get(7)? == &0;
        if *packet.get(9)? != 6 || !is_whole {
            return None;
        }
        [packet.get(12..16)?, packet.get(16..20)?, packet.get(20..24)?]
    } else {
        if *packet.get(6)? != 6 {
            return None;
        }
        [packet.get(8..24)?, packet.get(24..40)?, packet.get(40..44)?]
    };
    let ip = |bytes: &[u8]| -> IpAddr {
        match <[u8; 4]>::try_from(bytes) {
            Ok(bytes) => Ipv4Addr::from(bytes).into(),
            Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).expect("16 bytes")).into(),
        }
    };
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    Some(FourTuple {
        local: SocketAddr::new(ip(dst), port(2)),
        remote: SocketAddr::new(ip(src), port(0)),
    })
}
