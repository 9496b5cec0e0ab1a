//! Close of a connection: gracefully, or at once; and its state meanwhile.

mod end;
mod graceful;
mod terminate_drain;

use crate::time::{Instant, NEVER};
use crate::wire::seq::Seq;

/// Bytes, both directions together, below which a closing connection counts as slow over half of
/// the linger time or more; and how many such checks it may have.
const PROGRESS_MIN: u32 = 4096;
const SLOW_MAX: u8 = 12;

/// State of a connection while it closes. Allocated when the close begins.
#[derive(Debug)]
pub(crate) struct Closing {
    /// The application has closed the connection gracefully, not the peer.
    pub(crate) is_local: bool,
    /// The connection was rejected, or failed before the application decided.
    pub(crate) is_rejected: bool,
    /// Deadline of the graceful close; [`NEVER`] if it has none.
    pub(crate) deadline: Instant,
    /// RCV.NXT when the graceful close began or its deadline last passed.
    pub(crate) last_rcv_nxt: Seq,
    /// Time of the last check of progress, and SND.UNA and RCV.NXT at that time.
    checked_at: Instant,
    checked_una: Seq,
    checked_rcv_nxt: Seq,
    /// RCV.NXT when the queue pair was destroyed: nobody reads what arrives since.
    pub(crate) unread_from: Option<Seq>,
    /// Number of checks with too little progress.
    slow_count: u8,
}

impl Closing {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            is_local: false,
            is_rejected: false,
            deadline: NEVER,
            last_rcv_nxt: Seq(0),
            checked_at: Instant::ZERO,
            checked_una: Seq(0),
            checked_rcv_nxt: Seq(0),
            unread_from: None,
            slow_count: 0,
        })
    }

    /// Checks progress: true if it was too slow too often for the deadline to be extended. A peer
    /// that sends or acknowledges a byte now and then must not hold the connection forever.
    pub(crate) fn is_too_slow(
        &mut self,
        now: Instant,
        linger_ns: u64,
        una: Seq,
        rcv_nxt: Seq,
    ) -> bool {
        if now.since(self.checked_at) >= linger_ns / 2 {
            let progress = (una - self.checked_una).saturating_add(rcv_nxt - self.checked_rcv_nxt);
            self.slow_count = self.slow_count.saturating_add(u8::from(progress < PROGRESS_MIN));
            (self.checked_at, self.checked_una, self.checked_rcv_nxt) = (now, una, rcv_nxt);
        }
        self.slow_count > SLOW_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGER_NS: u64 = 1000;

    /// Returns the number of checks, half of the linger time apart, that a peer passes which moves
    /// `step` bytes between them.
    fn checks_passed(step: u32) -> usize {
        let mut closing = Closing::new();
        let passes = |check: &u32| {
            let now = Instant::from_nanos(u64::from(*check) * LINGER_NS / 2);
            !closing.is_too_slow(now, LINGER_NS, Seq(check * step), Seq(0))
        };
        (1..100).take_while(passes).count()
    }

    #[test]
    fn peer_that_moves_a_byte_now_and_then_is_given_up() {
        assert_eq!(checks_passed(1), usize::from(SLOW_MAX));
        assert_eq!(checks_passed(PROGRESS_MIN), 99);
    }
}
