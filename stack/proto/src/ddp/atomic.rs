//! Atomic operations on a 64-bit word (RFC 7306 section 4.1): as arithmetic, and on memory.

pub use crate::wire::rdmap_extensions::AtomicOp;

/// Length in bytes of the word that an atomic operation modifies. Its address is a multiple of it.
pub const ATOMIC_LEN: usize = 8;

/// Returns the word after `op`, given the `original` word.
#[must_use]
pub const fn apply(op: AtomicOp, original: u64) -> u64 {
    match op {
        AtomicOp::FetchAdd { add, boundaries } => {
            // With the highest bit of each field cleared no carry leaves a field. Those bits are
            // then added without carry: each receives the carry into it and produces none.
            let low = (original & !boundaries).wrapping_add(add & !boundaries);
            low ^ ((original ^ add) & boundaries)
        }
        AtomicOp::Swap { swap, mask } => (original & !mask) | (swap & mask),
        AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask } => {
            if (original ^ compare) & compare_mask == 0 {
                (original & !swap_mask) | (swap & swap_mask)
            } else {
                original
            }
        }
    }
}

/// Executes `op` on a shared word whose value was just loaded as `word`, and returns the original
/// value.
///
/// `compare_exchange` replaces the word by its second argument if it has the value of the first,
/// atomically with respect to all threads, and returns the value found. It is repeated only if
/// another access has changed the word: lock-free. A word that `op` leaves as it is is not written.
///
/// # Errors
/// The first error of `compare_exchange`; nothing was changed.
pub fn execute<E>(
    op: AtomicOp,
    mut word: u64,
    mut compare_exchange: impl FnMut(u64, u64) -> Result<u64, E>,
) -> Result<u64, E> {
    loop {
        let next = apply(op, word);
        if next == word {
            return Ok(word);
        }
        let found = compare_exchange(word, next)?;
        if found == word {
            return Ok(word);
        }
        word = found;
    }
}

#[cfg(test)]
mod tests {
    use core::convert::Infallible;
    use core::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;

    fn execute_on(op: AtomicOp, word: &AtomicU64) -> u64 {
        let compare_exchange = |current, new| {
            let found = word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
            Ok::<_, Infallible>(found.unwrap_or_else(|found| found))
        };
        let Ok(original) = execute(op, word.load(Ordering::Acquire), compare_exchange);
        original
    }

    /// Fetch-and-add bit by bit, as in RFC 7306 section 4.1.1.
    fn fetch_add_bitwise(original: u64, add: u64, boundaries: u64) -> u64 {
        let (mut carry, mut result) = (0, 0);
        for bit in 0..64 {
            let at = |word: u64| (word >> bit) & 1;
            let sum = carry + at(original) + at(add);
            result |= (sum & 1) << bit;
            carry = if at(boundaries) == 1 { 0 } else { sum >> 1 };
        }
        result
    }

    #[test]
    fn fetch_add_mask_separates_fields() {
        let add =
            |original, add, boundaries| apply(AtomicOp::FetchAdd { add, boundaries }, original);
        assert_eq!(add(u64::MAX, 1, 0), 0);
        // Two 32-bit counters: the lower overflows and leaves the upper alone.
        assert_eq!(
            add(0x0000_0005_ffff_ffff, 0x0000_0001_0000_0002, 1 << 31),
            0x0000_0006_0000_0001
        );
        // Every bit a field: addition without carries is an exclusive or.
        assert_eq!(add(0b1100, 0b1010, u64::MAX), 0b0110);
    }

    #[test]
    fn swap_changes_only_masked_bits() {
        let swap = AtomicOp::Swap { swap: 0xaaaa, mask: 0x0ff0 };
        assert_eq!(apply(swap, 0x1234), 0x1aa4);
        let cmp_swap = |compare| AtomicOp::CmpSwap {
            compare,
            compare_mask: 0xff00,
            swap: 0xaaaa,
            swap_mask: 0x00ff,
        };
        assert_eq!(apply(cmp_swap(0x12ff), 0x1234), 0x12aa);
        assert_eq!(apply(cmp_swap(0x13ff), 0x1234), 0x1234);
    }

    fn any_op() -> impl Strategy<Value = AtomicOp> {
        // Operations on the whole word take other instructions.
        let mask = || prop_oneof![Just(u64::MAX), Just(0), any::<u64>()];
        prop_oneof![
            (any::<u64>(), mask())
                .prop_map(|(add, boundaries)| AtomicOp::FetchAdd { add, boundaries }),
            (any::<u64>(), mask()).prop_map(|(swap, mask)| AtomicOp::Swap { swap, mask }),
            (0u64..4, mask(), any::<u64>(), mask()).prop_map(
                |(compare, compare_mask, swap, swap_mask)| AtomicOp::CmpSwap {
                    compare,
                    compare_mask,
                    swap,
                    swap_mask
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn fetch_add_matches_rfc7306_bit_by_bit(original: u64, add: u64, boundaries: u64) {
            let op = AtomicOp::FetchAdd { add, boundaries };
            prop_assert_eq!(apply(op, original), fetch_add_bitwise(original, add, boundaries));
        }

        #[test]
        fn execute_matches_apply(
            op in any_op(),
            original in prop_oneof![0u64..4, any::<u64>()],
        ) {
            let word = AtomicU64::new(original);
            prop_assert_eq!(execute_on(op, &word), original);
            prop_assert_eq!(word.into_inner(), apply(op, original));
        }
    }

    #[test]
    fn concurrent_fetch_adds_lose_no_update() {
        let word = AtomicU64::new(0);
        // Four 16-bit counters with masks, against unmasked additions to the lowest.
        let fields = AtomicOp::FetchAdd { add: 1 << 16, boundaries: 0x8000_8000_8000_8000 };
        std::thread::scope(|scope| {
            for op in [fields, AtomicOp::fetch_add(1)] {
                scope.spawn({
                    let word = &word;
                    move || {
                        for _ in 0..10_000 {
                            execute_on(op, word);
                        }
                    }
                });
            }
        });
        assert_eq!(word.into_inner(), (10_000 << 16) | 10_000);
    }
}
