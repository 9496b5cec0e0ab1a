//! Marks in a memory trace: which poll an access belongs to, and which addresses are no state.
//!
//! A traced program announces the addresses on standard error, where the trace goes as well, and
//! then stores to a mark at the beginning and at the end of each poll. `instructions` reads both.

use std::fs;
use std::io::Write;
use std::mem::{size_of, size_of_val};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Marks, by index in [`Mark::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A poll of the source begins.
    Source,
    /// A poll of the sink begins.
    Sink,
    /// The poll ends; it was a train: it sent frames (source) or received some (sink).
    Train,
    /// The poll ends, and was no train.
    Idle,
}

impl Mark {
    /// All marks, in the order of their addresses.
    pub const ALL: [Self; 4] = [Self::Source, Self::Sink, Self::Train, Self::Idle];

    /// Stores to the mark's address.
    #[inline]
    pub fn store(self) {
        WORDS[self as usize].0.store(1, Ordering::Relaxed);
    }
}

/// A word in a cache line of its own.
#[repr(align(64))]
struct Word(AtomicU64);

static WORDS: [Word; 4] = [const { Word(AtomicU64::new(0)) }; 4];

/// Bytes of stack below and above the address of a local variable: more than any call uses.
const STACK_BYTES: usize = 1 << 20;

/// Returns the addresses of a value.
pub fn range_of<T: ?Sized>(value: &T) -> Range<usize> {
    let start = std::ptr::from_ref(value).cast::<u8>().addr();
    start..start + size_of_val(value)
}

/// Returns the addresses of the contents of an `Arc`, with the two counters before it.
pub fn range_of_arc<T>(shared: &Arc<T>) -> Range<usize> {
    let Range { start, end } = range_of::<T>(shared);
    start - 2 * size_of::<usize>()..end
}

/// Returns the addresses of a vector's elements, up to its capacity.
pub fn range_of_vec<T>(elements: &Vec<T>) -> Range<usize> {
    let start = elements.as_ptr().addr();
    start..start + elements.capacity() * size_of::<T>()
}

/// Writes the addresses to standard error: of the marks, of the program's image, and of what is no
/// state. That is `ignored`, the marks, the stack of the calling thread, and read-only mappings.
pub fn announce(ignored: &[Range<usize>]) -> std::io::Result<()> {
    let local = 0_u8;
    let stack = range_of(&local).start;
    let own = [range_of(&WORDS), stack - STACK_BYTES..stack + STACK_BYTES];
    let mut text = String::new();
    for word in &WORDS {
        text += &format!("mark {:x}\n", range_of(word).start);
    }
    for Range { start, end } in ignored.iter().chain(&own) {
        text += &format!("ignore {start:x}-{end:x}\n");
    }
    // proc_pid_maps(5): address range, permissions, and last the path.
    let maps = fs::read_to_string("/proc/self/maps")?;
    let mappings = || maps.lines().filter_map(|line| line.split_once(' '));
    for (range, _) in mappings().filter(|(_, rest)| !rest.starts_with("rw")) {
        text += &format!("ignore {range}\n");
    }
    let program = std::env::current_exe()?;
    let image = mappings().find(|(_, rest)| rest.ends_with(&*program.to_string_lossy()));
    text.extend(image.map(|(range, _)| format!("image {range}\n")));
    std::io::stderr().lock().write_all(text.as_bytes())
}
