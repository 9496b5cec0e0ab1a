//! Queue in which each value is at most once.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Number of entries up to which the memory of an empty table is kept.
const KEPT_CAPACITY: usize = 64;

/// Queue in which each value is at most once, and which any value can leave. The cost of each call
/// is logarithmic in the length.
#[derive(Debug)]
pub(crate) struct TicketQueue<T> {
    /// By ticket, and so in their order.
    pending: BTreeMap<u64, T>,
    /// Tickets of the pending values.
    tickets: HashMap<T, u64>,
    last_ticket: u64,
}

impl<T> Default for TicketQueue<T> {
    fn default() -> Self {
        Self { pending: BTreeMap::new(), tickets: HashMap::new(), last_ticket: 0 }
    }
}

impl<T: Copy + Eq + Hash> TicketQueue<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    /// Appends a value; false if it is in the queue.
    pub(crate) fn push(&mut self, value: T) -> bool {
        if self.tickets.contains_key(&value) {
            return false;
        }
        self.last_ticket += 1;
        self.pending.insert(self.last_ticket, value);
        self.tickets.insert(value, self.last_ticket);
        true
    }

    /// Removes and returns the oldest value.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let (_, value) = self.pending.pop_first()?;
        self.tickets.remove(&value);
        self.free_memory();
        Some(value)
    }

    /// Removes a value; false if it is not in the queue.
    pub(crate) fn remove(&mut self, value: T) -> bool {
        let Some(ticket) = self.tickets.remove(&value) else { return false };
        self.pending.remove(&ticket);
        self.free_memory();
        true
    }

    fn free_memory(&mut self) {
        if self.tickets.is_empty() && self.tickets.capacity() > KEPT_CAPACITY {
            self.tickets = HashMap::new();
        }
    }
}
