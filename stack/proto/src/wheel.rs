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
/// Timers that one call moves to inner levels, at most: of many connections those of a whole second
/// may lie in one slot. Moving costs a fraction of what a timer that fires does.
const CASCADED_MAX: usize = 4096;
/// Revolutions of the first level that one call visits, at most: those with timers, and one a
/// second. A clock that jumps ahead by more than an hour is followed over several calls.
const TURNS_MAX: usize = 4096;
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
    /// The entry armed after it in the slot; of the last one the first. Or the next free entry.
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
    /// The last [`Wheel::advance`] ended before its time.
    lags: bool,
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
            lags: false,
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
        let index = if self.free == NONE {
            let index = u32::try_from(self.entries.len()).expect("four timers for each connection");
            self.entries.push(Entry { timer, next: index });
            index
        } else {
            let index = self.free;
            let entry = &mut self.entries[index as usize];
            self.free = entry.next;
            *entry = Entry { timer, next: index };
            index
        };
        let last = std::mem::replace(&mut self.slots[level * SLOT_COUNT + slot], index);
        if let Some(last) = self.entries.get_mut(last as usize) {
            let first = std::mem::replace(&mut last.next, index);
            self.entries[index as usize].next = first;
        }
        self.occupied[level][slot / 64] |= 1 << (slot % 64);
    }

    /// True if [`Wheel::advance`] has anything to do.
    #[inline]
    pub(crate) const fn is_due(&self, now: Instant) -> bool {
        self.current <= now.as_nanos() >> TICK_SHIFT
    }

    /// Advances to `now`, or until `count_max` timers are due, and appends these to `fired`. With
    /// that or another bound reached, the next call goes on: timers are late then, not lost.
    pub(crate) fn advance(&mut self, now: Instant, count_max: usize, fired: &mut Vec<Timer>) {
        let target = now.as_nanos() >> TICK_SHIFT;
        let (mut left, mut cascades_left, mut turns_left) = (count_max, CASCADED_MAX, TURNS_MAX);
        while self.current <= target {
            if self.count == 0 {
                self.current = target + 1;
                break;
            }
            if self.current & SLOT_MASK == 0 {
                if turns_left == 0 || !self.cascade(&mut cascades_left) {
                    break;
                }
                turns_left -= 1;
            }
            let slot = slot_of(0, self.current);
            if self.is_occupied(0, slot) {
                while left > 0
                    && let Some(timer) = self.pop(0, slot)
                {
                    fired.push(timer);
                    left -= 1;
                }
                if self.is_occupied(0, slot) {
                    break;
                }
            }
            self.current = self.next_visit().min(target + 1);
        }
        self.lags = self.current <= target;
    }

    /// Returns the time at which [`Wheel::advance`] is to be called next, at the latest: a lower
    /// bound of the earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.count == 0 {
            return None;
        }
        // At the start of a revolution its timers are still in the outer levels.
        let is_now = self.lags
            || self.current & SLOT_MASK == 0
            || self.is_occupied(0, slot_of(0, self.current));
        let tick = if is_now { self.current } else { self.next_visit() };
        Some(Instant::from_nanos(tick << TICK_SHIFT))
    }

    /// Returns the next tick with timers, or at which some cascade; one a second in any case.
    fn next_visit(&self) -> u64 {
        let next = self.next_occupied(0, self.current + 1);
        if next & SLOT_MASK == 0 && self.occupied[0] == [0; SLOT_COUNT / 64] {
            return self.next_occupied(1, next >> SLOT_BITS) << SLOT_BITS;
        }
        next
    }

    /// Returns the first unit of a level, from `from` on, that has entries, or the end of the
    /// revolution that the unit before belongs to. A unit is the time of a slot.
    fn next_occupied(&self, level: usize, from: u64) -> u64 {
        let mut unit = from;
        while unit & SLOT_MASK != 0 {
            let slot = slot_of(0, unit);
            let rest = self.occupied[level][slot / 64] >> (slot % 64);
            if rest != 0 {
                return unit + u64::from(rest.trailing_zeros());
            }
            unit = (unit | 63) + 1;
        }
        unit
    }

    /// Cascades the slots of the outer levels that are reached into the inner levels. False if
    /// `left`, the timers that may be moved, ran out: some are left.
    fn cascade(&mut self, left: &mut usize) -> bool {
        for level in (1..LEVEL_COUNT).rev() {
            let below = SLOT_BITS * u32::try_from(level).expect("three levels");
            if self.current & ((1 << below) - 1) != 0 {
                continue;
            }
            let slot = slot_of(level, self.current);
            while self.is_occupied(level, slot) {
                if *left == 0 {
                    return false;
                }
                *left -= 1;
                if let Some(timer) = self.pop(level, slot) {
                    self.arm(timer);
                }
            }
        }
        true
    }

    const fn is_occupied(&self, level: usize, slot: usize) -> bool {
        self.occupied[level][slot / 64] & (1 << (slot % 64)) != 0
    }

    /// Removes the first timer of a slot, in the order in which they were armed.
    fn pop(&mut self, level: usize, slot: usize) -> Option<Timer> {
        let last = self.slots[level * SLOT_COUNT + slot];
        let first = self.entries.get(last as usize)?.next;
        let entry = &mut self.entries[first as usize];
        let (timer, second) = (entry.timer, entry.next);
        entry.next = std::mem::replace(&mut self.free, first);
        if first == last {
            self.slots[level * SLOT_COUNT + slot] = NONE;
            self.occupied[level][slot / 64] &= !(1 << (slot % 64));
        } else {
            self.entries[last as usize].next = second;
        }
        self.count -= 1;
        Some(timer)
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
                wheel.advance(Instant::from_nanos(now), usize::MAX, &mut fired);
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
            wheel.advance(now, usize::MAX, &mut fired);
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
            wheel.advance(next, usize::MAX, &mut fired);
            hops += 1;
        }
        // A sleeper wakes up once a second, and for each level.
        assert!(hops < 10, "{hops}");
        assert_eq!(fired.len(), 1);
    }

    #[test]
    fn next_deadline_is_not_late_at_the_start_of_a_revolution() {
        let mut wheel = Wheel::new();
        let (tick, before) = (260, Instant::from_nanos(255 << TICK_SHIFT));
        wheel.arm(Timer { owner: 0, generation: 0, tick });
        wheel.advance(before, usize::MAX, &mut Vec::new());
        let next = wheel.next_deadline().unwrap();
        assert!(before < next && next <= Instant::from_nanos(tick << TICK_SHIFT), "{next:?}");
    }

    /// Advances until the wheel is not behind. Returns what fired in each call.
    fn catch_up(wheel: &mut Wheel, now: Instant, count_max: usize) -> Vec<Vec<Timer>> {
        let mut calls = Vec::new();
        loop {
            let mut fired = Vec::new();
            wheel.advance(now, count_max, &mut fired);
            assert!(fired.len() <= count_max);
            calls.push(fired);
            if !wheel.is_due(now) {
                return calls;
            }
            assert!(wheel.next_deadline().is_some_and(|next| next <= now), "asleep while behind");
        }
    }

    #[test]
    fn call_fires_a_bounded_number_of_timers_in_their_order() {
        for deadline in [1_000_000, 500_000_000, 100_000_000_000] {
            let (mut wheel, now) = (Wheel::new(), Instant::from_nanos(deadline + 1_000_000));
            for owner in 0..10_000 {
                let tick = tick_of(Instant::from_nanos(deadline));
                wheel.arm(Timer { owner, generation: 0, tick });
            }
            let calls = catch_up(&mut wheel, now, 256);
            let owners = calls.iter().flatten().map(|timer| timer.owner);
            assert!(owners.eq(0..10_000), "in the order armed");
            assert!((40..60).contains(&calls.len()), "{}", calls.len());
            assert!(wheel.len() == 0 && wheel.next_deadline().is_none());
        }
    }

    #[test]
    fn jump_of_the_clock_is_followed_in_bounded_steps() {
        let mut wheel = Wheel::new();
        let day = Instant::from_nanos(86_400_000_000_000);
        for owner in 0..10 {
            let tick = wheel.tick_for(Instant::from_nanos(u64::from(owner) * 1_000_000_000_000));
            wheel.arm(Timer { owner, generation: 0, tick });
        }
        let calls = catch_up(&mut wheel, day, 256);
        assert!((2..20).contains(&calls.len()), "{}", calls.len());
        let owners = calls.iter().flatten().map(|timer| timer.owner);
        assert!(owners.eq(0..10));
    }

    proptest! {
        /// A wheel with a small bound fires the same timers as one without.
        #[test]
        fn bound_delays_and_loses_nothing(
            deadlines in proptest::collection::vec(0u64..400_000_000_000, 1..80),
            steps in proptest::collection::vec(1u64..3_000_000_000, 1..40),
            count_max in 1usize..5,
        ) {
            let (mut free, mut bounded) = (Wheel::new(), Wheel::new());
            let (mut now, mut expected, mut found) = (0, Vec::new(), Vec::new());
            let mut deadlines = deadlines.into_iter().enumerate();
            for step in steps.into_iter().cycle().take(600) {
                if let Some((owner, ns)) = deadlines.next() {
                    let tick = tick_of(Instant::from_nanos(now + ns));
                    free.arm(Timer { owner: owner as u32, generation: 0, tick });
                    bounded.arm(Timer { owner: owner as u32, generation: 0, tick });
                }
                now += step;
                free.advance(Instant::from_nanos(now), usize::MAX, &mut expected);
                bounded.advance(Instant::from_nanos(now), count_max, &mut found);
            }
            let end = Instant::from_nanos(now);
            expected.extend(catch_up(&mut free, end, usize::MAX).into_iter().flatten());
            found.extend(catch_up(&mut bounded, end, count_max).into_iter().flatten());
            prop_assert_eq!(free.len(), bounded.len());
            let sort = |timers: &mut Vec<Timer>| timers.sort_by_key(|timer| timer.owner);
            sort(&mut expected);
            sort(&mut found);
            prop_assert_eq!(expected, found);
        }
    }
}
