//! A try-lock: nobody sleeps, drivers pass by when somebody is inside, and callers who must get in
//! go before them, unless they lost their core.
//!
//! It is the lock of a shard.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicU32, Cell, Ordering, relax};

/// How often in a row a driver gives way. A driver that does nothing else comes by every few
/// nanoseconds, so this is the better part of a microsecond: several times what a waiter that runs
/// needs to see that the gate is free, and little beside the pass that follows.
#[cfg(not(loom))]
const GIVE_WAY_COUNT_MAX: u32 = 128;
/// Loom tries every order: the fewer the better.
#[cfg(loom)]
const GIVE_WAY_COUNT_MAX: u32 = 1;

/// A value for one thread at a time.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    /// 1 while somebody is inside.
    taken: CachePadded<AtomicU32>,
    /// Callers of [`Gate::enter`] that wait; [`Gate::try_enter`] lets them go first, for a while.
    waiting: AtomicU32,
    /// Times that [`Gate::try_enter`] has let them go first since it last did not.
    gave_way: AtomicU32,
    value: Cell<T>,
}

// SAFETY: `taken` admits one thread at a time to the value, with acquire on the way in and
// release on the way out, so sharing the gate only ever moves the value between threads.
unsafe impl<T: Send> Sync for Gate<T> {}

/// Being inside. Leaves when dropped.
pub(crate) struct Inside<'a, T> {
    gate: &'a Gate<T>,
    /// Shared between threads it lends `&T` to all of them: only if `T` allows that.
    _value: PhantomData<&'a mut T>,
}

impl<T> Gate<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            taken: CachePadded::new(AtomicU32::new(0)),
            waiting: AtomicU32::new(0),
            gave_way: AtomicU32::new(0),
            value: Cell::new(value),
        }
    }

    /// Enters if nobody is inside, unless somebody waits: those go first, but whoever waits may be
    /// off its core, so at most [`GIVE_WAY_COUNT_MAX`] times in a row. One uncontended atomic
    /// exchange.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<Inside<'_, T>> {
        if self.waiting.load(Ordering::Relaxed) != 0 && self.gives_way() {
            return None;
        }
        self.attempt()
    }

    /// True as long as those that wait are to go first. After each time that they did not, they
    /// are given the same time again.
    #[cold]
    fn gives_way(&self) -> bool {
        let gives = self.gave_way.fetch_add(1, Ordering::Relaxed) < GIVE_WAY_COUNT_MAX;
        if !gives {
            self.gave_way.store(0, Ordering::Relaxed);
        }
        gives
    }

    /// Enters as soon as whoever is inside leaves. Costs as much as `try_enter` when nobody is.
    #[inline]
    pub(crate) fn enter(&self) -> Inside<'_, T> {
        match self.attempt() {
            Some(inside) => inside,
            None => self.enter_slowly(),
        }
    }

    #[cold]
    fn enter_slowly(&self) -> Inside<'_, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut attempts = 0;
        let inside = loop {
            match self.attempt() {
                Some(inside) => break inside,
                None => relax(&mut attempts),
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        inside
    }

    #[inline]
    fn attempt(&self) -> Option<Inside<'_, T>> {
        // The look first: a thread that finds somebody inside does not take the line away.
        let free = self.taken.load(Ordering::Relaxed) == 0
            && self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        free.then(|| Inside { gate: self, _value: PhantomData })
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this thread is the one inside until `self` is dropped, and `self` is borrowed
        // for as long as the reference lives.
        self.gate.value.with_mut(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Inside<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `self` is borrowed mutably, so the reference is the only one.
        self.gate.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.gate.taken.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_reusable() {
        let gate = Gate::new(5);
        let mut first = gate.try_enter().unwrap();
        assert!(gate.try_enter().is_none());
        *first += 1;
        drop(first);
        assert_eq!(*gate.enter(), 6);
    }

    #[test]
    fn waiter_that_lost_its_core_does_not_stop_drivers() {
        let gate = Gate::new(0);
        // What another thread has done when it is taken off its core inside `enter`.
        gate.waiting.fetch_add(1, Ordering::Relaxed);
        for pass in 0..3 {
            let refused = (0..10_000).take_while(|_| gate.try_enter().is_none()).count();
            assert_eq!(refused, GIVE_WAY_COUNT_MAX as usize, "before pass {pass}");
        }
        // Back on its core it is the next to enter, whoever else drives.
        let driver = gate.try_enter();
        assert!(driver.is_none());
        assert!(gate.attempt().is_some());
    }

    #[test]
    fn threads_never_lose_an_update() {
        let gate = Gate::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *gate.enter() += 1));
            }
        });
        assert_eq!(*gate.enter(), 40_000);
    }
}

#[cfg(all(test, loom))]
mod proofs {
    use loom::thread;

    use super::*;
    use crate::sync::Arc;

    #[test]
    fn whoever_enters_excludes_the_others() {
        loom::model(|| {
            let gate = Arc::new(Gate::new(0));
            let other = Arc::clone(&gate);
            let thread = thread::spawn(move || *other.enter() += 1);
            if let Some(mut inside) = gate.try_enter() {
                *inside += 1;
            } else {
                *gate.enter() += 1;
            }
            thread.join().unwrap();
            assert_eq!(*gate.enter(), 2);
        });
    }

    /// A caller that waits and a driver that gives way, and after a while does not: both get in,
    /// one at a time, and nobody is left counted as waiting.
    #[test]
    fn drivers_that_stop_giving_way_lose_nobody() {
        loom::model(|| {
            let gate = Arc::new(Gate::new(0));
            let waiter = {
                let gate = Arc::clone(&gate);
                thread::spawn(move || *gate.enter() += 1)
            };
            let mut passes = 0;
            for _ in 0..=GIVE_WAY_COUNT_MAX + 1 {
                if let Some(mut inside) = gate.try_enter() {
                    *inside += 1;
                    passes += 1;
                }
            }
            waiter.join().unwrap();
            assert_eq!(*gate.enter(), 1 + passes);
            assert_eq!(gate.waiting.load(Ordering::Relaxed), 0);
            assert!(gate.try_enter().is_some());
        });
    }

    /// Going in and out once outlasts whoever is inside, and whoever enters later sees what was
    /// written before.
    #[test]
    fn quiescence_outlasts_every_pass_that_saw_the_region() {
        loom::model(|| {
            let gate = Arc::new(Gate::new(()));
            let stag = Arc::new(AtomicU32::new(7));
            let memory = Arc::new(Cell::new(1_u32));
            let pass = {
                let (gate, stag, memory) =
                    (Arc::clone(&gate), Arc::clone(&stag), Arc::clone(&memory));
                thread::spawn(move || {
                    if let Some(_inside) = gate.try_enter()
                        && stag.load(Ordering::Acquire) == 7
                    {
                        // SAFETY: loom checks that nobody else touches the cell meanwhile.
                        memory.with_mut(|octet| unsafe { *octet += 1 });
                    }
                })
            };
            stag.store(0, Ordering::Relaxed);
            drop(gate.enter());
            // SAFETY: as above: this stands for freeing the memory.
            memory.with_mut(|octet| unsafe { *octet = 0 });
            pass.join().unwrap();
            // SAFETY: the other thread has ended.
            assert_eq!(memory.with_mut(|octet| unsafe { *octet }), 0);
        });
    }
}
