//! Order and repetition of runs.

/// Maximum number of attempts of a run that is invalid.
pub(super) const ATTEMPTS_MAX: usize = 3;

/// Returns the index visited in step `step` of a round: a permutation of `0..count`.
pub(super) fn visit_order(step: usize, round: usize, count: usize) -> usize {
    // A stride coprime to the count visits all indices.
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let stride = (7..).find(|stride| gcd(*stride, count) == 1).unwrap_or(1);
    (step * stride + round * 5) % count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visit_order_is_a_permutation_per_round() {
        for count in [1, 2, 3, 7, 14, 30] {
            let order =
                |round| (0..count).map(|step| visit_order(step, round, count)).collect::<Vec<_>>();
            for round in 0..5 {
                let mut sorted = order(round);
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..count), "{count}");
            }
            assert!(count < 3 || order(0) != order(1));
        }
    }
}
