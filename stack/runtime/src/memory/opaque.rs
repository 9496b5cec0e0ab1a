//! Accesses to registered memory that are opaque to the compiler, and why they are sound.
//!
//! Registered memory changes at any moment. The shard copies a peer's Writes into it while threads
//! of the application copy from it (`Region::read`), without synchronization. RDMA
//! defines it so: any mixture of old and new bytes is a valid result, except that the last byte of
//! a Write becomes visible after the bytes before it. As plain Rust accesses these would be data
//! races, hence undefined behavior; as atomics of different sizes over the same bytes they would be
//! undefined as well, and as relaxed atomics of one size five times as slow as `memcpy` (measured
//! at 1,460 bytes, in words of eight).
//!
//! So no access by address is a Rust access at all. Each is a call of a routine in machine code
//! ([`routines`]). The compiler must assume that such a call reads and writes any memory it may
//! have access to. It cannot merge, repeat or split one, nor draw conclusions from what it read;
//! the concurrent access is to it like DMA by a NIC. What remains is the processor's memory model,
//! which has defined results for racing loads and stores of any sizes: each byte read is one that
//! was stored there. No loop, index or pointer of this crate depends on such a byte. An owner of
//! memory given to [`Pd::register_raw`](crate::Pd::register_raw) may use an `AtomicU64` on a word
//! there: accesses to it as a word are one instruction each.
//!
//! The memory may also vanish: its owner unmaps it, or truncates the file behind it. The routines
//! are ours, and not the C library's, so that a page fault inside one can be told from any other
//! ([`page_faults`]): the routine then returns [`PageFault`].
//!
//! Interpreters and sanitizers cannot analyze machine code; for those (`cfg(miri)`, `--cfg tsan`)
//! and for processors without routines here the same is done with relaxed atomics byte by byte, and
//! page faults are not caught.
//!
//! [`page_faults`]: crate::memory::page_faults
//! [`PageFault`]: ferrowarp_proto::ddp::memory::PageFault

#[cfg(all(target_arch = "x86_64", not(miri), not(tsan)))]
mod routines;
#[cfg(all(target_arch = "x86_64", not(miri), not(tsan)))]
pub(crate) use self::routines::*;

#[cfg(any(not(target_arch = "x86_64"), miri, tsan))]
mod portable;
#[cfg(any(not(target_arch = "x86_64"), miri, tsan))]
pub(crate) use self::portable::*;
