//! CRC32C by folding with carry-less multiplications, next to the `crc32` instruction.
//!
//! *Folding* replaces a block at the front of a message by its product with a power of x, reduced
//! to the length of a block, and adds it to a later block: the message becomes shorter, its CRC
//! stays the same. In the end 16 bytes are left, whose CRC `crc32` computes.
//!
//! ```text
//! odd bytes | first | head: blocks | group | group | ...     group: | chain | a | b | c |
//! ```
//!
//! A part of a block would need a mask, or multipliers for its length. So the odd bytes come first:
//! `crc32` computes their CRC, and the 4 bytes behind them start from it, as a message starts from
//! all ones. The first block of each group, the chain, is replaced by its CRC in the same way. That
//! starts from 0, so that the chains of successive groups overlap: `crc32` reads one in 8 cycles,
//! while the multiplier folds the other blocks, each into its successor in the next group.
//!
//! On Zen 3 and Zen 4 the multiplications of a vector take two cycles, of 64 bytes as of 32. There
//! three folded blocks for a chain are fastest with AVX-512 (Zen 4), and one with AVX2 (both): on a
//! Zen 3 it takes 5 % less time than two. With AVX on a Zen 1 three are fastest, by a few percent.

/// Defines `crc32c`, which folds `$folded` blocks of a group, from operations of the module:
///
/// - `Block`: 64 bytes in vectors, four lanes of two words of 64 bits.
/// - `load`: a block of the message. `constants`: multipliers of a block. `zero`: zeros.
/// - `add_crc`: adds (XORs) a CRC to the first 4 bytes of a block.
/// - `fold`: multiplies both words of each lane by their multipliers, and adds the two products,
///   and a lane of another block.
/// - `sum_lanes`: the sum of the lanes.
macro_rules! define_folding_crc32c {
    ($features:literal, $folded:literal) => {
        /// Folded blocks of a group.
        const FOLDED: usize = $folded;
        const BLOCK_LEN: i32 = 64;

        /// Returns the CRC32C of `bytes`.
        #[target_feature(enable = $features)]
        pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
            use $crate::polynomial::{gather_block_before, shift_block_by};
            use $crate::sse42::{append, append_u64};

            static BY_BLOCK: [u64; 8] = shift_block_by(BLOCK_LEN);
            static BY_GROUP: [u64; 8] = shift_block_by(BLOCK_LEN * (1 + $folded));
            /// By the number of blocks behind the gathered one.
            static GATHER: [[u64; 8]; FOLDED] = {
                let mut gather = [[0; 8]; FOLDED];
                let mut len = 0;
                while len < $folded {
                    gather[len as usize] = gather_block_before(BLOCK_LEN * len);
                    len += 1;
                }
                gather
            };

            // With one block behind the odd bytes, to fold takes longer than to read it.
            if bytes.len() < 2 * BLOCK_LEN as usize {
                return !append(!0, bytes);
            }
            let (odd, blocks) = bytes.as_rchunks();
            let crc = append(!0, odd);
            let Some((first, blocks)) = blocks.split_first() else { return !crc };
            let (head, groups) = blocks.as_rchunks();

            let mut last = add_crc(load(first), crc);
            for block in head {
                last = fold(last, constants(&BY_BLOCK), load(block));
            }
            let mut sum = zero();
            if let Some((group, groups)) = groups.split_first() {
                let mut folded = load_group(group);
                folded[FOLDED - 1] = fold(last, constants(&BY_GROUP), folded[FOLDED - 1]);
                for group in groups {
                    for (block, next) in folded.iter_mut().zip(load_group(group)) {
                        *block = fold(*block, constants(&BY_GROUP), next);
                    }
                }
                let [before @ .., _] = folded;
                for (block, multipliers) in before.iter().rev().zip(&GATHER[1..]) {
                    sum = fold(*block, constants(multipliers), sum);
                }
                last = folded[FOLDED - 1];
            }
            let [early, late] = sum_lanes(fold(last, constants(&GATHER[0]), sum));
            !append_u64(append_u64(0, early), late)
        }

        /// Returns the blocks of a group but for the first, which is replaced by its CRC.
        #[inline]
        #[target_feature(enable = $features)]
        fn load_group(group: &[[u8; 64]; 1 + FOLDED]) -> [Block; FOLDED] {
            let [chain, rest @ ..] = group;
            let crc = $crate::sse42::append_words(0, chain.as_chunks().0);
            let mut blocks = [zero(); FOLDED];
            for (block, bytes) in blocks.iter_mut().zip(rest) {
                *block = load(bytes);
            }
            blocks[0] = add_crc(blocks[0], crc);
            blocks
        }
    };
}
