//! Lookup of the request to which a received Terminate refers.

use super::{Entry, Progress, Requester};
use crate::ddp::regions::Stag;
use crate::rdmap::send_queue::wqe::WqeOpcode;
use crate::wire::ddp::{Header, Version};
use crate::wire::rdmap::{Opcode, QN_READ_REQUEST, QN_SEND};
use crate::wire::seq::Seq;
use crate::wire::terminate::{LAYER_DDP, Terminate};

/// Error type of DDP's Tagged Buffer Errors.
const ETYPE_TAGGED_BUFFER: u8 = 1;

impl Requester {
    /// Returns the request to which a received Terminate refers, numbered as by
    /// [`Requester::oldest_number`]: a Write by its STag and offset, a Read or atomic operation by
    /// its MSN. `None` if its completion was already reported, as Sends and Writes mostly are
    /// once they are built, or if there is no such request. A Terminate without a DDP header refers
    /// to the oldest request (the oldest Write if it is a Tagged Buffer Error) that was sent, at
    /// least in part, and is not done.
    #[cold]
    #[must_use]
    pub fn terminated_request(&self, terminate: &Terminate, version: Version) -> Option<u64> {
        let header = terminate.ddp_header();
        if header.is_empty() {
            let is_tagged =
                (terminate.layer, terminate.error_type) == (LAYER_DDP, ETYPE_TAGGED_BUFFER);
            return self.oldest_outstanding(|opcode| !is_tagged || opcode.is_write());
        }
        match Header::parse(header, version).ok()? {
            Header::Tagged(header) => match Opcode::parse(header.rsvd_ulp, version) {
                Ok(Opcode::Write) => self.find_write(header.stag, header.to),
                _ => None,
            },
            Header::Untagged(header) if header.qn == QN_READ_REQUEST => {
                let waiting = u32::try_from(self.outstanding.len()).ok()?;
                let index = Seq(header.msn) - (self.read_msn - waiting);
                self.outstanding.get(usize::try_from(index).ok()?).copied()
            }
            Header::Untagged(header) if header.qn == QN_SEND => {
                self.oldest_outstanding(|opcode| !opcode.is_write() && !opcode.is_answered())
            }
            Header::Untagged(_) => None,
        }
    }

    /// Returns the oldest Write to this STag and offset that was sent, at least in part, and not
    /// reported.
    fn find_write(&self, stag: Stag, to: u64) -> Option<u64> {
        let unbuilt = self.entries.unbuilt();
        let is_written = unbuilt.is_some_and(|entry| entry.progress == Progress::WriteBuilt);
        let begun = u64::from(self.offset > 0 || is_written);
        let matches = |entry: &Entry| {
            let wqe = entry.wqe(&self.sq);
            let len = u64::from(entry.len.max(1));
            entry.opcode().is_write()
                && wqe.stag() == stag
                && to.wrapping_sub(wqe.remote()) < len
                && !matches!(entry.progress, Progress::Rejected(_))
        };
        let mut numbers = self.entries.oldest..self.entries.next_to_build + begun;
        numbers.find(|&number| self.entries.get(number).is_some_and(matches))
    }

    /// Returns the oldest matching request that was sent, at least in part, and is not done.
    fn oldest_outstanding(&self, matches: impl Fn(WqeOpcode) -> bool) -> Option<u64> {
        let is_begun = |number: u64, progress: Progress| match progress {
            Progress::Reading { .. } | Progress::Atomic { .. } | Progress::WriteBuilt => true,
            Progress::Queued => number == self.entries.next_to_build && self.offset > 0,
            Progress::Built
            | Progress::Answered
            | Progress::LocalOpFailed(_)
            | Progress::Failed
            | Progress::Rejected(_) => false,
        };
        let mut numbers = self.entries.oldest..self.entries.end;
        numbers.find(|&number| {
            let entry = self.entries.get(number);
            entry.is_some_and(|entry| is_begun(number, entry.progress) && matches(entry.opcode()))
        })
    }
}
