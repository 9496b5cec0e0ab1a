//! Filling and checking messages in registered memory.

use ferrowarp::Mr;

use crate::endpoint::Endpoint;
use crate::pattern::Pattern;

/// Bytes per copy between registered memory and the stack.
const CHUNK_LEN: usize = 4096;
/// Bytes processed between two polls of the shard, so that connections stay alive meanwhile.
const DRIVE_EVERY: usize = 256 << 10;

fn for_each_chunk(end: &Endpoint, len: usize, mut work: impl FnMut(usize, &mut [u8])) {
    let mut scratch = [0; CHUNK_LEN];
    for start in (0..len).step_by(CHUNK_LEN) {
        if start > 0 && start.is_multiple_of(DRIVE_EVERY) {
            end.drive();
        }
        let chunk_len = CHUNK_LEN.min(len - start);
        work(start, &mut scratch[..chunk_len]);
    }
}

/// Writes the message of `pattern`, `len` bytes, at `offset` of `mr`.
pub fn fill(end: &Endpoint, mr: &Mr, offset: usize, len: usize, pattern: Pattern) {
    for_each_chunk(end, len, |start, scratch| {
        pattern.fill(start, scratch);
        mr.write(offset + start, scratch);
    });
}

/// Returns how many bytes of the message at `offset` of `mr` differ from `pattern`.
#[must_use]
pub fn check(end: &Endpoint, mr: &Mr, offset: usize, len: usize, pattern: Pattern) -> u64 {
    let mut wrong = 0;
    for_each_chunk(end, len, |start, scratch| {
        mr.read(offset + start, scratch);
        wrong += pattern.mismatches(start, scratch);
    });
    wrong
}
