//! The oracle of words that many use at once: is there an order in which everything that was done
//! to a word makes sense?
//!
//! Each user's operations happen in the order in which they were asked for, each once. Those that
//! completed fetched what the word was just then; those of connections that ended before may have
//! happened or not, but not behind one that did not, nor after the end. What they make of the word
//! in the end is what it is.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use ferrowarp_proto::ddp::atomic::{AtomicOp, apply};

/// Beginnings that are tried: far more than any honest history needs.
const STATES_MAX: usize = 200_000;

/// One operation, and what it fetched if it completed.
#[derive(Clone, Copy, Debug)]
struct Deed {
    /// `None`: the word was read.
    op: Option<AtomicOp>,
    fetched: Option<u64>,
    /// It happened when the observer had done so much, and no more than so much.
    from: usize,
    until: usize,
}

impl Deed {
    /// The word behind it, if it was `word` before and that is what was fetched.
    fn happen(&self, word: u64) -> Option<u64> {
        let fits = self.fetched.is_none_or(|fetched| fetched == word);
        fits.then(|| self.op.map_or(word, |op| apply(op, word)))
    }
}

/// What one user asked for, in order; the first `completed` were.
#[derive(Clone, Debug, Default)]
struct Line {
    deeds: Vec<Deed>,
    completed: usize,
    /// How much the observer had done when it ended.
    closed: Option<usize>,
}

/// One word from 0 on.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    lines: Vec<Line>,
    /// What the first user does happens at once: it tells the time.
    is_observed: bool,
}

/// A place in the search: how far each line is, and the word.
type State = (Vec<u16>, u64);

impl History {
    /// Somebody else uses the word, from now on; returns the number of the line.
    pub(super) fn user(&mut self) -> usize {
        self.lines.push(Line::default());
        self.lines.len() - 1
    }

    /// The next user is the first, and one whose operations happen at once.
    pub(super) const fn observe(&mut self) {
        self.is_observed = true;
    }

    fn clock(&self) -> usize {
        self.lines.first().filter(|_| self.is_observed).map_or(0, |line| line.completed)
    }

    /// An operation, or a Read, was asked for.
    pub(super) fn ask(&mut self, line: usize, op: Option<AtomicOp>) {
        let from = self.clock();
        let line = &mut self.lines[line];
        let until = line.closed.unwrap_or(usize::MAX);
        line.deeds.push(Deed { op, fetched: None, from, until });
    }

    /// Nothing that a user asked for happens from now on.
    pub(super) fn close(&mut self, line: usize) {
        let clock = self.clock();
        let line = &mut self.lines[line];
        line.closed = line.closed.or(Some(clock));
        for deed in &mut line.deeds[line.completed..] {
            deed.until = deed.until.min(clock);
        }
    }

    /// The oldest one that had not completed has.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn complete(&mut self, line: usize, fetched: u64) {
        let clock = self.clock();
        let line = &mut self.lines[line];
        let deed = &mut line.deeds[line.completed];
        deed.fetched = Some(fetched);
        deed.until = deed.until.min(clock);
        line.completed += 1;
    }

    /// How many were asked for, and how many of them completed.
    pub(super) fn len(&self) -> (usize, usize) {
        let asked = self.lines.iter().map(|line| line.deeds.len()).sum();
        (asked, self.lines.iter().map(|line| line.completed).sum())
    }

    /// Checks that there is such an order, with `last` at its end.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn conclude(&self, last: u64) {
        if let Err(stuck) = self.order(last) {
            panic!("no order explains the word {last:#x}: {stuck}");
        }
    }

    /// Looks for an order. Says how far the longest beginning of one came.
    ///
    /// Most that happened completed, and what it fetched leaves no choice. Where nothing of it
    /// fits, something happened that did not complete: the fewest such operations are tried first.
    fn order(&self, last: u64) -> Result<(), String> {
        let mut open = BinaryHeap::from([self.rate((vec![0; self.lines.len()], 0))]);
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
                let deed = self.deed(&at, line)?;
                let after = deed.happen(word)?;
                let mut at = at.clone();
                at[line] += 1;
                Some((deed.fetched.is_some(), (at, after)))
            };
            let next: Vec<_> = (0..self.lines.len()).filter_map(next).collect();
            // No word comes twice: what found this one so is behind nothing that changes it.
            let is_known = next.iter().any(|(is_known, _)| *is_known);
            for (is_one_known, state) in next {
                let fits = is_one_known || !is_known || state.1 == word;
                let state = self.rate(state);
                if fits && seen.insert(state.2.clone()) {
                    open.push(state);
                }
            }
        }
        Err(best.1)
    }

    /// How promising a state is: more that completed is done, and less of the rest.
    fn rate(&self, state: State) -> (usize, Reverse<usize>, State) {
        let state = self.settle(state);
        let completed = |(line, at): (&Line, &u16)| usize::from(*at).min(line.completed);
        let known = self.lines.iter().zip(&state.0).map(completed).sum();
        let all: usize = state.0.iter().map(|at| usize::from(*at)).sum();
        (known, Reverse(all - known), state)
    }

    /// What a line does next, if its time has come and is not over.
    fn deed(&self, at: &[u16], line: usize) -> Option<&Deed> {
        let deed = self.lines[line].deeds.get(usize::from(at[line]))?;
        let clock = usize::from(at[0]);
        let is_free = !self.is_observed || line == 0;
        (is_free || (deed.from..=deed.until).contains(&clock)).then_some(deed)
    }

    /// Passes what leaves the word as it is, and can have happened here as well as later. Time goes
    /// on last.
    fn settle(&self, (mut at, word): State) -> State {
        let passes = |at: &[u16], line: usize| {
            self.deed(at, line).is_some_and(|deed| {
                let is_plain = deed.op.is_none() || deed.fetched.is_some();
                is_plain && deed.happen(word) == Some(word)
            })
        };
        while let Some(line) = (0..at.len()).rev().find(|&line| passes(&at, line)) {
            at[line] += 1;
        }
        (at, word)
    }

    fn describe(&self, at: &[u16], word: u64) -> String {
        let next = (0..at.len()).filter_map(|line| self.deed(at, line));
        format!("it is {word:#x}, and next are {:x?}", next.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn add(by: u64) -> Option<AtomicOp> {
        Some(AtomicOp::fetch_add(by))
    }

    /// A history of lines of operations and what they fetched.
    fn history(lines: &[&[(Option<AtomicOp>, Option<u64>)]]) -> History {
        let mut history = History::default();
        for deeds in lines {
            let line = history.user();
            deeds.iter().for_each(|(op, _)| history.ask(line, *op));
            deeds.iter().map_while(|(_, fetched)| *fetched).for_each(|fetched| {
                history.complete(line, fetched);
            });
        }
        history
    }

    #[test]
    fn an_order_is_found_where_there_is_one() {
        let swap = |by| Some(AtomicOp::swap(by));
        let lines: [&[_]; 3] = [
            &[(add(1), Some(0)), (None, Some(7)), (add(4), Some(7))],
            &[(swap(7), Some(1)), (None, Some(11))],
            &[(None, Some(0)), (Some(AtomicOp::cmp_swap(5, 6)), Some(11))],
        ];
        assert_eq!(history(&lines).order(11), Ok(()));
        assert!(history(&lines).order(12).is_err());
        // The Read of the second line came before its swap.
        let lines: [&[_]; 2] = [&[(add(1), Some(0))], &[(swap(7), Some(1)), (None, Some(1))]];
        assert!(history(&lines).order(7).is_err());
    }

    #[test]
    fn twice_is_not_once() {
        let once: &[_] = &[(add(1), Some(0))];
        assert_eq!(history(&[once]).order(1), Ok(()));
        assert!(history(&[once]).order(2).is_err());
        assert!(history(&[once]).order(0).is_err());
        assert!(history(&[once, once]).order(2).is_err(), "two fetched the same");
        let wins = |by| (Some(AtomicOp::cmp_swap(0, by)), Some(0));
        assert!(history(&[&[wins(1)], &[wins(2)]]).order(2).is_err(), "two winners");
    }

    #[test]
    fn what_did_not_complete_happened_once_or_not_and_in_its_turn() {
        let open: &[_] = &[(add(1), None), (add(2), None)];
        for (last, fits) in [(0, true), (1, true), (2, false), (3, true), (4, false)] {
            assert_eq!(history(&[open]).order(last).is_ok(), fits, "{last}");
        }
        // Another one saw the word between the two.
        let lines = [open, &[(None, Some(1)), (add(10), Some(1)), (None, Some(13))]];
        assert_eq!(history(&lines).order(13), Ok(()));
        assert!(history(&lines).order(11).is_err());
        // A comparison that did not complete may have swapped, or come too late for it.
        let open: &[_] = &[(Some(AtomicOp::cmp_swap(0, 5)), None), (add(1), None)];
        for (last, fits) in [(0, true), (1, false), (5, true), (6, true), (7, false)] {
            assert_eq!(history(&[open]).order(last).is_ok(), fits, "{last}");
        }
        let lines = [open, &[(add(3), Some(0))]];
        for (last, fits) in [(0, false), (3, true), (4, true), (5, false), (8, false)] {
            assert_eq!(history(&lines).order(last).is_ok(), fits, "{last}");
        }
    }
    #[test]
    fn what_an_observer_saw_tells_the_time() {
        let mut history = History::default();
        history.observe();
        let (eye, user) = (history.user(), history.user());
        let see = |history: &mut History, word| {
            history.ask(eye, None);
            history.complete(eye, word);
        };
        history.ask(user, add(1));
        see(&mut history, 1);
        history.ask(user, add(2));
        history.ask(user, add(4));
        assert!([1, 3, 7].iter().all(|&last| history.order(last).is_ok()));
        history.close(user);
        see(&mut history, 3);
        assert_eq!(history.order(3), Ok(()));
        assert!(history.order(7).is_err(), "that came after the end");
        // Nor was it there before it was asked for.
        let mut history = History::default();
        history.observe();
        assert_eq!((history.user(), history.user()), (eye, user));
        see(&mut history, 1);
        history.ask(user, add(1));
        assert!(history.order(1).is_err());
    }
}
