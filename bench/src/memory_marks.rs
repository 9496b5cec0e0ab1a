//! Marks in a memory trace: which poll an access belongs to, and which addresses are no state.
//!
//! A traced program announces the addresses on standard error, where the trace goes as well, and
//! then stores to a mark at the beginning and at the end of each poll. The program
//! `instructions` reads both.

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
    let mut ranges = ignored.to_vec();
    ranges.push(range_of(&WORDS));
    ranges.push(stack - STACK_BYTES..stack + STACK_BYTES);
    let program = std::env::current_exe()?;
    let mut image = None;
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let Some((range, access, path)) = mapping(line) else { continue };
        if !access.contains('w') {
            ranges.push(range.clone());
        }
        if image.is_none() && program.as_os_str() == path {
            image = Some(range.start);
        }
    }
    let mut text = String::new();
    for word in &WORDS {
        text += &format!("mark {:x}\n", range_of(word).start);
    }
    for Range { start, end } in merged(ranges) {
        text += &format!("ignore {start:x} {end:x}\n");
    }
    text += &format!("image {:x}\n", image.unwrap_or_default());
    std::io::stderr().lock().write_all(text.as_bytes())
}

/// Sorts ranges and merges those that overlap or have no more than the allocator's own bytes in
/// between.
fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    const GAP_MAX: usize = 16;
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(GAP_MAX) => {
                last.end = last.end.max(range.end);
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// Parses a line of `/proc/PID/maps` (proc_pid_maps(5)): addresses, permissions, path.
fn mapping(line: &str) -> Option<(Range<usize>, &str, &str)> {
    let mut columns = line.split_ascii_whitespace();
    let (start, end) = columns.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(start)?..address(end)?, columns.next()?, columns.nth(3).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_is_parsed_with_and_without_a_path() {
        let line = "00108000-0014a000 r-xp 00000000 08:01 393   /bin/x";
        assert_eq!(mapping(line), Some((0x10_8000..0x14_a000, "r-xp", "/bin/x")));
        let anonymous = "7f00-7f10 rw-p 00000000 00:00 0 ";
        assert_eq!(mapping(anonymous), Some((0x7f00..0x7f10, "rw-p", "")));
        assert_eq!(mapping("hello"), None);
    }

    #[test]
    fn close_and_overlapping_ranges_are_merged() {
        let ranges = vec![200..300, 10..40, 56..60, 20..30, 301..310, 1000..1001];
        assert_eq!(merged(ranges), [10..60, 200..310, 1000..1001]);
    }
}
