//! Queue pairs with requests to flush, by the completion queue whose free slots they wait for.
//!
//! An application may leave a completion queue full for as long as it likes, with any number of
//! queue pairs behind it. A pass looks at few full queues, in turn, and at no queue pair behind
//! them. So its cost does not depend on how many wait, and those of other queues do not wait with
//! them.

use std::collections::VecDeque;

use crate::verbs::wc::CqId;

/// End of a list.
const NONE: u32 = u32::MAX;

/// List of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListId {
    /// Queue pairs not visited yet: the completion queue that they wait for is unknown.
    New,
    Cq(CqId),
}

/// Place of a queue pair in its list.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Its list; `None`: it has nothing to flush.
    list: Option<ListId>,
    before: u32,
    after: u32,
}

/// Ends of a list, by slot.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends { first: NONE, last: NONE };

/// List of a completion queue.
#[derive(Clone, Copy, Debug)]
struct CqList {
    ends: Ends,
    /// It is in one of the two lines.
    in_line: bool,
}

/// See the [module's documentation](self). Queue pairs are known by their slots.
#[derive(Debug)]
pub(super) struct FlushLists {
    /// Number of queue pairs in all lists.
    len: usize,
    new: Ends,
    /// By index of the completion queue.
    cqs: Vec<CqList>,
    /// Completion queues that may have free slots, in turn, each once.
    ready: VecDeque<CqId>,
    /// Full ones, in the order in which they are looked at, each once.
    full: VecDeque<CqId>,
    /// By slot of the queue pair.
    places: Vec<Place>,
}

impl FlushLists {
    pub(super) const fn new() -> Self {
        Self {
            len: 0,
            new: EMPTY,
            cqs: Vec::new(),
            ready: VecDeque::new(),
            full: VecDeque::new(),
            places: Vec::new(),
        }
    }

    /// True if no queue pair has anything to flush. One load.
    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if a pass has left work that waits for no free slot.
    pub(super) fn is_due(&self) -> bool {
        self.new.first != NONE || !self.ready.is_empty()
    }

    /// Adds a queue pair, unless it is in a list.
    pub(super) fn add(&mut self, slot: u32) {
        let at = slot as usize;
        if at >= self.places.len() {
            let nowhere = Place { list: None, before: NONE, after: NONE };
            self.places.resize(at + 1, nowhere);
        }
        if self.places[at].list.is_none() {
            self.append(slot, ListId::New);
        }
    }

    /// Removes a queue pair from its list, if it is in one.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(place) = self.places.get_mut(slot as usize) else { return };
        let Some(list) = place.list.take() else { return };
        let Place { before, after, .. } = *place;
        self.len -= 1;
        match self.places.get_mut(before as usize) {
            Some(place) => place.after = after,
            None => self.ends(list).first = after,
        }
        match self.places.get_mut(after as usize) {
            Some(place) => place.before = before,
            None => self.ends(list).last = before,
        }
    }

    /// Has a queue pair wait for free slots of a completion queue: it keeps its place if it has
    /// waited for that one before.
    pub(super) fn wait_for(&mut self, slot: u32, cq: CqId) {
        if self.places[slot as usize].list == Some(ListId::Cq(cq)) {
            return;
        }
        self.remove(slot);
        if cq.index() >= self.cqs.len() {
            self.cqs.resize(cq.index() + 1, CqList { ends: EMPTY, in_line: false });
        }
        self.append(slot, ListId::Cq(cq));
        if !std::mem::replace(&mut self.cqs[cq.index()].in_line, true) {
            self.full.push_back(cq);
        }
    }

    /// Moves a queue pair to the end of its list.
    pub(super) fn move_last(&mut self, slot: u32) {
        if let Some(list) = self.places[slot as usize].list {
            self.remove(slot);
            self.append(slot, list);
        }
    }

    /// Returns the first queue pair that was not looked at yet.
    pub(super) fn first_new(&self) -> Option<u32> {
        (self.new.first != NONE).then_some(self.new.first)
    }

    /// Returns the first queue pair of a completion queue.
    pub(super) fn first_of(&self, cq: CqId) -> Option<u32> {
        let first = self.cqs[cq.index()].ends.first;
        (first != NONE).then_some(first)
    }

    /// Looks at the next `count` full completion queues; those that `is_full` does not hold for any
    /// more get their turn.
    pub(super) fn look_at_full(&mut self, count: usize, is_full: impl Fn(CqId) -> bool) {
        for _ in 0..count.min(self.full.len()) {
            let Some(&cq) = self.full.front() else { break };
            let is_awaited = self.cqs[cq.index()].ends.first != NONE;
            if is_awaited && is_full(cq) {
                if self.full.len() > 1 {
                    self.full.rotate_left(1);
                }
                continue;
            }
            self.full.pop_front();
            if is_awaited {
                self.ready.push_back(cq);
            } else {
                self.cqs[cq.index()].in_line = false;
            }
        }
    }

    /// Takes the next completion queue that may have free slots;
    /// [`FlushLists::end_turn`] follows.
    pub(super) fn next_turn(&mut self) -> Option<CqId> {
        self.ready.pop_front()
    }

    /// Ends the turn of a completion queue. `is_full`: it has no free slots left.
    pub(super) fn end_turn(&mut self, cq: CqId, is_full: bool) {
        let list = &mut self.cqs[cq.index()];
        if list.ends.first == NONE {
            list.in_line = false;
        } else if is_full {
            self.full.push_back(cq);
        } else {
            self.ready.push_back(cq);
        }
    }

    /// Forgets a completion queue that is destroyed, which no queue pair uses: the next one may
    /// have its place. Cost: the lines, if it is in one.
    pub(super) fn forget_cq(&mut self, cq: CqId) {
        let Some(list) = self.cqs.get_mut(cq.index()) else { return };
        debug_assert!(list.ends.first == NONE, "no queue pair uses it");
        if std::mem::take(&mut list.in_line) {
            self.full.retain(|&full| full != cq);
            self.ready.retain(|&ready| ready != cq);
        }
    }

    fn append(&mut self, slot: u32, list: ListId) {
        let before = std::mem::replace(&mut self.ends(list).last, slot);
        match self.places.get_mut(before as usize) {
            Some(place) => place.after = slot,
            None => self.ends(list).first = slot,
        }
        self.places[slot as usize] = Place { list: Some(list), before, after: NONE };
        self.len += 1;
    }

    fn ends(&mut self, list: ListId) -> &mut Ends {
        match list {
            ListId::New => &mut self.new,
            ListId::Cq(cq) => &mut self.cqs[cq.index()].ends,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(lists: &FlushLists, first: Option<u32>) -> Vec<u32> {
        let mut slots = Vec::new();
        let mut at = first.unwrap_or(NONE);
        while let Some(place) = lists.places.get(at as usize) {
            slots.push(at);
            at = place.after;
        }
        slots
    }

    #[test]
    fn queue_pair_is_in_one_list_and_leaves_it_from_anywhere() {
        let (mut lists, cq) = (FlushLists::new(), CqId(3));
        for slot in [2, 0, 5, 2, 1] {
            lists.add(slot);
        }
        assert_eq!(slots(&lists, lists.first_new()), [2, 0, 5, 1]);
        for slot in [0, 1, 2, 5] {
            lists.wait_for(slot, cq);
            lists.add(slot);
        }
        assert_eq!((lists.first_new(), slots(&lists, lists.first_of(cq)).len()), (None, 4));
        lists.remove(1);
        lists.remove(1);
        assert_eq!(slots(&lists, lists.first_of(cq)), [0, 2, 5]);
        lists.remove(5);
        lists.remove(0);
        assert_eq!((slots(&lists, lists.first_of(cq)), lists.is_empty()), (vec![2], false));
        lists.remove(2);
        assert!(lists.is_empty() && lists.first_of(cq).is_none());
        lists.add(0);
        assert_eq!(slots(&lists, lists.first_new()), [0]);
    }

    #[test]
    fn full_queues_are_looked_at_in_turn() {
        let mut lists = FlushLists::new();
        for slot in 0..4 {
            lists.add(slot);
            lists.wait_for(slot, CqId(slot));
        }
        lists.remove(1);
        let looked_at = std::cell::RefCell::new(Vec::new());
        for _ in 0..3 {
            lists.look_at_full(2, |cq| {
                looked_at.borrow_mut().push(cq.0);
                cq.0 != 3
            });
        }
        assert_eq!(looked_at.into_inner(), [0, 2, 3, 0, 2], "1 has none behind it any more");
        assert!(lists.is_due());
        assert_eq!(lists.next_turn(), Some(CqId(3)));
        assert_eq!(lists.next_turn(), None);
        lists.end_turn(CqId(3), false);
        assert_eq!(lists.next_turn(), Some(CqId(3)));
        lists.remove(3);
        lists.end_turn(CqId(3), true);
        lists.add(3);
        lists.wait_for(3, CqId(3));
        assert!(!lists.is_due(), "full until it is looked at");
        lists.look_at_full(4, |_| false);
        assert_eq!(lists.ready, [0, 2, 3].map(CqId));
        lists.remove(2);
        lists.forget_cq(CqId(2));
        lists.forget_cq(CqId(9));
        assert_eq!(lists.ready, [0, 3].map(CqId));
    }
}
