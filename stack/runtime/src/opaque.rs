//! Accesses to registered memory that the compiler does not see: why they are sound.
//!
//! Registered memory changes at any moment. The shard copies a peer's Writes into it while threads
//! of the application copy from it ([`Mr::read`](crate::Mr::read)), nobody waits for anybody, and
//! that is what RDMA is: any mixture of old and new bytes is a valid result, except that the last
//! byte of a Write shows what was written before. If these were plain accesses of Rust they would
//! be data races, hence undefined; as atomics of different sizes over the same bytes they would be
//! as undefined, and as relaxed atomics of one size five times as slow as `memcpy` (measured at
//! 1,460 bytes, in words of eight).
//!
//! So no access by address is one of Rust's at all. Each happens in machine code behind `asm!`: a
//! call of the C library's `memcpy` or `memset`, or one instruction that loads or stores a byte.
//! The compiler must assume that such a block reads and writes any memory it may have access to and
//! cannot merge, repeat or split one, nor conclude anything from what it read; the other party is
//! to it what a network adapter is that moves data by DMA. What remains is the processor's memory
//! model, which has defined results for racing loads and stores of any sizes: each byte read is one
//! that was stored there. No loop, index or pointer of this crate depends on such a byte.
//!
//! The one kind of access that is Rust's own is the `AtomicU64` of [`Span::atomic`], because the
//! owner of memory given to [`Pd::register_raw`](crate::Pd::register_raw) may use an `AtomicU64` of
//! his own on the same word: all of them have eight bytes and are aligned, so among those accesses
//! there is neither a data race nor a mixture of sizes.
//!
//! [`Span::atomic`]: crate::memory::Span::atomic
//!
//! Interpreters and sanitizers cannot look into machine code, or count the C library's copies as
//! plain ones; for those (`cfg(miri)`, `--cfg tsan`) and for processors without a variant here the
//! same is done by relaxed atomics byte by byte.

pub(crate) use self::imp::{copy, fill, load_acquire, store_release};

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri), not(tsan)))]
mod imp {
    use std::arch::asm;

    /// Copies `len` bytes.
    ///
    /// # Safety
    /// `from..from + len` is readable, `to..to + len` is writable, and they do not overlap. One of
    /// them may be registered memory.
    #[inline]
    pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller keeps the conditions of `memcpy`; the stack is aligned for a call, as
        // the block does not say `nostack`, and all that a C function may change is said.
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
        // SAFETY: the caller keeps the conditions of `memset`; the rest as in `copy`.
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

    /// The byte; what its writer stored before it is visible after this.
    ///
    /// # Safety
    /// It is readable.
    #[inline]
    pub(crate) unsafe fn load_acquire(from: *const u8) -> u8 {
        let byte: u8;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller says that the byte is readable. The processor does not reorder loads,
        // and the compiler no access across a block that may touch any memory.
        unsafe {
            asm!(
                "mov {byte}, byte ptr [{from}]",
                from = in(reg) from,
                byte = out(reg_byte) byte,
                options(nostack, preserves_flags),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the caller says that the byte is readable; the instruction is the load-acquire.
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

    /// Stores the byte; whoever sees it sees what was stored before.
    ///
    /// # Safety
    /// It is writable.
    #[inline]
    pub(crate) unsafe fn store_release(to: *mut u8, byte: u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller says that the byte is writable. The processor does not reorder stores,
        // nor a store with loads before it; the compiler as in `load_acquire`.
        unsafe {
            asm!(
                "mov byte ptr [{to}], {byte}",
                to = in(reg) to,
                byte = in(reg_byte) byte,
                options(nostack, preserves_flags),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the caller says that the byte is writable; the instruction is the store-release.
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
            // SAFETY: inside the source. An atomic needs it writable only to be written.
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

    /// The byte; what its writer stored before it is visible after this.
    ///
    /// # Safety
    /// It is readable.
    pub(crate) unsafe fn load_acquire(from: *const u8) -> u8 {
        // SAFETY: readable by the caller's word. An atomic needs it writable only to be written.
        unsafe { AtomicU8::from_ptr(from.cast_mut()) }.load(Ordering::Acquire)
    }

    /// Stores the byte; whoever sees it sees what was stored before.
    ///
    /// # Safety
    /// It is writable.
    pub(crate) unsafe fn store_release(to: *mut u8, byte: u8) {
        // SAFETY: writable by the caller's word.
        unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Release);
    }
}
