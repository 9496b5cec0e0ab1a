//! Order and repetition of runs.

/// How often a spoiled run is done again.
pub(super) const ATTEMPTS_MAX: usize = 3;

/// The `step`-th of `count` in a round: a walk that comes to each once.
pub(super) fn visit_order(step: usize, round: usize, count: usize) -> usize {
    // A stride that has no divisor in common with the count reaches all of them.
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
            let walk =
                |round| (0..count).map(|step| visit_order(step, round, count)).collect::<Vec<_>>();
            for round in 0..5 {
                let mut sorted = walk(round);
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..count), "{count}");
            }
            assert!(count < 3 || walk(0) != walk(1));
        }
    }
}
