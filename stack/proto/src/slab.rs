//! Slab of slots with generations: a stale handle does not match.

/// Number of values that a table is allocated for at creation. Beyond it an insert may copy the
/// table.
pub(crate) const PREALLOCATED_MAX: usize = 65_536;

/// Table of at most `count_max` values, addressed by index and generation.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    /// Separate from the generations, which would break the cache line alignment of the values.
    values: Vec<Option<T>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    count_max: usize,
}

impl<T> Slab<T> {
    /// Bytes per slot.
    #[cfg(test)]
    pub(crate) const SLOT_LEN: usize = size_of::<Option<T>>() + size_of::<u32>();

    /// Creates an empty table. Address space is reserved at once, so that the table is not copied
    /// while it grows; memory is committed as it is used.
    pub(crate) fn new(count_max: usize) -> Self {
        let reserved = count_max.min(PREALLOCATED_MAX);
        let (values, generations) = (Vec::with_capacity(reserved), Vec::with_capacity(reserved));
        Self { values, generations, free: Vec::new(), count_max }
    }

    /// Stores the value that `make` returns for the slot's index and generation; `None` if the
    /// table is full.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32, u32) -> T) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.values.len() < self.count_max => {
                self.values.push(None);
                self.generations.push(0);
                u32::try_from(self.values.len() - 1).ok()?
            }
            None => return None,
        };
        let generation = &mut self.generations[index as usize];
        *generation = generation.wrapping_add(1);
        self.values[index as usize] = Some(make(index, *generation));
        Some(index)
    }

    /// Stores a value; returns its index and generation, or `None` if the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Option<(u32, u32)> {
        let index = self.insert_with(|_, _| value)?;
        Some((index, self.generation(index)))
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.values.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(value)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.values.get(index as usize)?.as_ref()
    }

    /// Returns a slot, without reading whether it is in use.
    pub(crate) fn slot(&self, index: u32) -> Option<&Option<T>> {
        self.values.get(index as usize)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.values.get_mut(index as usize)?.as_mut()
    }

    /// Returns the index if the handle has the current generation and the slot is in use.
    pub(crate) fn live_index(&self, index: u32, generation: u32) -> Option<u32> {
        let is_current = self.generations.get(index as usize) == Some(&generation);
        (is_current && self.get(index).is_some()).then_some(index)
    }

    pub(crate) fn generation(&self, index: u32) -> u32 {
        self.generations.get(index as usize).copied().unwrap_or(0)
    }

    /// Returns the number of slots ever used: all indices are below it.
    pub(crate) fn slot_count(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    pub(crate) fn indices(&self) -> impl Iterator<Item = u32> {
        (0u32..).zip(&self.values).filter(|(_, value)| value.is_some()).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    #[test]
    fn stale_handle_finds_no_value() {
        let mut slab = Slab::new(2);
        let (first, generation) = slab.insert('a').unwrap();
        assert_eq!(slab.live_index(first, generation), Some(first));
        slab.insert('b').unwrap();
        assert_eq!(slab.insert('c'), None);
        assert_eq!(slab.remove(first), Some('a'));
        assert_eq!(slab.live_index(first, generation), None);
        let (again, newer) = slab.insert('d').unwrap();
        assert_eq!(again, first);
        assert_ne!(newer, generation);
        assert_eq!(slab.live_index(first, generation), None);
        assert_eq!((slab.len(), slab.indices().count()), (2, 2));
    }
}
