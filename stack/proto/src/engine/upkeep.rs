//! Upkeep of the table of connections: insertion, room for new ones, removal.

use crate::connection::Connection;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::{At, Engine, Types};
use crate::steering::owners::ReserveError;
use crate::verbs::wc::Completions;

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
        let inserted = connections.insert(conn);
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
