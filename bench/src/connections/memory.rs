//! Memory of an idle connected queue pair.

use std::time::Duration;

use anyhow::{Result, ensure};
use ferrowarp::Qp;

use super::allocations::{Allocated, CountAllocations, resident};
use super::ends::{Depths, Ends};

/// Requests of the two kinds of queue pairs: both of their queues.
pub const DEPTHS: [usize; 2] = [1, 64];
/// Bytes of a slot of a work queue.
const SLOT_LEN: i64 = 64;
/// Queue pairs of each kind of which the least allocation counts: a table may grow for one.
const PROBES: usize = 4;

/// Time after which a connection has freed what it needed for its set-up, by timers.
const IDLE_TIME: Duration = Duration::from_millis(1500);

/// Memory of a queue pair at one end: mean of many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// Bytes allocated.
    pub bytes: f64,
    /// Allocations.
    pub count: f64,
}

impl Share {
    fn of(allocated: Allocated, count: usize) -> Self {
        let each = |value: i64| value as f64 / count as f64;
        Self { bytes: each(allocated.bytes), count: each(allocated.count) }
    }
}

/// Memory of queue pairs of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Requests in each of its queues.
    pub depth: usize,
    /// By its creation: left, right.
    pub created: [Share; 2],
    /// By its connection, in addition: left, right.
    pub connected: [Share; 2],
    /// Bytes of the handle, which the application holds.
    pub handle: u64,
    /// Resident bytes, mean of both ends.
    pub resident: f64,
}

impl Row {
    /// Returns the bytes allocated at an end (0 left, 1 right), its handle included.
    #[must_use]
    pub fn allocated(&self, end: usize) -> f64 {
        self.created[end].bytes + self.connected[end].bytes + self.handle as f64
    }
}

/// Memory of all kinds of queue pairs.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Connections of each step.
    pub count: usize,
    /// Bytes of a request's slots in both queues together.
    pub slots_len: f64,
    /// One for each of [`DEPTHS`].
    pub rows: Vec<Row>,
}

impl Memory {
    /// Returns the resident bytes of a row beside the slots of its queues.
    #[must_use]
    pub fn beside_slots(&self, row: &Row) -> f64 {
        row.resident - self.slots_len * row.depth as f64
    }

    /// Returns the bytes that an end (0 left, 1 right) has allocated, beside the slots.
    #[must_use]
    pub fn allocated_beside_slots(&self, row: &Row, end: usize) -> f64 {
        row.allocated(end) - self.slots_len * row.depth as f64
    }
}

/// Measures with `count` connections in each step: twice for each kind, of which the second counts.
/// To be called before anything else has freed memory, which would be used again.
///
/// # Errors
/// Errors of the device and the verbs.
pub fn run(
    count: usize,
    count_allocations: CountAllocations,
    mut progress: impl FnMut(&str),
) -> Result<Memory> {
    ensure!(count > 0, "memory: no connections to measure");
    let mut ends = Ends::open(2 * DEPTHS.len() * count, count_allocations)?;
    let slots_len = slots_len(&mut ends)?;
    let mut all = Vec::with_capacity(2 * DEPTHS.len() * count);
    let mut rows = Vec::new();
    for depth in DEPTHS {
        let depths = Depths { send: depth, recv: depth };
        all.extend(ends.set_up(count, depths)?);
        ends.poll_for(IDLE_TIME)?;
        let (before, resident_before) = (ends.allocated(), resident()?);
        let connections = ends.create(count, depths)?;
        let created = ends.allocated();
        ends.connect(&connections)?;
        ends.poll_for(IDLE_TIME)?;
        let (connected, resident_after) = (ends.allocated(), resident()?);
        all.extend(connections);
        let share = |after: [Allocated; 2], before: [Allocated; 2]| {
            [0, 1].map(|end| Share::of(after[end] - before[end], count))
        };
        let row = Row {
            depth,
            created: share(created, before),
            connected: share(connected, created),
            handle: size_of::<Qp>() as u64,
            resident: resident_after.saturating_sub(resident_before) as f64 / (2 * count) as f64,
        };
        progress(&format!(
            "memory, {depth} requests in each queue: {:.0} resident bytes per queue pair, {:.0} \
             and {:.0} allocated by {:.1} and {:.1} allocations",
            row.resident,
            row.allocated(0),
            row.allocated(1),
            row.created[0].count + row.connected[0].count,
            row.created[1].count + row.connected[1].count
        ));
        rows.push(row);
    }
    Ok(Memory { count, slots_len, rows })
}

/// Returns the bytes of a request's slots in both queues together, by what queue pairs of the two
/// kinds allocate; what is not whole slots belongs to the stack's tables of requests.
fn slots_len(ends: &mut Ends) -> Result<f64> {
    let [small, large] = DEPTHS;
    let mut least = |depth| {
        let mut least = i64::MAX;
        for _ in 0..PROBES {
            let before = ends.allocated()[0];
            let probe = ends.create(1, Depths { send: depth, recv: depth })?;
            least = least.min((ends.allocated()[0] - before).bytes);
            drop(probe);
        }
        Ok::<_, anyhow::Error>(least)
    };
    let bytes = least(large)? - least(small)?;
    let requests = i64::try_from(large - small)?;
    Ok((bytes / requests / SLOT_LEN * SLOT_LEN) as f64)
}
