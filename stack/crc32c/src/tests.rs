use proptest::prelude::*;

use crate::{Kernel, crc32c};

/// Computes the CRC bit by bit, from the polynomial alone (reflected: RFC 3385 section 4).
fn crc32c_bitwise(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

/// Bytes without a pattern.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn crc_matches_rfc3720_examples() {
    // RFC 3720 appendix B.4.
    let mut command = [0; 48];
    command[..2].copy_from_slice(&[0x01, 0xc0]);
    command[16] = 0x14;
    command[22] = 0x04;
    command[27] = 0x14;
    command[31] = 0x18;
    command[32] = 0x28;
    command[40] = 0x02;
    let ascending: Vec<u8> = (0..32).collect();
    let descending: Vec<u8> = (0..32).rev().collect();
    for kernel in Kernel::available() {
        let name = kernel.name();
        assert_eq!(kernel.crc32c(&[0; 32]), 0x8a91_36aa, "{name}");
        assert_eq!(kernel.crc32c(&[0xff; 32]), 0x62a8_ab43, "{name}");
        assert_eq!(kernel.crc32c(&ascending), 0x46dd_794e, "{name}");
        assert_eq!(kernel.crc32c(&descending), 0x113f_db5c, "{name}");
        assert_eq!(kernel.crc32c(&command), 0xd996_3a56, "{name}");
        assert_eq!(kernel.crc32c(&[]), 0, "{name}");
    }
}

#[test]
fn all_lengths_and_alignments_match_the_polynomial() {
    const LEN_MAX: usize = 1100;
    // The buffer itself is aligned arbitrarily: 64 starts are all alignments.
    let bytes = noise(64 + LEN_MAX);
    for start in 0..64 {
        for len in 0..=LEN_MAX {
            let message = &bytes[start..start + len];
            let expected = ::crc32c::crc32c(message);
            if start == 0 {
                assert_eq!(expected, crc32c_bitwise(message), "{len} bytes");
            }
            for kernel in Kernel::available() {
                let found = kernel.crc32c(message);
                assert_eq!(found, expected, "{}: {len} bytes from {start}", kernel.name());
            }
        }
    }
}

#[test]
fn long_messages_match_the_polynomial() {
    let bytes = noise(1 << 17);
    for len in [1444, 1456, 1535, 1536, 1537, 4095, 8944, 8956, 9000, 65_535, 65_536, 1 << 17] {
        let expected = crc32c_bitwise(&bytes[..len]);
        for kernel in Kernel::available() {
            assert_eq!(kernel.crc32c(&bytes[..len]), expected, "{}: {len} bytes", kernel.name());
        }
    }
}

#[test]
fn best_kernel_is_the_first_available() {
    assert_eq!(Some(Kernel::best()), Kernel::available().next());
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn available_kernels_match_proc_cpuinfo() {
    if cfg!(target_arch = "x86_64")
        && let Ok(text) = std::fs::read_to_string("/proc/cpuinfo")
        && let Some(flags) = text.lines().find(|line| line.starts_with("flags"))
    {
        let has = |flag| flags.split_whitespace().any(|word| word == flag);
        let sse42 = has("sse4_2") && has("pclmulqdq");
        let avx = sse42 && has("avx") && has("adx");
        let avx2 = sse42 && has("avx2") && has("vpclmulqdq");
        let avx512 = avx2 && has("avx512f");
        let expected = [(avx512, "avx512"), (avx2, "avx2"), (avx, "avx"), (sse42, "sse4.2")];
        let names: Vec<_> = Kernel::available().map(Kernel::name).collect();
        let expected = expected.into_iter().filter(|(has, _)| *has).map(|(_, name)| name);
        assert_eq!(names, expected.chain(["portable"]).collect::<Vec<_>>());
    }
}

proptest! {
    #[test]
    fn kernels_match_the_polynomial(bytes in proptest::collection::vec(any::<u8>(), 0..4000)) {
        let expected = crc32c_bitwise(&bytes);
        for kernel in Kernel::available() {
            prop_assert_eq!(kernel.crc32c(&bytes), expected, "{}", kernel.name());
        }
    }
}
