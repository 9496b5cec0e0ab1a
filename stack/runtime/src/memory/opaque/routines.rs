//! The accesses as routines in machine code, one behind another.
//!
//! Each returns 0 in `edx`, and its value, if it has one, in `rax`. A page fault at any of their
//! instructions continues at `ferrowarp_access_fault`, which returns 1: none of them has anything
//! on the stack but return addresses.

use std::arch::{asm, global_asm};
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

use ferrowarp_proto::ddp::memory::PageFault;

/// Page faults are caught.
pub(crate) const CATCHES_PAGE_FAULTS: bool = true;

// `rdi`: destination, `rsi`: source or value, `rdx`: length in bytes. The copy with AVX handles up
// to 256 bytes by loads from both ends, which overlap in the middle. Of more it copies the first 32
// and the last 128 so, and the rest in steps of 128 to a destination that is aligned.
global_asm!(
    ".macro ferrowarp_routine name",
    ".balign 64",
    ".hidden \\name",
    ".globl \\name",
    ".type \\name, @function",
    "\\name:",
    ".cfi_startproc",
    ".endm",
    ".macro ferrowarp_end_routine name",
    ".cfi_endproc",
    ".size \\name, . - \\name",
    ".endm",
    ".pushsection .text.ferrowarp_access, \"ax\", @progbits",
    ".hidden ferrowarp_access_begin",
    ".globl ferrowarp_access_begin",
    "ferrowarp_access_begin:",
    // Copies with AVX.
    "ferrowarp_routine ferrowarp_copy_avx",
    "cmp rdx, 32",
    "jb 20f",
    "vmovdqu ymm0, [rsi]",
    "cmp rdx, 64",
    "ja 11f",
    // 32 to 64 bytes.
    "vmovdqu ymm1, [rsi + rdx - 32]",
    "vmovdqu [rdi], ymm0",
    "vmovdqu [rdi + rdx - 32], ymm1",
    "vzeroupper",
    "xor edx, edx",
    "ret",
    "11:",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu ymm7, [rsi + rdx - 64]",
    "vmovdqu ymm6, [rsi + rdx - 32]",
    "cmp rdx, 128",
    "ja 12f",
    // 65 to 128 bytes.
    "vmovdqu [rdi], ymm0",
    "vmovdqu [rdi + 32], ymm1",
    "vmovdqu [rdi + rdx - 64], ymm7",
    "vmovdqu [rdi + rdx - 32], ymm6",
    "vzeroupper",
    "xor edx, edx",
    "ret",
    "12:",
    "vmovdqu ymm5, [rsi + rdx - 96]",
    "vmovdqu ymm4, [rsi + rdx - 128]",
    "cmp rdx, 256",
    "ja 13f",
    // 129 to 256 bytes.
    "vmovdqu ymm2, [rsi + 64]",
    "vmovdqu ymm3, [rsi + 96]",
    "vmovdqu [rdi], ymm0",
    "vmovdqu [rdi + 32], ymm1",
    "vmovdqu [rdi + 64], ymm2",
    "vmovdqu [rdi + 96], ymm3",
    "vmovdqu [rdi + rdx - 128], ymm4",
    "vmovdqu [rdi + rdx - 96], ymm5",
    "vmovdqu [rdi + rdx - 64], ymm7",
    "vmovdqu [rdi + rdx - 32], ymm6",
    "vzeroupper",
    "xor edx, edx",
    "ret",
    // More.
    "13:",
    "vmovdqu [rdi], ymm0",
    "lea rcx, [rdi + rdx - 128]",
    "sub rsi, rdi",
    "or rdi, 31",
    "inc rdi",
    "add rsi, rdi",
    ".balign 16",
    "14:",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu ymm2, [rsi + 64]",
    "vmovdqu ymm3, [rsi + 96]",
    "sub rsi, -128",
    "vmovdqa [rdi], ymm0",
    "vmovdqa [rdi + 32], ymm1",
    "vmovdqa [rdi + 64], ymm2",
    "vmovdqa [rdi + 96], ymm3",
    "sub rdi, -128",
    "cmp rdi, rcx",
    "jb 14b",
    "vmovdqu [rcx], ymm4",
    "vmovdqu [rcx + 32], ymm5",
    "vmovdqu [rcx + 64], ymm7",
    "vmovdqu [rcx + 96], ymm6",
    "vzeroupper",
    "xor edx, edx",
    "ret",
    // Less than 32 bytes.
    "20:",
    "cmp edx, 16",
    "jae 21f",
    "cmp edx, 8",
    "jae 22f",
    "cmp edx, 4",
    "jae 23f",
    "test edx, edx",
    "jz 25f",
    "movzx eax, byte ptr [rsi]",
    "cmp edx, 1",
    "jbe 24f",
    "movzx ecx, word ptr [rsi + rdx - 2]",
    "mov word ptr [rdi + rdx - 2], cx",
    "24:",
    "mov byte ptr [rdi], al",
    "25:",
    "xor edx, edx",
    "ret",
    "21:",
    "vmovdqu xmm0, [rsi]",
    "vmovdqu xmm1, [rsi + rdx - 16]",
    "vmovdqu [rdi], xmm0",
    "vmovdqu [rdi + rdx - 16], xmm1",
    "xor edx, edx",
    "ret",
    "22:",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "xor edx, edx",
    "ret",
    "23:",
    "mov eax, [rsi]",
    "mov ecx, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "mov [rdi + rdx - 4], ecx",
    "xor edx, edx",
    "ret",
    "ferrowarp_end_routine ferrowarp_copy_avx",
    // Copies on any processor.
    "ferrowarp_routine ferrowarp_copy_bytes",
    "mov rcx, rdx",
    "rep movsb",
    "xor edx, edx",
    "ret",
    "ferrowarp_end_routine ferrowarp_copy_bytes",
    // Copies at least one byte, the last one last. The copies above leave r9 and r10 alone.
    "ferrowarp_routine ferrowarp_place",
    "dec rdx",
    "lea r9, [rdi + rdx]",
    "movzx r10d, byte ptr [rsi + rdx]",
    "call qword ptr [rip + {copy}]",
    "test edx, edx",
    "jnz 30f",
    "mov byte ptr [r9], r10b",
    "30:",
    "ret",
    "ferrowarp_end_routine ferrowarp_place",
    // Sets bytes.
    "ferrowarp_routine ferrowarp_fill",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "xor edx, edx",
    "ret",
    "ferrowarp_end_routine ferrowarp_fill",
    // Loads and stores a byte, loads a word. The processor does not reorder loads, nor a store with
    // what precedes it.
    "ferrowarp_routine ferrowarp_load_byte",
    "movzx eax, byte ptr [rdi]",
    "xor edx, edx",
    "ret",
    "ferrowarp_end_routine ferrowarp_load_byte",
    "ferrowarp_routine ferrowarp_store_byte",
    "mov byte ptr [rdi], sil",
    "xor edx, edx",
    "ret",
    "ferrowarp_end_routine ferrowarp_store_byte",
    "ferrowarp_routine ferrowarp_load_word",
    "mov rax, [rdi]",
    "xor edx, edx",
    "ret",
    "ferrowarp_end_routine ferrowarp_load_word",
    // Replaces the word by `rdx` if it is `rsi`.
    "ferrowarp_routine ferrowarp_compare_exchange",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov edx, 0",
    "ret",
    "ferrowarp_end_routine ferrowarp_compare_exchange",
    // Adds `rsi` to the word, or replaces it by `rsi`.
    "ferrowarp_routine ferrowarp_fetch_add",
    "mov rax, rsi",
    "lock xadd [rdi], rax",
    "xor edx, edx",
    "ret",
    "ferrowarp_end_routine ferrowarp_fetch_add",
    "ferrowarp_routine ferrowarp_swap",
    "mov rax, rsi",
    "xchg [rdi], rax",
    "xor edx, edx",
    "ret",
    "ferrowarp_end_routine ferrowarp_swap",
    ".hidden ferrowarp_access_end",
    ".globl ferrowarp_access_end",
    "ferrowarp_access_end:",
    // Returns to the caller of the routine in which there was a page fault.
    "ferrowarp_routine ferrowarp_access_fault_avx",
    "vzeroupper",
    "mov edx, 1",
    "ret",
    "ferrowarp_end_routine ferrowarp_access_fault_avx",
    "ferrowarp_routine ferrowarp_access_fault",
    "mov edx, 1",
    "ret",
    "ferrowarp_end_routine ferrowarp_access_fault",
    ".popsection",
    ".purgem ferrowarp_routine",
    ".purgem ferrowarp_end_routine",
    copy = sym COPY,
);

unsafe extern "C" {
    fn ferrowarp_access_begin();
    fn ferrowarp_access_end();
    fn ferrowarp_access_fault();
    fn ferrowarp_access_fault_avx();
    fn ferrowarp_copy_avx();
    fn ferrowarp_copy_bytes();
    fn ferrowarp_place();
    fn ferrowarp_fill();
    fn ferrowarp_load_byte();
    fn ferrowarp_store_byte();
    fn ferrowarp_load_word();
    fn ferrowarp_compare_exchange();
    fn ferrowarp_fetch_add();
    fn ferrowarp_swap();
}

/// The routine that copies.
static COPY: AtomicPtr<()> = AtomicPtr::new(ferrowarp_copy_bytes as *mut ());

/// Chooses the fastest routines for this processor.
pub(crate) fn select() {
    if is_x86_feature_detected!("avx") {
        COPY.store(ferrowarp_copy_avx as *mut (), Ordering::Relaxed);
    }
}

/// Returns the addresses of the routines.
pub(crate) fn addresses() -> Range<usize> {
    ferrowarp_access_begin as *const () as usize..ferrowarp_access_end as *const () as usize
}

/// Returns where a routine in which there was a page fault continues.
pub(crate) fn landing() -> usize {
    let has_avx = COPY.load(Ordering::Relaxed) == ferrowarp_copy_avx as *mut ();
    let landing = if has_avx { ferrowarp_access_fault_avx } else { ferrowarp_access_fault };
    landing as *const () as usize
}

#[inline(always)]
fn result<T>(value: T, fault: u64) -> Result<T, PageFault> {
    if fault == 0 { Ok(value) } else { Err(PageFault) }
}

/// Copies `len` bytes.
///
/// # Safety
/// `from..from + len` is readable, `to..to + len` is writable, and they do not overlap. One of them
/// may be registered memory.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), PageFault> {
    let fault: u64;
    // SAFETY: the caller guarantees the ranges. The routine changes no more than a C function may,
    // and returns; the block does not declare `nostack`.
    unsafe {
        asm!(
            "call qword ptr [rip + {copy}]",
            copy = sym COPY,
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rdx") len as u64 => fault,
            clobber_abi("C"),
        );
    }
    result((), fault)
}

/// As [`copy`], at least one byte; the last one becomes visible last.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub(crate) unsafe fn place(from: *const u8, to: *mut u8, len: usize) -> Result<(), PageFault> {
    let fault: u64;
    // SAFETY: as in `copy`.
    unsafe {
        asm!(
            "call {place}",
            place = sym ferrowarp_place,
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rdx") len as u64 => fault,
            clobber_abi("C"),
        );
    }
    result((), fault)
}

/// Sets `len` bytes.
///
/// # Safety
/// `to..to + len` is writable.
pub(crate) unsafe fn fill(to: *mut u8, byte: u8, len: usize) -> Result<(), PageFault> {
    let fault: u64;
    // SAFETY: the caller guarantees the range; what the routine changes is declared.
    unsafe {
        asm!(
            "call {fill}",
            fill = sym ferrowarp_fill,
            inout("rdi") to => _,
            in("esi") u32::from(byte),
            inout("rdx") len as u64 => fault,
            out("rax") _,
            out("rcx") _,
        );
    }
    result((), fault)
}

/// Loads the byte, with acquire: what its writer stored before it is visible after this.
///
/// # Safety
/// It is readable.
#[inline]
pub(crate) unsafe fn load_acquire(from: *const u8) -> Result<u8, PageFault> {
    let (byte, fault): (u64, u64);
    // SAFETY: the caller guarantees that the byte is readable; what the routine changes is
    // declared. The compiler moves no access across a block that may access any memory.
    unsafe {
        asm!(
            "call {load}",
            load = sym ferrowarp_load_byte,
            in("rdi") from,
            out("rax") byte,
            out("rdx") fault,
        );
    }
    let [byte, ..] = byte.to_le_bytes();
    result(byte, fault)
}

/// Stores the byte, with release: a thread that loads it with acquire sees what was stored before.
///
/// # Safety
/// It is writable.
#[inline]
pub(crate) unsafe fn store_release(to: *mut u8, byte: u8) -> Result<(), PageFault> {
    let fault: u64;
    // SAFETY: the caller guarantees that the byte is writable; the rest as in `load_acquire`.
    unsafe {
        asm!(
            "call {store}",
            store = sym ferrowarp_store_byte,
            in("rdi") to,
            in("esi") u32::from(byte),
            out("rdx") fault,
        );
    }
    result((), fault)
}

/// Loads the word, with acquire.
///
/// # Safety
/// It is readable and aligned.
#[inline]
pub(crate) unsafe fn load_word(from: *const u64) -> Result<u64, PageFault> {
    let (word, fault): (u64, u64);
    // SAFETY: the caller guarantees that the word is readable; the rest as in `load_acquire`.
    unsafe {
        asm!(
            "call {load}",
            load = sym ferrowarp_load_word,
            in("rdi") from,
            out("rax") word,
            out("rdx") fault,
        );
    }
    result(word, fault)
}

/// Replaces the word by `new` if it is `current`, with acquire and release; returns the value
/// found.
///
/// # Safety
/// It is readable, writable and aligned.
pub(crate) unsafe fn compare_exchange(
    word: *mut u64,
    current: u64,
    new: u64,
) -> Result<u64, PageFault> {
    let (found, fault): (u64, u64);
    // SAFETY: the caller guarantees that the word is accessible; the rest as in `load_acquire`.
    unsafe {
        asm!(
            "call {exchange}",
            exchange = sym ferrowarp_compare_exchange,
            in("rdi") word,
            in("rsi") current,
            inout("rdx") new => fault,
            out("rax") found,
        );
    }
    result(found, fault)
}

/// Adds to the word, with acquire and release; returns the value before.
///
/// # Safety
/// It is readable, writable and aligned.
pub(crate) unsafe fn fetch_add(word: *mut u64, add: u64) -> Result<u64, PageFault> {
    let (found, fault): (u64, u64);
    // SAFETY: the caller guarantees that the word is accessible; the rest as in `load_acquire`.
    unsafe {
        asm!(
            "call {fetch_add}",
            fetch_add = sym ferrowarp_fetch_add,
            in("rdi") word,
            in("rsi") add,
            out("rdx") fault,
            out("rax") found,
        );
    }
    result(found, fault)
}

/// Replaces the word, with acquire and release; returns the value before.
///
/// # Safety
/// It is readable, writable and aligned.
pub(crate) unsafe fn swap(word: *mut u64, new: u64) -> Result<u64, PageFault> {
    let (found, fault): (u64, u64);
    // SAFETY: the caller guarantees that the word is accessible; the rest as in `load_acquire`.
    unsafe {
        asm!(
            "call {swap}",
            swap = sym ferrowarp_swap,
            in("rdi") word,
            in("rsi") new,
            out("rdx") fault,
            out("rax") found,
        );
    }
    result(found, fault)
}
