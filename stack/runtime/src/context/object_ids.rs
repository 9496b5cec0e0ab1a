//! IDs of a context's objects: unique over its shards, and known before an object belongs to
//! one.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// IDs in use, each with a generation: a stale handle does not match the next object.
#[derive(Debug)]
pub(crate) struct ObjectIds {
    state: Mutex<State>,
    count_max: usize,
    /// Free indices that are kept, those released last, while there are others.
    kept: usize,
}

#[derive(Debug, Default)]
struct State {
    generations: Vec<u32>,
    /// Released last at the back.
    free: VecDeque<u32>,
}

impl ObjectIds {
    /// At most `count_max` IDs are in use at a time.
    pub(crate) fn new(count_max: usize) -> Self {
        Self { state: Mutex::default(), count_max, kept: 0 }
    }

    /// As [`ObjectIds::new`]; of the free indices the `kept` that were released last are not used
    /// while there are others, so that those are used by turns, and a generation of few bits lasts.
    pub(crate) fn by_turns(count_max: usize, kept: usize) -> Self {
        Self { kept, ..Self::new(count_max) }
    }

    /// Maximum count in use at a time; all indices are below it.
    pub(crate) const fn count_max(&self) -> usize {
        self.count_max
    }

    /// Returns an index that is not in use, and its generation; `None` if there are none.
    pub(crate) fn allocate(&self) -> Option<(u32, u32)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let has_unused = state.generations.len() < self.count_max;
        let index = if has_unused && state.free.len() <= self.kept {
            // With none kept: the free list is empty.
            state.generations.push(0);
            u32::try_from(state.generations.len() - 1).ok()?
        } else if self.kept > 0 {
            state.free.pop_front()?
        } else {
            // The one that is in the cache.
            state.free.pop_back()?
        };
        let generation = &mut state.generations[index as usize];
        *generation = generation.wrapping_add(1);
        Some((index, *generation))
    }

    /// Returns the next generation of an index that is in use, for another object in its place.
    pub(crate) fn renew(&self, index: u32) -> u32 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = &mut state.generations[index as usize];
        *generation = generation.wrapping_add(1);
        *generation
    }

    /// Returns an index to those not in use.
    pub(crate) fn release(&self, index: u32) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).free.push_back(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_by_turns_are_used_again_after_as_many_others() {
        let ids = ObjectIds::by_turns(8, 3);
        let take = || {
            let (index, generation) = ids.allocate().unwrap();
            ids.release(index);
            (index, generation)
        };
        let taken: Vec<_> = (0..9).map(|_| take()).collect();
        let expected = [(0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (1, 2), (2, 2), (3, 2), (0, 3)];
        assert_eq!(taken, expected);
        // All of them, when they are needed.
        assert_eq!((0..9).filter_map(|_| ids.allocate()).count(), 8);
    }

    #[test]
    fn index_is_reused_with_another_generation() {
        let ids = ObjectIds::new(2);
        let (first, generation) = ids.allocate().unwrap();
        assert_eq!(ids.allocate().map(|(index, _)| index), Some(1 - first));
        assert_eq!(ids.allocate(), None);
        ids.release(first);
        let (again, newer) = ids.allocate().unwrap();
        assert_eq!(again, first);
        assert_ne!(newer, generation);
    }
}
