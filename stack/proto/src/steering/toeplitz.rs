//! Receive-side scaling (RSS) in software: the Toeplitz hash and the redirection table by which a
//! NIC selects the receive queue of a TCP segment.
//!
//! [`RssTable`] predicts the queue of a four-tuple, and [`PortSolver`] that of each local port
//! towards one remote peer. `connect` uses it to select a port whose segments arrive on the queue
//! of the shard that connects.
//!
//! The key is seen as a string of bits, and its window at bit `i` is bits `i..i + 32`. The hash is
//! the XOR of the windows at those bits that are set in the input: source address, destination
//! address, source port and destination port, in network byte order. So it is linear over GF(2):
//! `hash(a ^ b) == hash(a) ^ hash(b)`.
//!
//! Source: Microsoft, "RSS hashing functions" and "Verifying the RSS hash calculation", hash types
//! `TCP_IPV4` and `TCP_IPV6`; in DPDK `RTE_ETH_RSS_NONFRAG_IPV4_TCP` and
//! `RTE_ETH_RSS_NONFRAG_IPV6_TCP`. Fragments are hashed without ports and are not covered here.

use core::array;
use core::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;

use crate::wire::tcp::FourTuple;

/// Minimum length of a hash key, in bytes: the input of IPv6/TCP and, for its last bit, a window.
pub const KEY_LEN_MIN: usize = INPUT_LEN_MAX + 4;

/// Length of the hash input of IPv6/TCP, in bytes; that of IPv4/TCP has 12.
const INPUT_LEN_MAX: usize = 36;
/// Bits of a port.
const PORT_BITS: usize = 16;

/// Hash key and redirection table (RETA) of a port: they map four-tuples to receive queues.
///
/// They have to be those that the port uses, read back from it after its configuration. All
/// methods are for connection set-up and for checks, not for each segment: a hash visits each bit
/// of its input, 96 for IPv4 and 288 for IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssTable {
    key: Box<[u8]>,
    queues: Box<[u16]>,
}

/// Reason why hash key and redirection table are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RssTableError {
    /// The key has fewer than [`KEY_LEN_MIN`] bytes, so that it does not cover IPv6/TCP.
    #[error("hash key of {len} bytes, at least {KEY_LEN_MIN} are needed")]
    KeyTooShort {
        /// Length of the key, in bytes.
        len: usize,
    },
    /// The redirection table has no entries.
    #[error("redirection table without entries")]
    EmptyTable,
}

impl RssTable {
    /// Copies the hash key and the redirection table, a receive queue for each index.
    ///
    /// Keys have 40 bytes in most NICs and 52 in some; bytes from the 41st on do not affect the
    /// hash. The length of the table need not be a power of two.
    ///
    /// # Errors
    ///
    /// `KeyTooShort` below [`KEY_LEN_MIN`] bytes, `EmptyTable` without queues.
    pub fn new(key: &[u8], queues: &[u16]) -> Result<Self, RssTableError> {
        if key.len() < KEY_LEN_MIN {
            return Err(RssTableError::KeyTooShort { len: key.len() });
        }
        if queues.is_empty() {
            return Err(RssTableError::EmptyTable);
        }
        Ok(Self { key: key.into(), queues: queues.into() })
    }

    /// Returns the Toeplitz hash of the segments received on a connection, as in `mbuf.hash.rss`.
    ///
    /// Their source is `tuple.remote` and their destination `tuple.local`, both of one address
    /// family.
    #[must_use]
    pub fn hash(&self, tuple: &FourTuple) -> u32 {
        let input = hash_input(tuple);
        let bits = input.iter().enumerate().flat_map(|(index, byte)| {
            (0..8).filter(move |bit| byte & 0x80 >> bit != 0).map(move |bit| index * 8 + bit)
        });
        bits.fold(0, |hash, bit| hash ^ self.key_window(bit))
    }

    /// Returns the queue of the redirection table for a hash.
    ///
    /// The index is the hash modulo the length of the table: its low-order bits where the length
    /// is a power of two.
    #[must_use]
    pub fn queue_of_hash(&self, hash: u32) -> u16 {
        self.queues[hash as usize % self.queues.len()]
    }

    /// Returns the queue on which the segments of a connection are received.
    #[must_use]
    pub fn queue_of(&self, tuple: &FourTuple) -> u16 {
        self.queue_of_hash(self.hash(tuple))
    }

    /// The window of the key at `bit`, a bit of the input.
    fn key_window(&self, bit: usize) -> u32 {
        let &[a, b, c, d, next] = self.key[bit / 8..]
            .first_chunk()
            .expect("a key of KEY_LEN_MIN bytes has a window for each bit of the input");
        let shift = bit % 8;
        u32::from_be_bytes([a, b, c, d]) << shift | u32::from(next) >> (8 - shift)
    }
}

/// The hash input of a received segment; the local port comes last.
fn hash_input(tuple: &FourTuple) -> ArrayVec<u8, INPUT_LEN_MAX> {
    let (source, destination) = (tuple.remote, tuple.local);
    let mut input = ArrayVec::new();
    for ip in [source.ip(), destination.ip()] {
        match ip {
            IpAddr::V4(ip) => input.extend(ip.octets()),
            IpAddr::V6(ip) => input.extend(ip.octets()),
        }
    }
    for port in [source.port(), destination.port()] {
        input.extend(port.to_be_bytes());
    }
    input
}

/// Receive queues of the local ports towards one remote peer, for port selection in `connect`.
///
/// The hash is linear: that of a port is that of port 0, XOR the key windows of the bits set in the
/// port. `new` computes the hash and the 16 windows; after that a port costs at most 16 XORs and a
/// look-up in the redirection table, without the addresses. Nothing is allocated.
///
/// With a table that spreads N queues evenly, a search visits about N ports on average. It needs a
/// bound: the table may not contain the queue, and with a degenerate key, such as all zeros, all
/// ports lead to the same queue.
#[derive(Clone, Debug)]
pub struct PortSolver<'a> {
    table: &'a RssTable,
    /// Hash of the four-tuple with local port 0.
    base: u32,
    /// Key windows of the port's bits, the most significant first.
    windows: [u32; PORT_BITS],
}

impl<'a> PortSolver<'a> {
    /// Prepares for connections from `local_ip` to `remote`, of the same address family.
    #[must_use]
    pub fn new(table: &'a RssTable, local_ip: IpAddr, remote: SocketAddr) -> Self {
        let tuple = FourTuple { local: SocketAddr::new(local_ip, 0), remote };
        let port_at = hash_input(&tuple).len() * 8 - PORT_BITS;
        Self {
            table,
            base: table.hash(&tuple),
            windows: array::from_fn(|bit| table.key_window(port_at + bit)),
        }
    }

    /// Returns the Toeplitz hash of the segments that local port `port` receives.
    #[must_use]
    pub fn hash_of_port(&self, port: u16) -> u32 {
        let bits = (0..PORT_BITS).filter(|bit| port & 0x8000 >> bit != 0);
        bits.fold(self.base, |hash, bit| hash ^ self.windows[bit])
    }

    /// Returns the queue on which local port `port` receives its segments.
    #[must_use]
    pub fn queue_of_port(&self, port: u16) -> u16 {
        self.table.queue_of_hash(self.hash_of_port(port))
    }
}

#[cfg(test)]
mod tests;
