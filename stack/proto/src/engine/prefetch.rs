//! Loads of the state of connections before their turn. With many of them each turn begins with
//! state that no cache has, some 40 lines at the Data Source and 20 at the Data Sink, and would
//! wait for one after another.
//!
//! A line that names the next one, such as the queue pair of a connection, is read one turn later:
//! the connections on the ready list pass through stages.

use arrayvec::ArrayVec;

use crate::connection::schedule::BURST_LEN;
use crate::ddp::memory::Memory;
use crate::device::{Device, RxFrame};
use crate::engine::Engine;
use crate::verbs::wc::Completions;
use crate::wire::tcp::plain_ports;

/// With no more connections than this their state stays in the caches, and nothing is loaded ahead.
const CACHED_CONNECTIONS: usize = 64;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// True if the state of the connections is loaded ahead.
    #[inline(always)]
    pub(super) fn prefetches(&self) -> bool {
        self.connections.len() > CACHED_CONNECTIONS
    }

    /// Loads state of the first connections on the ready list but one: of the fourth itself, of the
    /// third its queue pair and scoreboard, of the second the requests that it sends next.
    #[inline(always)]
    pub(super) fn prefetch_ready(&self) {
        let Self { connections, cx, .. } = self;
        let ready = &cx.schedule.ready;
        if let Some(slot) = ready.get(3).and_then(|id| connections.slot(id.index)) {
            D::prefetch(slot);
        }
        if let Some(conn) = ready.get(2).and_then(|id| connections.get(id.index)) {
            conn.tcb.prefetch_scoreboard::<D>();
            if let Some(qp) = conn.qp {
                cx.qps.prefetch::<D>(qp);
            }
        }
        if let Some(conn) = ready.get(1).and_then(|id| connections.get(id.index))
            && let Some(qp) = conn.qp.and_then(|qp| cx.qps.get(qp))
        {
            qp.stream.requester.prefetch_next::<D>();
        }
    }

    /// Loads the state of the connections of a burst, as far as they are known by their ports:
    /// first who they are, then themselves, then their queue pairs.
    #[inline(never)]
    pub(super) fn prefetch_burst(&self) {
        let mut entries = ArrayVec::<&u32, BURST_LEN>::new();
        for frame in self.burst.iter().take(BURST_LEN) {
            if let Some(ports) = plain_ports(frame.head()) {
                let entry = self.connections.recent_entry(ports);
                D::prefetch(entry);
                entries.push(entry);
            }
        }
        let mut found = ArrayVec::<u32, BURST_LEN>::new();
        for &index in entries {
            if found.last() != Some(&index)
                && let Some(slot) = self.connections.slot(index)
            {
                D::prefetch(slot);
                found.push(index);
            }
        }
        for index in found {
            if let Some(qp) = self.connections.get(index).and_then(|conn| conn.qp) {
                self.cx.qps.prefetch::<D>(qp);
            }
        }
    }
}
