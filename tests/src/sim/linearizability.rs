//! Linearizability checker for words shared by several processes: is there an order of all
//! operations on a word that explains the values fetched?
//!
//! A process is one user of the word. Its operations take effect in the order of their invocation,
//! each once. An operation that completed fetched the value at that point. An operation of a
//! connection that ended before its completion may have taken effect or not, but not after one that
//! did not, nor after the end. The last value is the final value of the word.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use ferrowarp_proto::ddp::atomic::{AtomicOp, apply};

/// Limit on search states, far above the need of any linearizable history.
const STATES_MAX: usize = 200_000;

/// An operation, and the value fetched if it completed.
#[derive(Clone, Copy, Debug)]
struct Op {
    /// `None`: a Read.
    op: Option<AtomicOp>,
    fetched: Option<u64>,
    /// Range of the observer's operation count in which it took effect.
    from: usize,
    until: usize,
}

impl Op {
    /// Returns the word after the operation on `word`; `None` if another value was fetched.
    fn apply_to(&self, word: u64) -> Option<u64> {
        let fits = self.fetched.is_none_or(|fetched| fetched == word);
        fits.then(|| self.op.map_or(word, |op| apply(op, word)))
    }
}

/// The operations of one process in order of invocation; the first `completed` have completed.
#[derive(Clone, Debug, Default)]
struct Process {
    ops: Vec<Op>,
    completed: usize,
    /// Operation count of the observer when the process ended.
    closed: Option<usize>,
}

/// History of one word, which starts as 0.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    processes: Vec<Process>,
    /// The first process is an observer: its operations take effect at once and define the time.
    is_observed: bool,
}

/// Search state: number of operations done by each process, and the word.
type State = (Vec<u16>, u64);

impl History {
    /// Adds a process; returns its number.
    pub(super) fn add_process(&mut self) -> usize {
        self.processes.push(Process::default());
        self.processes.len() - 1
    }

    /// Makes the first process, which is yet to be added, the observer.
    pub(super) const fn set_observer(&mut self) {
        self.is_observed = true;
    }

    fn clock(&self) -> usize {
        self.processes.first().filter(|_| self.is_observed).map_or(0, |process| process.completed)
    }

    /// Records the invocation of an operation, or of a Read (`None`).
    pub(super) fn invoke(&mut self, process: usize, op: Option<AtomicOp>) {
        let from = self.clock();
        let process = &mut self.processes[process];
        let until = process.closed.unwrap_or(usize::MAX);
        process.ops.push(Op { op, fetched: None, from, until });
    }

    /// Ends a process: none of its operations takes effect from now on.
    pub(super) fn close(&mut self, process: usize) {
        let clock = self.clock();
        let process = &mut self.processes[process];
        process.closed = process.closed.or(Some(clock));
        for entry in &mut process.ops[process.completed..] {
            entry.until = entry.until.min(clock);
        }
    }

    /// Records the completion of a process's oldest outstanding operation.
    ///
    /// # Panics
    /// If there is none outstanding.
    pub(super) fn respond(&mut self, process: usize, fetched: u64) {
        let clock = self.clock();
        let process = &mut self.processes[process];
        let entry = &mut process.ops[process.completed];
        entry.fetched = Some(fetched);
        entry.until = entry.until.min(clock);
        process.completed += 1;
    }

    /// Numbers of operations invoked, and of those completed.
    pub(super) fn len(&self) -> (usize, usize) {
        let asked = self.processes.iter().map(|process| process.ops.len()).sum();
        (asked, self.processes.iter().map(|process| process.completed).sum())
    }

    /// Checks that there is a linearization with the final value `last`.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn check(&self, last: u64) {
        if let Err(stuck) = self.find_linearization(last) {
            panic!("no order explains the word {last:#x}: {stuck}");
        }
    }

    /// Searches a linearization; on failure describes how far the best prefix came.
    ///
    /// Most executed operations completed, and the values fetched leave no choice. Where none of
    /// them fits, an operation that did not complete took effect: the search first tries the fewest
    /// such.
    fn find_linearization(&self, last: u64) -> Result<(), String> {
        let mut open = BinaryHeap::from([self.priority((vec![0; self.processes.len()], 0))]);
        let mut seen = HashSet::new();
        let mut best = (0, String::new());
        while let Some((known, _, (at, word))) = open.pop() {
            if known == self.len().1 && word == last {
                return Ok(());
            }
            if known >= best.0 {
                best = (known, self.describe(&at, word));
            }
            if seen.len() >= STATES_MAX {
                return Err(format!("{}; the search was given up", best.1));
            }
            let next = |process: usize| {
                let entry = self.next_op(&at, process)?;
                let after = entry.apply_to(word)?;
                let mut at = at.clone();
                at[process] += 1;
                Some((entry.fetched.is_some(), (at, after)))
            };
            let next: Vec<_> = (0..self.processes.len()).filter_map(next).collect();
            // Values are unique: an operation that fetched this value precedes any that changes it.
            let is_known = next.iter().any(|(is_known, _)| *is_known);
            for (is_one_known, state) in next {
                let fits = is_one_known || !is_known || state.1 == word;
                let state = self.priority(state);
                if fits && seen.insert(state.2.clone()) {
                    open.push(state);
                }
            }
        }
        Err(best.1)
    }

    /// Priority of a state: more completed operations first, then fewer of the others.
    fn priority(&self, state: State) -> (usize, Reverse<usize>, State) {
        let state = self.skip_reads(state);
        let completed = |(process, at): (&Process, &u16)| usize::from(*at).min(process.completed);
        let known = self.processes.iter().zip(&state.0).map(completed).sum();
        let all: usize = state.0.iter().map(|at| usize::from(*at)).sum();
        (known, Reverse(all - known), state)
    }

    /// Returns the next operation of a process, if the present time is in its range.
    fn next_op(&self, at: &[u16], process: usize) -> Option<&Op> {
        let entry = self.processes[process].ops.get(usize::from(at[process]))?;
        let clock = usize::from(at[0]);
        let is_free = !self.is_observed || process == 0;
        (is_free || (entry.from..=entry.until).contains(&clock)).then_some(entry)
    }

    /// Advances past operations that leave the word unchanged and can take effect here as well as
    /// later. The observer advances last, and time with it.
    fn skip_reads(&self, (mut at, word): State) -> State {
        let passes = |at: &[u16], process: usize| {
            self.next_op(at, process).is_some_and(|entry| {
                let is_plain = entry.op.is_none() || entry.fetched.is_some();
                is_plain && entry.apply_to(word) == Some(word)
            })
        };
        while let Some(process) = (0..at.len()).rev().find(|&process| passes(&at, process)) {
            at[process] += 1;
        }
        (at, word)
    }

    fn describe(&self, at: &[u16], word: u64) -> String {
        let next = (0..at.len()).filter_map(|process| self.next_op(at, process));
        format!("it is {word:#x}, and next are {:x?}", next.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn add(by: u64) -> Option<AtomicOp> {
        Some(AtomicOp::fetch_add(by))
    }

    /// Builds a history from the operations of each process and the values they fetched.
    fn history(processes: &[&[(Option<AtomicOp>, Option<u64>)]]) -> History {
        let mut history = History::default();
        for ops in processes {
            let process = history.add_process();
            ops.iter().for_each(|(op, _)| history.invoke(process, *op));
            ops.iter().map_while(|(_, fetched)| *fetched).for_each(|fetched| {
                history.respond(process, fetched);
            });
        }
        history
    }

    #[test]
    fn linearizable_histories_are_accepted() {
        let swap = |by| Some(AtomicOp::swap(by));
        let processes: [&[_]; 3] = [
            &[(add(1), Some(0)), (None, Some(7)), (add(4), Some(7))],
            &[(swap(7), Some(1)), (None, Some(11))],
            &[(None, Some(0)), (Some(AtomicOp::cmp_swap(5, 6)), Some(11))],
        ];
        assert_eq!(history(&processes).find_linearization(11), Ok(()));
        assert!(history(&processes).find_linearization(12).is_err());
        // The Read of the second process returned the value before its own swap.
        let processes: [&[_]; 2] = [&[(add(1), Some(0))], &[(swap(7), Some(1)), (None, Some(1))]];
        assert!(history(&processes).find_linearization(7).is_err());
    }

    #[test]
    fn duplicate_execution_is_rejected() {
        let once: &[_] = &[(add(1), Some(0))];
        assert_eq!(history(&[once]).find_linearization(1), Ok(()));
        assert!(history(&[once]).find_linearization(2).is_err());
        assert!(history(&[once]).find_linearization(0).is_err());
        assert!(history(&[once, once]).find_linearization(2).is_err(), "two fetched the same");
        let wins = |by| (Some(AtomicOp::cmp_swap(0, by)), Some(0));
        assert!(history(&[&[wins(1)], &[wins(2)]]).find_linearization(2).is_err(), "two winners");
    }

    #[test]
    fn pending_ops_execute_at_most_once_in_order() {
        let open: &[_] = &[(add(1), None), (add(2), None)];
        for (last, fits) in [(0, true), (1, true), (2, false), (3, true), (4, false)] {
            assert_eq!(history(&[open]).find_linearization(last).is_ok(), fits, "{last}");
        }
        // Another process saw the word between the two.
        let processes = [open, &[(None, Some(1)), (add(10), Some(1)), (None, Some(13))]];
        assert_eq!(history(&processes).find_linearization(13), Ok(()));
        assert!(history(&processes).find_linearization(11).is_err());
        // The compare-and-swap may have swapped or not; or its comparison came too late.
        let open: &[_] = &[(Some(AtomicOp::cmp_swap(0, 5)), None), (add(1), None)];
        for (last, fits) in [(0, true), (1, false), (5, true), (6, true), (7, false)] {
            assert_eq!(history(&[open]).find_linearization(last).is_ok(), fits, "{last}");
        }
        let processes = [open, &[(add(3), Some(0))]];
        for (last, fits) in [(0, false), (3, true), (4, true), (5, false), (8, false)] {
            assert_eq!(history(&processes).find_linearization(last).is_ok(), fits, "{last}");
        }
    }
    #[test]
    fn observer_bounds_execution_time() {
        let mut history = History::default();
        history.set_observer();
        let (observer, user) = (history.add_process(), history.add_process());
        let see = |history: &mut History, word| {
            history.invoke(observer, None);
            history.respond(observer, word);
        };
        history.invoke(user, add(1));
        see(&mut history, 1);
        history.invoke(user, add(2));
        history.invoke(user, add(4));
        assert!([1, 3, 7].iter().all(|&last| history.find_linearization(last).is_ok()));
        history.close(user);
        see(&mut history, 3);
        assert_eq!(history.find_linearization(3), Ok(()));
        assert!(history.find_linearization(7).is_err(), "that came after the end");
        // An operation cannot take effect before its invocation.
        let mut history = History::default();
        history.set_observer();
        assert_eq!((history.add_process(), history.add_process()), (observer, user));
        see(&mut history, 1);
        history.invoke(user, add(1));
        assert!(history.find_linearization(1).is_err());
    }
}
