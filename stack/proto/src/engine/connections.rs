//! Table of connections: slots by index, and indices by four-tuple; insertion, room for new ones,
//! removal.

use core::hash::BuildHasher;

use hashbrown::HashTable;

use crate::connection::Connection;
use crate::connection::context::Env;
use crate::connection::schedule::ConnId;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::{At, Engine, Types};
use crate::net::siphash_keys::SipBuildHasher;
use crate::slab::{PREALLOCATED_MAX, Slab};
use crate::steering::owners::ReserveError;
use crate::time::Instant;
use crate::verbs::wc::Completions;
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
    /// Origin of each connection, by index. Not in the connection, which fills its cache lines.
    origins: Vec<Origin>,
}

/// Time and link of the first SYN of a connection.
#[derive(Clone, Copy)]
struct Origin {
    at: AgeUnits,
    /// [`Device::link_down_count`] then.
    link_down_count: u32,
}

/// Time in units of 2^24 ns, 17 ms, for two years.
#[derive(Clone, Copy)]
struct AgeUnits(u32);

impl AgeUnits {
    const BITS: u32 = 24;

    #[expect(clippy::cast_possible_truncation, reason = "it wraps after two years")]
    const fn of(now: Instant) -> Self {
        Self((now.as_nanos() >> Self::BITS) as u32)
    }

    /// Returns the nanoseconds since then, with an error of a unit.
    const fn age(self, now: Instant) -> u64 {
        (Self::of(now).0.wrapping_sub(self.0) as u64) << Self::BITS
    }
}

impl<E: Env> Connections<E> {
    pub(super) fn new(count_max: usize, seed: u64) -> Self {
        Self {
            slots: Slab::new(count_max),
            by_tuple: HashTable::with_capacity(count_max.min(PREALLOCATED_MAX)),
            hash: SipBuildHasher::new(seed),
            recent: Recent::new(RECENT_BITS_MIN),
            origins: Vec::new(),
        }
    }

    /// Returns the nanoseconds since the first SYN of a connection, with an error of 17 ms.
    pub(super) fn age(&self, index: u32, now: Instant) -> u64 {
        self.origins.get(index as usize).map_or(0, |origin| origin.at.age(now))
    }

    /// Returns the connections that began before the link went down for the last time, of
    /// `link_down_count` times; all, if those are not counted.
    pub(super) fn older_than_link(&self, link_down_count: u32) -> Vec<u32> {
        let is_older = |&index: &u32| {
            link_down_count == 0 || self.origins[index as usize].link_down_count != link_down_count
        };
        self.iter().map(|conn| conn.id.index).filter(is_older).collect()
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
    pub(super) fn insert(
        &mut self,
        mut conn: Connection<E>,
        link_down_count: u32,
    ) -> Option<&mut Connection<E>> {
        let tuple = conn.tcb.tuple();
        // The present until a segment arrives.
        let origin = Origin { at: AgeUnits::of(conn.tcb.last_rx_at()), link_down_count };
        conn.tcb.set_peer_group(self.hash.address_group(tuple.remote.ip()));
        let index = self.slots.insert_with(|index, generation| {
            conn.id = ConnId { index, generation };
            conn
        })?;
        self.recent.reserve(self.slots.len());
        let slot = index as usize;
        self.origins.resize(self.origins.len().max(slot + 1), origin);
        self.origins[slot] = origin;
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

/// Connections visited to find one that lingers.
const LINGERING_SCAN_LEN: u32 = 256;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Inserts a connection, after its four-tuple is reserved among the shards.
    pub(super) fn insert_connection(
        &mut self,
        conn: Connection<Types<D, M, C>>,
    ) -> Option<At<'_, D, M, C>> {
        let tuple = conn.tcb.tuple();
        let mut reserved = self.cx.reserve(&tuple);
        if reserved == Err(ReserveError::Full) && self.recycle_any_time_wait() {
            reserved = self.cx.reserve(&tuple);
        }
        reserved.ok()?;
        let Self { connections, cx, .. } = self;
        let inserted = connections.insert(conn, cx.device.link_down_count());
        if inserted.is_none() {
            cx.release(&tuple);
        }
        inserted.map(|conn| (conn, cx))
    }

    /// Makes room for one more connection, if need be by removing the oldest in TIME-WAIT, or else
    /// one that only lingers.
    pub(super) fn make_room_by_force(&mut self) {
        if !self.make_room()
            && let Some(index) = self.find_lingering()
        {
            self.cx.verbs.counters.lingering_evicted += 1;
            self.remove_connection(index);
        }
    }

    /// Makes room for one more connection, if need be by removing the oldest in TIME-WAIT. False if
    /// the table is full of others.
    pub(super) fn make_room(&mut self) -> bool {
        self.connections.len() < self.cx.config.connections_max || self.recycle_time_wait()
    }

    /// Removes the connection that has been in TIME-WAIT for the longest time. False if none is.
    pub(super) fn recycle_time_wait(&mut self) -> bool {
        while !self.cx.schedule.time_waits.is_empty() {
            if self.recycle_oldest_time_wait() {
                return true;
            }
        }
        false
    }

    /// Finds a connection that was rejected or has ended, and waits for its peer to close: the one
    /// among the next few that may be removed first, or that times out first. If its peer sends
    /// anything after the removal, we answer with RST.
    ///
    /// Cost: visits [`LINGERING_SCAN_LEN`] connections.
    #[cold]
    pub(super) fn find_lingering(&mut self) -> Option<u32> {
        let slots = u32::try_from(self.connections.slot_count()).unwrap_or(u32::MAX);
        let indices = (0..LINGERING_SCAN_LEN.min(slots))
            .map(|at| self.lingering_cursor.wrapping_add(at) % slots);
        let lingering = indices.filter_map(|index| {
            let conn = self.connections.get(index)?;
            Some((conn.lingering(&self.cx)?, conn.deadline, index))
        });
        let found = lingering.min();
        if found.is_none() {
            self.lingering_cursor = self.lingering_cursor.wrapping_add(LINGERING_SCAN_LEN);
        }
        found.map(|(.., index)| index)
    }

    /// Inserts a half-open passive connection.
    pub(super) fn insert_half_open(
        &mut self,
        conn: Connection<Types<D, M, C>>,
    ) -> Option<At<'_, D, M, C>> {
        let (conn, cx) = self.insert_connection(conn)?;
        if let Some(listener) = conn.listener {
            cx.listeners.add_half_open(listener, conn.id.index);
        }
        Some((conn, cx))
    }

    /// Removes a connection from all tables.
    pub(super) fn remove_connection(&mut self, index: u32) {
        if let Some(conn) = self.connections.remove(index) {
            self.cx.release(&conn.tcb.tuple());
            conn.release(&mut self.cx);
        }
    }

    /// Removes the connection that has been in TIME-WAIT for the longest time. False if it is gone
    /// already.
    pub(super) fn recycle_oldest_time_wait(&mut self) -> bool {
        let Some(id) = self.cx.schedule.time_waits.pop_front() else { return false };
        let Some(index) = self.connections.index(id) else { return false };
        self.cx.verbs.counters.time_waits_recycled += 1;
        self.remove_connection(index);
        true
    }
}
