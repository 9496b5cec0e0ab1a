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
        self.processes.first().filter(|_| self.is_observed).map_or(0, |line| line.completed)
    }

    /// Records the invocation of an operation, or of a Read (`None`).
    pub(super) fn invoke(&mut self, line: usize, op: Option<AtomicOp>) {
        let from = self.clock();
        let line = &mut self.processes[line];
        let until = line.closed.unwrap_or(usize::MAX);
        line.ops.push(Op { op, fetched: None, from, until });
    }

    /// Ends a process: none of its operations takes effect from now on.
    pub(super) fn close(&mut self, line: usize) {
        let clock = self.clock();
        let line = &mut self.processes[line];
        line.closed = line.closed.or(Some(clock));
        for deed in &mut line.ops[line.completed..] {
            deed.until = deed.until.min(clock);
        }
    }

    /// Records the completion of a process's oldest outstanding operation.
    ///
    /// # Panics
    /// If there is none outstanding.
    pub(super) fn respond(&mut self, line: usize, fetched: u64) {
        let clock = self.clock();
        let line = &mut self.processes[line];
        let deed = &mut line.ops[line.completed];
        deed.fetched = Some(fetched);
        deed.until = deed.until.min(clock);
        line.completed += 1;
    }

    /// Numbers of operations invoked, and of those completed.
    pub(super) fn len(&self) -> (usize, usize) {
        let asked = self.processes.iter().map(|line| line.ops.len()).sum();
        (asked, self.processes.iter().map(|line| line.completed).sum())
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
            let next = |line: usize| {
                let deed = self.next_op(&at, line)?;
                let after = deed.apply_to(word)?;
                let mut at = at.clone();
                at[line] += 1;
                Some((deed.fetched.is_some(), (at, after)))
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
        let completed = |(line, at): (&Process, &u16)| usize::from(*at).min(line.completed);
        let known = self.processes.iter().zip(&state.0).map(completed).sum();
        let all: usize = state.0.iter().map(|at| usize::from(*at)).sum();
        (known, Reverse(all - known), state)
    }

    /// Returns the next operation of a process, if the present time is in its range.
    fn next_op(&self, at: &[u16], line: usize) -> Option<&Op> {
        let deed = self.processes[line].ops.get(usize::from(at[line]))?;
        let clock = usize::from(at[0]);
        let is_free = !self.is_observed || line == 0;
        (is_free || (deed.from..=deed.until).contains(&clock)).then_some(deed)
    }

    /// Advances past operations that leave the word unchanged and can take effect here as well as
    /// later. The observer advances last, and time with it.
    fn skip_reads(&self, (mut at, word): State) -> State {
        let passes = |at: &[u16], line: usize| {
            self.next_op(at, line).is_some_and(|deed| {
                let is_plain = deed.op.is_none() || deed.fetched.is_some();
                is_plain && deed.apply_to(word) == Some(word)
            })
        };
        while let Some(line) = (0..at.len()).rev().find(|&line| passes(&at, line)) {
            at[line] += 1;
        }
        (at, word)
    }

    fn describe(&self, at: &[u16], word: u64) -> String {
        let next = (0..at.len()).filter_map(|line| self.next_op(at, line));
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
    fn history(lines: &[&[(Option<AtomicOp>, Option<u64>)]]) -> History {
        let mut history = History::default();
        for deeds in lines {
            let line = history.add_process();
            deeds.iter().for_each(|(op, _)| history.invoke(line, *op));
            deeds.iter().map_while(|(_, fetched)| *fetched).for_each(|fetched| {
                history.respond(line, fetched);
            });
        }
        history
    }

    #[test]
    fn linearizable_histories_are_accepted() {
        let swap = |by| Some(AtomicOp::swap(by));
        let lines: [&[_]; 3] = [
            &[(add(1), Some(0)), (None, Some(7)), (add(4), Some(7))],
            &[(swap(7), Some(1)), (None, Some(11))],
            &[(None, Some(0)), (Some(AtomicOp::cmp_swap(5, 6)), Some(11))],
        ];
        assert_eq!(history(&lines).find_linearization(11), Ok(()));
        assert!(history(&lines).find_linearization(12).is_err());
        // The Read of the second process returned the value before its own swap.
        let lines: [&[_]; 2] = [&[(add(1), Some(0))], &[(swap(7), Some(1)), (None, Some(1))]];
        assert!(history(&lines).find_linearization(7).is_err());
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
        let lines = [open, &[(None, Some(1)), (add(10), Some(1)), (None, Some(13))]];
        assert_eq!(history(&lines).find_linearization(13), Ok(()));
        assert!(history(&lines).find_linearization(11).is_err());
        // The compare-and-swap may have swapped or not; or its comparison came too late.
        let open: &[_] = &[(Some(AtomicOp::cmp_swap(0, 5)), None), (add(1), None)];
        for (last, fits) in [(0, true), (1, false), (5, true), (6, true), (7, false)] {
            assert_eq!(history(&[open]).find_linearization(last).is_ok(), fits, "{last}");
        }
        let lines = [open, &[(add(3), Some(0))]];
        for (last, fits) in [(0, false), (3, true), (4, true), (5, false), (8, false)] {
            assert_eq!(history(&lines).find_linearization(last).is_ok(), fits, "{last}");
        }
    }
    #[test]
    fn observer_bounds_execution_time() {
        let mut history = History::default();
        history.set_observer();
        let (eye, user) = (history.add_process(), history.add_process());
        let see = |history: &mut History, word| {
            history.invoke(eye, None);
            history.respond(eye, word);
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
        assert_eq!((history.add_process(), history.add_process()), (eye, user));
        see(&mut history, 1);
        history.invoke(user, add(1));
        assert!(history.find_linearization(1).is_err());
    }
}
