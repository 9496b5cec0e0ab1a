//! Table of connections: slots by index, and indices by four-tuple.

use core::hash::BuildHasher;

use hashbrown::HashTable;

use crate::cm::connection::Connection;
use crate::cm::env::Env;
use crate::cm::schedule::ConnId;
use crate::net::siphash_keys::SipBuildHasher;
use crate::slab::{PREALLOCATED_MAX, Slab};
use crate::wire::tcp::FourTuple;

/// See the [module's documentation](self).
pub(super) struct Connections<E: Env> {
    slots: Slab<Connection<E>>,
    /// Indices by the hash of the four-tuple, which is stored in the connection.
    by_tuple: HashTable<u32>,
    hash: SipBuildHasher,
    /// Connection of the last segment matched by four-tuple; may be stale.
    last_match: u32,
}

impl<E: Env> Connections<E> {
    pub(super) fn new(count_max: usize, seed: u64) -> Self {
        Self {
            slots: Slab::new(count_max),
            by_tuple: HashTable::with_capacity(count_max.min(PREALLOCATED_MAX)),
            hash: SipBuildHasher::new(seed),
            last_match: 0,
        }
    }

    /// Finds the connection of a segment. Segments come in trains: the connection of the last one
    /// is compared first, since the keyed hash of the table costs as much as the rest of the
    /// receive path.
    #[inline]
    pub(super) fn find(&mut self, tuple: &FourTuple) -> Option<u32> {
        let last = self.slots.get(self.last_match);
        if last.is_none_or(|conn| !conn.tcb.matches(tuple)) {
            self.last_match = self.find_by_hash(tuple)?;
        }
        Some(self.last_match)
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
        let index = self.slots.insert_with(|index, generation| {
            conn.id = ConnId { index, generation };
            conn
        })?;
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
