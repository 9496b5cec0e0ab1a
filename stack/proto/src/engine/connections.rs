//! Table of connections: slots by index, and indices by four-tuple.

use core::hash::BuildHasher;

use hashbrown::HashTable;

use crate::connection::Connection;
use crate::connection::context::Env;
use crate::connection::schedule::ConnId;
use crate::net::siphash_keys::SipBuildHasher;
use crate::slab::{PREALLOCATED_MAX, Slab};
use crate::wire::tcp::FourTuple;

/// Connections by the ports of the last segments, so that most are found without the keyed hash. An
/// attacker who chooses ports can only make others take that.
struct Recent {
    /// Indices; those that no segment had are 0, and any may be stale.
    indices: Box<[u32]>,
    /// The length is 2 to the power of 32 less this.
    shift: u32,
}

/// Entries that a table of recent connections has at least, as a power of two: 1 KiB.
const RECENT_BITS_MIN: u32 = 8;
/// Entries that it has at most, as a power of two: 256 KiB.
const RECENT_BITS_MAX: u32 = 16;
/// Entries per connection, as far as the table grows: of the segments that alternate between all
/// connections a fifth then has an entry that another has taken; with 65,536 two thirds.
const RECENT_PER_CONNECTION: usize = 4;

impl Recent {
    fn new(bits: u32) -> Self {
        Self { indices: vec![0; 1 << bits].into(), shift: u32::BITS - bits }
    }

    /// Grows for so many connections; the entries are then those that the next segments make.
    fn reserve(&mut self, count: usize) {
        let wanted = (count * RECENT_PER_CONNECTION).min(1 << RECENT_BITS_MAX);
        if self.indices.len() < wanted {
            *self = Self::new(wanted.next_power_of_two().ilog2());
        }
    }

    /// Returns the slot of a segment with these ports.
    #[inline(always)]
    fn slot(&self, ports: u32) -> usize {
        // Fibonacci hashing: the odd number next to 2^32 over the golden ratio.
        (ports.wrapping_mul(0x9e37_79b1) >> self.shift) as usize & (self.indices.len() - 1)
    }

    #[inline(always)]
    fn get(&self, slot: usize) -> u32 {
        self.indices[slot]
    }
}

/// Table of connections.
pub(super) struct Connections<E: Env> {
    slots: Slab<Connection<E>>,
    /// Indices by the hash of the four-tuple, which is stored in the connection.
    by_tuple: HashTable<u32>,
    hash: SipBuildHasher,
    recent: Recent,
}

impl<E: Env> Connections<E> {
    pub(super) fn new(count_max: usize, seed: u64) -> Self {
        Self {
            slots: Slab::new(count_max),
            by_tuple: HashTable::with_capacity(count_max.min(PREALLOCATED_MAX)),
            hash: SipBuildHasher::new(seed),
            recent: Recent::new(RECENT_BITS_MIN),
        }
    }

    /// Returns the connection that last received a segment with these ports ([`plain_ports`]), or
    /// any other: the caller compares the headers.
    ///
    /// [`plain_ports`]: crate::wire::tcp::plain_ports
    #[inline(always)]
    pub(super) fn recent(&self, ports: u32) -> u32 {
        *self.recent_entry(ports)
    }

    /// Returns the entry that [`Connections::recent`] reads, unread.
    #[inline(always)]
    pub(super) fn recent_entry(&self, ports: u32) -> &u32 {
        &self.recent.indices[self.recent.slot(ports)]
    }

    /// Finds the connection of a segment. Segments come in trains: a connection that received
    /// lately is compared first, since the keyed hash of the table costs as much as the rest of the
    /// receive path.
    #[inline]
    pub(super) fn find(&mut self, tuple: &FourTuple) -> Option<u32> {
        let ports = u32::from(tuple.remote.port()) << 16 | u32::from(tuple.local.port());
        let slot = self.recent.slot(ports);
        let recent = self.recent.get(slot);
        if self.slots.get(recent).is_some_and(|conn| conn.tcb.matches(tuple)) {
            return Some(recent);
        }
        let index = self.find_by_hash(tuple)?;
        self.recent.indices[slot] = index;
        Some(index)
    }

    /// Finds a connection by four-tuple in the table.
    pub(super) fn find_by_hash(&self, tuple: &FourTuple) -> Option<u32> {
        let is_it =
            |&index: &u32| self.slots.get(index).is_some_and(|conn| conn.tcb.matches(tuple));
        self.by_tuple.find(self.hash.hash_one(tuple), is_it).copied()
    }

    /// Inserts a connection, which is given its handle; `None` if the table is full.
    pub(super) fn insert(&mut self, mut conn: Connection<E>) -> Option<&mut Connection<E>> {
        let tuple = conn.tcb.tuple();
        conn.tcb.set_peer_group(self.hash.address_group(tuple.remote.ip()));
        let index = self.slots.insert_with(|index, generation| {
            conn.id = ConnId { index, generation };
            conn
        })?;
        self.recent.reserve(self.slots.len());
        let (slots, hash) = (&self.slots, self.hash);
        self.by_tuple.insert_unique(hash.hash_one(tuple), index, |&index| {
            slots.get(index).map_or(0, |conn| hash.hash_one(conn.tcb.tuple()))
        });
        self.slots.get_mut(index)
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<Connection<E>> {
        let hash = self.hash.hash_one(self.slots.get(index)?.tcb.tuple());
        if let Ok(entry) = self.by_tuple.find_entry(hash, |&entry| entry == index) {
            entry.remove();
        }
        self.slots.remove(index)
    }

    pub(super) fn get(&self, index: u32) -> Option<&Connection<E>> {
        self.slots.get(index)
    }

    /// Returns the slot of a connection, without reading whether it is in use.
    pub(super) fn slot(&self, index: u32) -> Option<&Option<Connection<E>>> {
        self.slots.slot(index)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Connection<E>> {
        self.slots.get_mut(index)
    }

    /// Returns the index of a connection, unless it is gone.
    pub(super) fn index(&self, id: ConnId) -> Option<u32> {
        self.slots.live_index(id.index, id.generation)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection<E>> {
        self.slots.indices().filter_map(|index| self.slots.get(index))
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of slots ever used: all indices are below it.
    pub(super) fn slot_count(&self) -> usize {
        self.slots.slot_count()
    }

    /// Returns the number of entries of the four-tuple table.
    pub(super) fn tuple_count(&self) -> usize {
        self.by_tuple.len()
    }
}
