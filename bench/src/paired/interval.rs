//! Interval of a median, without assumptions about the distribution.

use crate::median::median;

/// Least probability that the interval contains the true median, if there are values enough.
pub const COVERAGE_MIN: f64 = 0.95;

/// Median of a sample, with an interval between two of its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianInterval {
    /// Median of the values.
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Probability that such an interval contains the true median, of independent values.
    pub coverage: f64,
}

impl MedianInterval {
    /// Returns the median and the interval from the k-th lowest to the k-th highest value, with the
    /// largest k that covers 95 %; from the lowest to the highest if none does. `None` without
    /// values.
    ///
    /// Each value is below the true median with probability 1/2. So the number of those below is
    /// binomial, and the interval misses the median only if fewer than k values are on one side.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (first, last) = (*values.first()?, *values.last()?);
        let count = values.len();
        let mut interval = Self {
            median: median(values.clone())?,
            low: first,
            high: last,
            coverage: coverage(count, 1),
        };
        for k in (2..=count / 2).take_while(|&k| coverage(count, k) >= COVERAGE_MIN) {
            interval.low = values[k - 1];
            interval.high = values[count - k];
            interval.coverage = coverage(count, k);
        }
        Some(interval)
    }

    /// Formats median and interval with so many decimals: `2.0 (1.5 to 3.0)`.
    #[must_use]
    pub fn describe(&self, decimals: usize) -> String {
        let Self { median, low, high, .. } = self;
        format!("{median:.decimals$} ({low:.decimals$} to {high:.decimals$})")
    }
}

/// Probability that the true median is between the k-th lowest and the k-th highest of `count`
/// values.
fn coverage(count: usize, k: usize) -> f64 {
    let mut term = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut below = 0.0;
    for index in 0..k {
        below += term;
        term *= (count - index) as f64 / (index + 1) as f64;
    }
    (1.0 - 2.0 * below).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_values_use_the_second_lowest_and_highest() {
        let values = vec![9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0];
        let interval = MedianInterval::of(values).unwrap();
        assert_eq!((interval.low, interval.median, interval.high), (2.0, 5.0, 8.0));
        // 1 - 2 * (1 + 9) / 512
        assert!((interval.coverage - 0.960_937_5).abs() < 1e-12, "{interval:?}");
    }

    #[test]
    fn few_values_use_their_range() {
        assert_eq!(MedianInterval::of(vec![]), None);
        let one = MedianInterval::of(vec![3.0]).unwrap();
        assert_eq!((one.low, one.median, one.high, one.coverage), (3.0, 3.0, 3.0, 0.0));
        assert_eq!(one.describe(1), "3.0 (3.0 to 3.0)");
        let five = MedianInterval::of(vec![5.0, 1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!((five.low, five.high), (1.0, 5.0));
        assert!((five.coverage - 0.9375).abs() < 1e-12, "{five:?}");
    }

    /// Values of a table of the sign test: ranks of the 95 % interval of a median.
    #[test]
    fn ranks_are_those_of_the_sign_test() {
        for (count, rank) in [(6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (20, 6), (25, 8)] {
            let values = (1..=count).map(f64::from).collect();
            let interval = MedianInterval::of(values).unwrap();
            assert_eq!(interval.low, f64::from(rank), "{count} values");
            assert_eq!(interval.high, f64::from(count + 1 - rank), "{count} values");
            assert!(interval.coverage >= COVERAGE_MIN, "{count} values");
        }
    }
}
