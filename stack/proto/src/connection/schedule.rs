//! Scheduling of connections: the timers, and the lists of connections to be served.

use std::collections::VecDeque;

use crate::wheel::Wheel;

/// Frames received in one pass, at most.
pub(crate) const BURST_LEN: usize = 32;

/// Handle of a connection: stale once the slot has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// See the [module's documentation](self).
pub(crate) struct Schedule {
    pub(crate) wheel: Wheel,
    /// Connections to be served, in round-robin order, each at most once; stale entries are
    /// skipped.
    pub(crate) ready: VecDeque<ConnId>,
    /// Connections that found no frame for new data, in the order in which they get one, each at
    /// most once; stale entries are skipped.
    pub(crate) awaiting_frame: VecDeque<ConnId>,
    /// Connections with contiguous data that earlier passes had no budget to deliver, each at most
    /// once; stale entries are skipped.
    pub(crate) ooo_backlog: VecDeque<ConnId>,
    /// Out-of-order segments that this pass may still deliver.
    pub(crate) ooo_budget: usize,
    /// Connections with contiguous data that waits for memory of partial FPDUs; stale entries are
    /// skipped.
    pub(crate) awaiting_partial_memory: VecDeque<ConnId>,
    /// Connections that wait for a hardware address; stale entries are skipped.
    pub(crate) unresolved: VecDeque<ConnId>,
    /// Number of them, from the front, that are to be checked.
    pub(crate) unresolved_due: usize,
    /// Connections in TIME-WAIT, oldest first; stale entries are skipped.
    pub(crate) time_waits: VecDeque<ConnId>,
    /// Frames without stream bytes that connections have sent.
    pub(crate) control_frames_out: u64,
    /// Number of connections in TIME-WAIT.
    pub(crate) time_wait_count: usize,
    /// Frames received and sent by the short way.
    pub(crate) short_way_counts: [u64; 2],
}

impl Schedule {
    pub(crate) fn new() -> Self {
        Self {
            wheel: Wheel::new(),
            ready: VecDeque::new(),
            awaiting_frame: VecDeque::new(),
            ooo_backlog: VecDeque::new(),
            ooo_budget: 0,
            awaiting_partial_memory: VecDeque::new(),
            unresolved: VecDeque::new(),
            unresolved_due: 0,
            time_waits: VecDeque::new(),
            control_frames_out: 0,
            time_wait_count: 0,
            short_way_counts: [0; 2],
        }
    }
}
