//! Numbers of a context's objects: unique over its shards, and known before an object belongs to
//! one.

use std::sync::{Mutex, PoisonError};

/// Numbers in use, each with a generation: a stale handle does not match the next object.
#[derive(Debug)]
pub(crate) struct Numbers {
    state: Mutex<State>,
    count_max: usize,
}

#[derive(Debug, Default)]
struct State {
    generations: Vec<u32>,
    free: Vec<u32>,
}

impl Numbers {
    /// At most `count_max` numbers are in use at a time.
    pub(crate) fn new(count_max: usize) -> Self {
        Self { state: Mutex::default(), count_max }
    }

    /// Maximum count in use at a time; all indices are below it.
    pub(crate) const fn count_max(&self) -> usize {
        self.count_max
    }

    /// Returns an index that is not in use, and its generation; `None` if there are none.
    pub(crate) fn allocate(&self) -> Option<(u32, u32)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match state.free.pop() {
            Some(index) => index,
            None if state.generations.len() < self.count_max => {
                state.generations.push(0);
                u32::try_from(state.generations.len() - 1).ok()?
            }
            None => return None,
        };
        let generation = &mut state.generations[index as usize];
        *generation = generation.wrapping_add(1);
        Some((index, *generation))
    }

    /// Returns an index to those not in use.
    pub(crate) fn release(&self, index: u32) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_reused_with_another_generation() {
        let numbers = Numbers::new(2);
        let (first, generation) = numbers.allocate().unwrap();
        assert_eq!(numbers.allocate().map(|(index, _)| index), Some(1 - first));
        assert_eq!(numbers.allocate(), None);
        numbers.release(first);
        let (again, newer) = numbers.allocate().unwrap();
        assert_eq!(again, first);
        assert_ne!(newer, generation);
    }
}
