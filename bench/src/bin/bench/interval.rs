//! Median, and its interval without assumptions about the distribution.

/// Least probability that the interval contains the true median, if there are values enough.
pub(crate) const COVERAGE_MIN: f64 = 0.95;

/// Median of a sample, with an interval between two of its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MedianInterval {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Probability that such an interval contains the true median of independent values.
    pub(crate) coverage: f64,
}

impl MedianInterval {
    /// Returns the median and the interval from the k-th lowest to the k-th highest value, with the
    /// largest k that covers 95 %; from the lowest to the highest if none does. `None` without
    /// values.
    ///
    /// Each value is below the true median with probability 1/2. So the number of those below is
    /// binomial, and the interval misses the median only if fewer than k values are on one side.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let (count, half) = (values.len(), values.len() / 2);
        let upper = *values.get(half)?;
        let is_odd = count % 2 == 1;
        let mut interval = Self {
            median: if is_odd { upper } else { f64::midpoint(values[half - 1], upper) },
            low: values[0],
            high: values[count - 1],
            coverage: coverage(count, 1),
        };
        for k in (2..=half).take_while(|&k| coverage(count, k) >= COVERAGE_MIN) {
            interval.low = values[k - 1];
            interval.high = values[count - k];
            interval.coverage = coverage(count, k);
        }
        Some(interval)
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
    fn few_values_use_their_range() {
        assert_eq!(MedianInterval::of(&[]), None);
        let one = MedianInterval::of(&[3.0]).unwrap();
        assert_eq!((one.low, one.median, one.high, one.coverage), (3.0, 3.0, 3.0, 0.0));
        let four = MedianInterval::of(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((four.low, four.median, four.high), (1.0, 2.5, 4.0));
    }

    /// Values of a table of the sign test: ranks of the 95 % interval of a median.
    #[test]
    fn ranks_are_those_of_the_sign_test() {
        for (count, rank) in [(6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (20, 6), (25, 8)] {
            let values: Vec<f64> = (1..=count).rev().map(f64::from).collect();
            let interval = MedianInterval::of(&values).unwrap();
            assert_eq!(interval.low, f64::from(rank), "{count} values");
            assert_eq!(interval.high, f64::from(count + 1 - rank), "{count} values");
            assert!(interval.coverage >= COVERAGE_MIN, "{count} values");
        }
    }
}
