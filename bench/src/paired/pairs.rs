//! Two contenders that are measured in turn, and their figures.

use anyhow::{Context as _, Result};

use super::interval::MedianInterval;

/// Figures of two contenders, in pairs.
#[derive(Clone, Debug, Default)]
pub struct Paired {
    /// Of the reference, of the subject.
    pub pairs: Vec<[f64; 2]>,
}

impl Paired {
    /// Appends a pair.
    pub fn push(&mut self, pair: [f64; 2]) {
        self.pairs.push(pair);
    }

    /// Returns the figures of the subject divided by those of the reference; `None` without pairs.
    #[must_use]
    pub fn ratio(&self) -> Option<MedianInterval> {
        MedianInterval::of(
            self.pairs.iter().map(|[reference, subject]| subject / reference).collect(),
        )
    }

    /// Returns the figures of the reference (0) or of the subject (1).
    #[must_use]
    pub fn figure(&self, which: usize) -> Option<MedianInterval> {
        MedianInterval::of(self.pairs.iter().map(|pair| pair[which]).collect())
    }
}

impl FromIterator<[f64; 2]> for Paired {
    fn from_iter<T: IntoIterator<Item = [f64; 2]>>(pairs: T) -> Self {
        Self { pairs: pairs.into_iter().collect() }
    }
}

/// Measures each row in turn, so many times. `measure` is told whether the subject comes first, as
/// it does in every other pair, and returns the figures as text, which is printed with the row's
/// name. Returns what failed; those pairs are left out.
pub fn run_pairs<T>(
    rows: &mut [T],
    pairs: usize,
    name: impl Fn(&T) -> &str,
    mut measure: impl FnMut(&mut T, bool) -> Result<String>,
) -> Vec<String> {
    let mut failures = Vec::new();
    for number in 0..pairs {
        for row in &mut *rows {
            let measured = measure(row, number % 2 == 0);
            let name = name(row);
            match measured {
                Ok(figures) => eprintln!("pair {} of {pairs}, {name}: {figures}", number + 1),
                Err(error) => failures.push(format!("{name}, pair {}: {error:#}", number + 1)),
            }
        }
    }
    failures
}

/// Measures subject and reference, with these names in errors, in either order.
///
/// # Errors
/// Those of the measurements.
pub fn both<A, B>(
    subject_first: bool,
    names: [&'static str; 2],
    subject: impl FnOnce() -> Result<A>,
    reference: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    let subject = || subject().context(names[0]);
    let reference = || reference().context(names[1]);
    if subject_first {
        let subject = subject()?;
        return Ok((subject, reference()?));
    }
    let reference = reference()?;
    Ok((subject()?, reference))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use anyhow::bail;

    use super::*;

    #[test]
    fn ratio_is_that_of_subject_to_reference() {
        let paired: Paired = [[2.0, 1.0], [4.0, 3.0], [10.0, 10.0]].into_iter().collect();
        let ratio = paired.ratio().unwrap();
        assert_eq!((ratio.low, ratio.median, ratio.high), (0.5, 0.75, 1.0));
        assert_eq!([0, 1].map(|which| paired.figure(which).unwrap().median), [4.0, 3.0]);
        assert!(Paired::default().ratio().is_none());
    }

    #[test]
    fn order_is_reversed_in_every_other_pair() {
        let order = RefCell::new(String::new());
        let note = |name: &str| -> Result<()> {
            order.borrow_mut().push_str(name);
            Ok(())
        };
        let failures = run_pairs(
            &mut ["a", "b"],
            3,
            |row| row,
            |row, subject_first| {
                both(
                    subject_first,
                    ["x", "y"],
                    || note(&format!("{row}x ")),
                    || note(&format!("{row}y ")),
                )?;
                Ok(String::new())
            },
        );
        assert!(failures.is_empty(), "{failures:?}");
        assert_eq!(order.into_inner(), "ax ay bx by ay ax by bx ax ay bx by ");
    }

    #[test]
    fn failures_name_row_pair_and_contender() {
        let fail = || -> Result<()> { bail!("gone") };
        let failures = run_pairs(
            &mut ["row"],
            2,
            |row| row,
            |_, subject_first| {
                both(subject_first, ["subject", "reference"], fail, fail)?;
                Ok(String::new())
            },
        );
        assert_eq!(failures, ["row, pair 1: subject: gone", "row, pair 2: reference: gone"]);
    }
}
