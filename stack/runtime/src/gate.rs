//! A try-lock: nobody sleeps, drivers pass by when somebody is inside, and callers who must get in
//! go before them.
//!
//! It is the lock of a shard, and by [`Gate::quiesce`] its clock of quiescence as well.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicU32, Cell, Ordering, relax};

/// A value for one thread at a time.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    /// 1 while somebody is inside.
    taken: CachePadded<AtomicU32>,
    /// Callers of [`Gate::enter`] that wait; [`Gate::try_enter`] lets them go first.
    waiting: AtomicU32,
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
            value: Cell::new(value),
        }
    }

    /// Enters if nobody is inside and nobody waits. One uncontended atomic exchange.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<Inside<'_, T>> {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.attempt()
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

    /// Returns once whoever is inside has left. Whoever enters later sees all that the caller
    /// wrote before: going in and out once does both.
    pub(crate) fn quiesce(&self) {
        drop(self.enter());
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

    /// Deregistration: a pass that saw the valid STag has left before the memory is freed.
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
            gate.quiesce();
            // SAFETY: as above: this stands for freeing the memory.
            memory.with_mut(|octet| unsafe { *octet = 0 });
            pass.join().unwrap();
            // SAFETY: the other thread has ended.
            assert_eq!(memory.with_mut(|octet| unsafe { *octet }), 0);
        });
    }
}
