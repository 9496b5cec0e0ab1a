//! A hierarchical timer wheel: one entry per connection, re-armed lazily, O(1) per operation.
//!
//! Three levels of 256 slots; a tick is 2^14 ns (16 us), so the levels span 4.2 ms, 1.07 s and
//! 275 s. Later deadlines wait in the last level and are armed again when it comes round.

use arrayvec::ArrayVec;

use crate::time::Instant;

const TICK_SHIFT: u32 = 14;
const SLOT_BITS: u32 = 8;
const SLOT_COUNT: usize = 1 << SLOT_BITS;
const LEVEL_COUNT: usize = 3;
/// How far ahead timers are armed at most, nearly five hours: whose time is later looks again.
const HORIZON_MAX: u64 = 1 << 30;
const SLOT_MASK: u64 = SLOT_COUNT as u64 - 1;
/// Timers for which there is room from the start, so that few connections never cause an
/// allocation.
const PREALLOCATED: usize = 1024;
/// No entry.
const NONE: u32 = u32::MAX;

/// An armed timer. What its owner's [`ArmedTimers`] does not know of is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timer {
    pub(super) owner: u32,
    pub(super) generation: u32,
    pub(super) tick: u64,
}

/// What one owner has in the wheel. A deadline that goes back and forth must not leave an entry
/// behind each time: with a far one of a minute and a near one of 50 us these would be a million.
#[derive(Clone, Debug, Default)]
pub(super) struct ArmedTimers {
    /// The low halves of ticks, the earliest last.
    ticks: ArrayVec<u32, 4>,
}

impl ArmedTimers {
    /// Something is to be done at `tick`. True if that takes an entry of its own, to be armed now;
    /// else an earlier one is there, and the owner looks again when it fires.
    #[inline]
    pub(super) fn try_arm(&mut self, tick: u64) -> bool {
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

    /// An entry fired; false if it is stale.
    pub(super) fn disarm(&mut self, tick: u64) -> bool {
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

/// A timer in a slot's list.
#[derive(Debug)]
struct Entry {
    timer: Timer,
    /// The one that was armed before it, or the next free entry.
    next: u32,
}

#[derive(Debug)]
pub(super) struct Wheel {
    /// The timer of each slot that was armed last. Lists, so that memory is taken by the timers
    /// there are, wherever they gather.
    slots: Vec<u32>,
    entries: Vec<Entry>,
    free: u32,
    /// A bit for each slot that holds something.
    occupied: [[u64; SLOT_COUNT / 64]; LEVEL_COUNT],
    /// Everything before this tick has fired.
    current: u64,
    count: usize,
    scratch: Vec<Timer>,
}

/// The tick that has passed once `deadline` is reached.
const fn tick_of(deadline: Instant) -> u64 {
    (deadline.as_nanos() >> TICK_SHIFT) + 1
}

impl Wheel {
    pub(super) fn new() -> Self {
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

    /// Timers that are armed, stale ones included.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// The tick at which a timer for `deadline` is armed.
    #[inline]
    pub(super) fn tick_for(&self, deadline: Instant) -> u64 {
        tick_of(deadline).min(self.current + HORIZON_MAX)
    }

    /// Arms a timer; one in the past fires at the next [`Wheel::advance`].
    pub(super) fn arm(&mut self, timer: Timer) {
        self.count += 1;
        let at = timer.tick.max(self.current);
        let distance = at - self.current;
        let (level, at) = if distance < 1 << SLOT_BITS {
            (0, at)
        } else if distance < 1 << (2 * SLOT_BITS) {
            (1, at)
        } else {
            // Beyond the horizon: as far out as the last level goes, then armed again.
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

    /// Moves on to `now` and appends every timer that is due to `fired`.
    pub(super) fn advance(&mut self, now: Instant, fired: &mut Vec<Timer>) {
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
                // Nothing before the next turn of this level.
                let next = (self.current | SLOT_MASK) + 1;
                self.current = next.min(target + 1);
                continue;
            }
            self.current += 1;
        }
    }

    /// When [`Wheel::advance`] next has something to do, at the latest: a lower bound of the
    /// earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
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

    /// Spreads the slots of the outer levels whose turn has come over the inner ones.
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

    /// Empties a slot into `scratch`.
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
                        // Came round from beyond the horizon.
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
