//! Slots with a use count, so that a handle to what is gone finds nothing.

/// Values for which a table has room from the start. Beyond it, a new one may wait for the table to
/// be copied.
pub(super) const RESERVED_MAX: usize = 65_536;

/// A table of at most `count_max` values, named by index and generation.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    count_max: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    /// Octets that each value takes.
    #[cfg(test)]
    pub(super) const SLOT_LEN: usize = size_of::<Slot<T>>();

    /// Address space is taken at once, so that the table is not copied while it grows; memory only
    /// as it is used.
    pub(super) fn new(count_max: usize) -> Self {
        let slots = Vec::with_capacity(count_max.min(RESERVED_MAX));
        Self { slots, free: Vec::new(), count_max }
    }

    /// Stores a value; `None` if the table is full.
    pub(super) fn insert(&mut self, value: T) -> Option<(u32, u32)> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.count_max => {
                self.slots.push(Slot { generation: 0, value: None });
                u32::try_from(self.slots.len() - 1).ok()?
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.value = Some(value);
        Some((index, slot.generation))
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.slots.get_mut(index as usize)?.value.take()?;
        self.free.push(index);
        Some(value)
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.value.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    /// The index, if the handle is of its present use.
    pub(super) fn current(&self, index: u32, generation: u32) -> Option<u32> {
        let slot = self.slots.get(index as usize)?;
        (slot.generation == generation && slot.value.is_some()).then_some(index)
    }

    pub(super) fn generation(&self, index: u32) -> u32 {
        self.slots.get(index as usize).map_or(0, |slot| slot.generation)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = u32> {
        (0u32..).zip(&self.slots).filter(|(_, slot)| slot.value.is_some()).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    #[test]
    fn a_handle_dies_with_its_value() {
        let mut slab = Slab::new(2);
        let (first, generation) = slab.insert('a').unwrap();
        assert_eq!(slab.current(first, generation), Some(first));
        slab.insert('b').unwrap();
        assert_eq!(slab.insert('c'), None);
        assert_eq!(slab.remove(first), Some('a'));
        assert_eq!(slab.current(first, generation), None);
        let (again, newer) = slab.insert('d').unwrap();
        assert_eq!(again, first);
        assert_ne!(newer, generation);
        assert_eq!(slab.current(first, generation), None);
        assert_eq!((slab.len(), slab.indices().count()), (2, 2));
    }
}
