//! Filling and checking messages in registered memory.

use ferrowarp::Mr;

use crate::link::End;
use crate::pattern::Pattern;

/// Octets per copy between registered memory and the stack.
const PIECE_LEN: usize = 4096;
/// The shard is driven after this many octets, so that connections stay alive meanwhile.
const DRIVE_EVERY: usize = 256 << 10;

fn pieces(end: &End, len: usize, mut work: impl FnMut(usize, &mut [u8])) {
    let mut scratch = [0; PIECE_LEN];
    for start in (0..len).step_by(PIECE_LEN) {
        if start > 0 && start.is_multiple_of(DRIVE_EVERY) {
            end.context.drive();
        }
        let piece = PIECE_LEN.min(len - start);
        work(start, &mut scratch[..piece]);
    }
}

/// Writes the message of `pattern`, `len` octets, to `offset` of `mr`.
pub fn fill(end: &End, mr: &Mr, offset: usize, len: usize, pattern: Pattern) {
    pieces(end, len, |start, scratch| {
        pattern.fill(start, scratch);
        mr.write(offset + start, scratch);
    });
}

/// How many octets of the message at `offset` of `mr` are not those of `pattern`.
#[must_use]
pub fn check(end: &End, mr: &Mr, offset: usize, len: usize, pattern: Pattern) -> u64 {
    let mut wrong = 0;
    pieces(end, len, |start, scratch| {
        mr.read(offset + start, scratch);
        wrong += pattern.mismatches(start, scratch);
    });
    wrong
}
