//! Hierarchical timer wheel: a few entries per connection, re-armed lazily, O(1) per operation.
//!
//! Three levels of 256 slots; a tick is 2^14 ns (16 us), so the levels span 4.2 ms, 1.07 s and 275
//! s. Later deadlines wait in the last level and are armed again when their slot is reached.

use arrayvec::ArrayVec;

use crate::time::Instant;

const TICK_SHIFT: u32 = 14;
const SLOT_BITS: u32 = 8;
const SLOT_COUNT: usize = 1 << SLOT_BITS;
const LEVEL_COUNT: usize = 3;
/// Maximum distance of an armed timer, nearly five hours: the owner of a later one re-arms it then.
const HORIZON_MAX: u64 = 1 << 30;
const SLOT_MASK: u64 = SLOT_COUNT as u64 - 1;
/// Timers preallocated, so that a small number of connections never causes an allocation.
const PREALLOCATED: usize = 1024;
/// No entry.
const NONE: u32 = u32::MAX;

/// Armed timer. It is stale if it is not in its owner's [`ArmedTimers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    pub(crate) owner: u32,
    pub(crate) generation: u32,
    pub(crate) tick: u64,
}

/// Entries of one owner in the wheel. A deadline that moves back and forth must not leave an entry
/// behind each time: with one of a minute and one of 50 us that would be a million entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArmedTimers {
    /// Low halves of the ticks, the earliest last.
    ticks: ArrayVec<u32, 4>,
}

impl ArmedTimers {
    /// Requests a timer at `tick`. True if it needs an entry of its own, to be armed now; false if
    /// an earlier entry exists, at which the owner checks again.
    #[inline]
    pub(crate) fn try_arm(&mut self, tick: u64) -> bool {
        let tick = low_bits(tick);
        if self.ticks.last().is_some_and(|&earliest| is_at_or_before(earliest, tick)) {
            return false;
        }
        if self.ticks.is_full() {
            self.ticks.remove(0);
        }
        self.ticks.push(tick);
        true
    }

    /// Removes an entry that fired; false if it is stale.
    pub(crate) fn disarm(&mut self, tick: u64) -> bool {
        let tick = low_bits(tick);
        let Some(at) = self.ticks.iter().rposition(|&armed| armed == tick) else { return false };
        self.ticks.remove(at);
        true
    }
}

#[expect(clippy::cast_possible_truncation, reason = "armed ticks lie within AHEAD_MAX")]
#[inline]
const fn low_bits(tick: u64) -> u32 {
    tick as u32
}

#[inline]
const fn is_at_or_before(a: u32, b: u32) -> bool {
    b.wrapping_sub(a).cast_signed() >= 0
}

/// Timer in a slot's list.
#[derive(Debug)]
struct Entry {
    timer: Timer,
    /// The entry armed before it in the slot, or the next free entry.
    next: u32,
}

#[derive(Debug)]
pub(crate) struct Wheel {
    /// The last armed entry of each slot. Slots are linked lists, so that memory depends on the
    /// number of timers, not on their distribution.
    slots: Vec<u32>,
    entries: Vec<Entry>,
    free: u32,
    /// One bit per slot: set if it has entries.
    occupied: [[u64; SLOT_COUNT / 64]; LEVEL_COUNT],
    /// Everything before this tick has fired.
    current: u64,
    count: usize,
    scratch: Vec<Timer>,
}

/// Returns the first tick that begins after `deadline`.
const fn tick_of(deadline: Instant) -> u64 {
    (deadline.as_nanos() >> TICK_SHIFT) + 1
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Self {
            slots: vec![NONE; LEVEL_COUNT * SLOT_COUNT],
            entries: Vec::with_capacity(PREALLOCATED),
            free: NONE,
            occupied: [[0; SLOT_COUNT / 64]; LEVEL_COUNT],
            current: 0,
            count: 0,
            scratch: Vec::new(),
        }
    }

    /// Returns the number of armed timers, stale ones included.
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// Returns the tick at which a timer for `deadline` is armed.
    #[inline]
    pub(crate) fn tick_for(&self, deadline: Instant) -> u64 {
        tick_of(deadline).min(self.current + HORIZON_MAX)
    }

    /// Arms a timer; one in the past fires at the next [`Wheel::advance`].
    pub(crate) fn arm(&mut self, timer: Timer) {
        self.count += 1;
        let at = timer.tick.max(self.current);
        let distance = at - self.current;
        let (level, at) = if distance < 1 << SLOT_BITS {
            (0, at)
        } else if distance < 1 << (2 * SLOT_BITS) {
            (1, at)
        } else {
            // Beyond the last level: in its last slot, then armed again.
            (2, at.min(self.current + (1 << (3 * SLOT_BITS)) - 1))
        };
        let slot = slot_of(level, at);
        let head = &mut self.slots[level * SLOT_COUNT + slot];
        let entry = Entry { timer, next: *head };
        if self.free == NONE {
            *head = u32::try_from(self.entries.len()).expect("four timers for each connection");
            self.entries.push(entry);
        } else {
            *head = self.free;
            let place = &mut self.entries[self.free as usize];
            self.free = place.next;
            *place = entry;
        }
        self.occupied[level][slot / 64] |= 1 << (slot % 64);
    }

    /// True if [`Wheel::advance`] has anything to do.
    #[inline]
    pub(crate) const fn is_due(&self, now: Instant) -> bool {
        self.current <= now.as_nanos() >> TICK_SHIFT
    }

    /// Advances to `now` and appends every timer that is due to `fired`.
    pub(crate) fn advance(&mut self, now: Instant, fired: &mut Vec<Timer>) {
        let target = now.as_nanos() >> TICK_SHIFT;
        while self.current <= target {
            if self.count == 0 {
                self.current = target + 1;
                return;
            }
            if self.current & SLOT_MASK == 0 {
                self.cascade();
            }
            let slot = slot_of(0, self.current);
            if self.occupied[0][slot / 64] & (1 << (slot % 64)) != 0 {
                self.drain_slot(0, slot);
                fired.append(&mut self.scratch);
            } else if self.occupied[0] == [0; SLOT_COUNT / 64] {
                // Nothing before the next revolution of this level.
                let next = (self.current | SLOT_MASK) + 1;
                self.current = next.min(target + 1);
                continue;
            }
            self.current += 1;
        }
    }

    /// Returns the time at which [`Wheel::advance`] is to be called next, at the latest: a lower
    /// bound of the earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.count == 0 {
            return None;
        }
        let turn_ends = (self.current | SLOT_MASK) + 1;
        let tick = (self.current..turn_ends)
            .find(|&tick| {
                let slot = slot_of(0, tick);
                self.occupied[0][slot / 64] & (1 << (slot % 64)) != 0
            })
            .unwrap_or(turn_ends);
        Some(Instant::from_nanos(tick << TICK_SHIFT))
    }

    /// Cascades the slots of the outer levels that are reached into the inner levels.
    fn cascade(&mut self) {
        for level in (1..LEVEL_COUNT).rev() {
            let below = SLOT_BITS * u32::try_from(level).expect("three levels");
            if self.current & ((1 << below) - 1) != 0 {
                continue;
            }
            let slot = slot_of(level, self.current);
            self.drain_slot(level, slot);
            let mut moving = std::mem::take(&mut self.scratch);
            for timer in moving.drain(..) {
                self.arm(timer);
            }
            self.scratch = moving;
        }
    }

    /// Moves the entries of a slot to `scratch`.
    fn drain_slot(&mut self, level: usize, slot: usize) {
        self.occupied[level][slot / 64] &= !(1 << (slot % 64));
        let mut at = std::mem::replace(&mut self.slots[level * SLOT_COUNT + slot], NONE);
        while let Some(entry) = self.entries.get_mut(at as usize) {
            self.scratch.push(entry.timer);
            let next = std::mem::replace(&mut entry.next, self.free);
            self.free = at;
            at = next;
        }
        // In the order in which they were armed.
        self.scratch.reverse();
        self.count -= self.scratch.len();
    }
}

fn slot_of(level: usize, tick: u64) -> usize {
    let shift = SLOT_BITS * u32::try_from(level).expect("three levels");
    usize::try_from((tick >> shift) & SLOT_MASK).expect("masked to a slot")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn timer_fires_once_never_early_nor_ticks_late(
            deadlines in proptest::collection::vec(0u64..600_000_000_000, 1..60),
            steps in proptest::collection::vec(1u64..2_000_000_000, 1..40),
        ) {
            let mut wheel = Wheel::new();
            for (owner, &ns) in deadlines.iter().enumerate() {
                let tick = tick_of(Instant::from_nanos(ns));
                wheel.arm(Timer { owner: owner as u32, generation: 0, tick });
            }
            let mut now = 0;
            let mut left: Vec<_> = deadlines.iter().copied().map(Some).collect();
            let mut fired = Vec::new();
            for step in steps.into_iter().cycle().take(2000) {
                let before = now;
                now += step;
                wheel.advance(Instant::from_nanos(now), &mut fired);
                for timer in fired.drain(..) {
                    if timer.tick > now >> TICK_SHIFT {
                        // Re-armed from beyond the last level.
                        wheel.arm(timer);
                        continue;
                    }
                    let deadline = left[timer.owner as usize].take().expect("fires once");
                    prop_assert!(deadline <= now);
                    prop_assert!(deadline + (1 << TICK_SHIFT) * 2 >= before, "fired late");
                }
                for deadline in left.iter().flatten() {
                    prop_assert!(deadline + (2 << TICK_SHIFT) > now, "{deadline} missed at {now}");
                }
            }
        }
    }

    #[test]
    fn rearming_back_and_forth_leaves_bounded_entries() {
        let (mut wheel, mut armed, mut fired) = (Wheel::new(), ArmedTimers::default(), Vec::new());
        let far = Instant::from_nanos(60_000_000_000);
        let mut now = Instant::ZERO;
        let mut served = 0;
        while now < far {
            // A retransmission timer of a minute that moves, one of 5 ms, a delayed ACK of 50 us.
            for deadline in [far, now + 5_000_000, now + 50_000] {
                let tick = tick_of(deadline);
                if armed.try_arm(tick) {
                    wheel.arm(Timer { owner: 0, generation: 0, tick });
                }
            }
            assert!(wheel.count <= 8, "{} entries at {now:?}", wheel.count);
            let due = now + 50_000;
            now = now + 150_000;
            wheel.advance(now, &mut fired);
            let in_time = fired.drain(..).filter(|timer| armed.disarm(timer.tick)).count() > 0;
            assert!(in_time, "nothing fired for {due:?} by {now:?}");
            served += 1;
        }
        assert!(served > 100_000);
    }

    #[test]
    fn next_deadline_is_never_late() {
        let mut wheel = Wheel::new();
        assert_eq!(wheel.next_deadline(), None);
        let deadline = Instant::from_nanos(3_000_000_000);
        wheel.arm(Timer { owner: 1, generation: 0, tick: tick_of(deadline) });
        let mut fired = Vec::new();
        let mut hops = 0;
        while fired.is_empty() {
            let next = wheel.next_deadline().unwrap();
            assert!(next <= deadline + (1 << TICK_SHIFT));
            wheel.advance(next, &mut fired);
            hops += 1;
        }
        assert!(hops < 2000);
        assert_eq!(fired.len(), 1);
    }
}
