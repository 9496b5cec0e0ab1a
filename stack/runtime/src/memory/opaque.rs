//! Accesses to registered memory that are opaque to the compiler, and why they are sound.
//!
//! Registered memory changes at any moment. The shard copies a peer's Writes into it while threads
//! of the application copy from it ([`Mr::read`](crate::Mr::read)), without synchronization. RDMA
//! defines it so: any mixture of old and new bytes is a valid result, except that the last byte of
//! a Write becomes visible after the bytes before it. As plain Rust accesses these would be data
//! races, hence undefined behavior; as atomics of different sizes over the same bytes they would be
//! undefined as well, and as relaxed atomics of one size five times as slow as `memcpy` (measured
//! at 1,460 bytes, in words of eight).
//!
//! So no access by address is a Rust access at all. Each happens in machine code behind `asm!`: a
//! call of the C library's `memcpy` or `memset`, or one instruction that loads or stores a byte.
//! The compiler must assume that such a block reads and writes any memory it may have access to. It
//! cannot merge, repeat or split one, nor draw conclusions from what it read; the concurrent access
//! is to it like DMA by a NIC. What remains is the processor's memory model, which has defined
//! results for racing loads and stores of any sizes: each byte read is one that was stored there.
//! No loop, index or pointer of this crate depends on such a byte.
//!
//! The one kind of Rust access is the `AtomicU64` of [`Span::atomic`], because the owner of memory
//! given to [`Pd::register_raw`](crate::Pd::register_raw) may use an `AtomicU64` on the same word:
//! all of them have eight bytes and are aligned, so among those accesses there is neither a data
//! race nor a mixture of sizes.
//!
//! [`Span::atomic`]: crate::memory::Span::atomic
//!
//! Interpreters and sanitizers cannot analyze machine code, or treat the C library's copies as
//! plain accesses; for those (`cfg(miri)`, `--cfg tsan`) and for processors without a variant here
//! the same is done with relaxed atomics byte by byte.

pub(crate) use self::imp::{copy, fill, load_acquire, store_release};

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri), not(tsan)))]
mod imp {
    use std::arch::asm;
    use std::ops::RangeInclusive;

    /// Lengths of copies that are made in pieces: the payload of long frames. On processors with a
    /// fast `rep movsb` the GNU C library uses it for more than 2 KiB, which on a Zen 3 takes 5 to
    /// 15 % longer for 3 to 9 KiB.
    const IN_PIECES: RangeInclusive<usize> = PIECE_LEN + 1..=8 * PIECE_LEN;
    const PIECE_LEN: usize = 2048;

    /// Copies `len` bytes.
    ///
    /// # Safety
    /// `from..from + len` is readable, `to..to + len` is writable, and they do not overlap. One of
    /// them may be registered memory.
    #[inline]
    pub(crate) unsafe fn copy(mut from: *const u8, mut to: *mut u8, mut len: usize) {
        while IN_PIECES.contains(&len) {
            // SAFETY: a part of what the caller guarantees.
            unsafe { call_memcpy(from, to, PIECE_LEN) };
            (from, to) = (from.wrapping_add(PIECE_LEN), to.wrapping_add(PIECE_LEN));
            len -= PIECE_LEN;
        }
        // SAFETY: as above.
        unsafe { call_memcpy(from, to, len) };
    }

    /// As [`copy`], by one call.
    ///
    /// # Safety
    /// As for [`copy`].
    #[inline]
    unsafe fn call_memcpy(from: *const u8, to: *mut u8, len: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller guarantees the conditions of `memcpy`; the stack is aligned for a
        // call, as the block does not declare `nostack`, and everything that a C function may
        // change is declared.
        unsafe {
            asm!(
                "call {memcpy}",
                memcpy = sym libc::memcpy,
                inout("rdi") to => _,
                inout("rsi") from => _,
                inout("rdx") len => _,
                clobber_abi("C"),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            asm!(
                "bl {memcpy}",
                memcpy = sym libc::memcpy,
                inout("x0") to => _,
                inout("x1") from => _,
                inout("x2") len => _,
                clobber_abi("C"),
            );
        }
    }

    /// Sets `len` bytes.
    ///
    /// # Safety
    /// `to..to + len` is writable.
    pub(crate) unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller guarantees the conditions of `memset`; the rest as in `call_memcpy`.
        unsafe {
            asm!(
                "call {memset}",
                memset = sym libc::memset,
                inout("rdi") to => _,
                inout("esi") u32::from(byte) => _,
                inout("rdx") len => _,
                clobber_abi("C"),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            asm!(
                "bl {memset}",
                memset = sym libc::memset,
                inout("x0") to => _,
                inout("w1") u32::from(byte) => _,
                inout("x2") len => _,
                clobber_abi("C"),
            );
        }
    }

    /// Loads the byte, with acquire: what its writer stored before it is visible after this.
    ///
    /// # Safety
    /// It is readable.
    #[inline]
    pub(crate) unsafe fn load_acquire(from: *const u8) -> u8 {
        let byte: u8;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller guarantees that the byte is readable. The processor does not reorder
        // loads, and the compiler moves no access across a block that may access any memory.
        unsafe {
            asm!(
                "mov {byte}, byte ptr [{from}]",
                from = in(reg) from,
                byte = out(reg_byte) byte,
                options(nostack, preserves_flags),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the caller guarantees that the byte is readable; the instruction is load-acquire.
        unsafe {
            let word: u32;
            asm!(
                "ldarb {word:w}, [{from}]",
                from = in(reg) from,
                word = out(reg) word,
                options(nostack, preserves_flags),
            );
            byte = word.to_le_bytes()[0];
        }
        byte
    }

    /// Stores the byte, with release: a thread that loads it with acquire sees what was stored
    /// before.
    ///
    /// # Safety
    /// It is writable.
    #[inline]
    pub(crate) unsafe fn store_release(to: *mut u8, byte: u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller guarantees that the byte is writable. The processor does not reorder
        // stores, nor a store with loads before it; the compiler as in `load_acquire`.
        unsafe {
            asm!(
                "mov byte ptr [{to}], {byte}",
                to = in(reg) to,
                byte = in(reg_byte) byte,
                options(nostack, preserves_flags),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the caller guarantees that the byte is writable; the instruction is
        // store-release.
        unsafe {
            asm!(
                "stlrb {byte:w}, [{to}]",
                to = in(reg) to,
                byte = in(reg) u32::from(byte),
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri, tsan))]
mod imp {
    use std::sync::atomic::{AtomicU8, Ordering};

    /// Copies `len` bytes.
    ///
    /// # Safety
    /// `from..from + len` is readable, `to..to + len` is writable, and they do not overlap. One of
    /// them may be registered memory.
    pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        for at in 0..len {
            let (from, to) = (from.wrapping_add(at).cast_mut(), to.wrapping_add(at));
            // SAFETY: inside the source. It has to be writable only for atomics that write.
            let byte = unsafe { AtomicU8::from_ptr(from) }.load(Ordering::Relaxed);
            // SAFETY: inside the destination.
            unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Relaxed);
        }
    }

    /// Sets `len` bytes.
    ///
    /// # Safety
    /// `to..to + len` is writable.
    pub(crate) unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
        for at in 0..len {
            // SAFETY: inside the destination.
            unsafe { AtomicU8::from_ptr(to.wrapping_add(at)) }.store(byte, Ordering::Relaxed);
        }
    }

    /// Loads the byte, with acquire: what its writer stored before it is visible after this.
    ///
    /// # Safety
    /// It is readable.
    pub(crate) unsafe fn load_acquire(from: *const u8) -> u8 {
        // SAFETY: the caller guarantees that it is readable. It has to be writable only for atomics
        // that write.
        unsafe { AtomicU8::from_ptr(from.cast_mut()) }.load(Ordering::Acquire)
    }

    /// Stores the byte, with release: a thread that loads it with acquire sees what was stored
    /// before.
    ///
    /// # Safety
    /// It is writable.
    pub(crate) unsafe fn store_release(to: *mut u8, byte: u8) {
        // SAFETY: the caller guarantees that it is writable.
        unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Release);
    }
}
