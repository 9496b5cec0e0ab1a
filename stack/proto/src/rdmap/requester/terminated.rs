//! Lookup of the request to which a received Terminate refers.

use super::{Progress, Requester};
use crate::ddp::regions::Stag;
use crate::rdmap::operation::Operation;
use crate::wire::ddp::{Header, Version};
use crate::wire::rdmap::{Opcode, QN_READ_REQUEST, QN_SEND};
use crate::wire::seq::Seq;
use crate::wire::terminate::{LAYER_DDP, Terminate};

/// Error type of DDP's Tagged Buffer Errors.
const ETYPE_TAGGED_BUFFER: u8 = 1;

impl Requester {
    /// Returns the request to which a received Terminate refers, numbered as by
    /// [`Requester::oldest_number`]: a Write by its STag and offset, a Read or atomic operation by
    /// its MSN. `None` if its completion was already reported, as for Sends and Writes once they
    /// are built, or if there is no such request. A Terminate without a DDP header refers to the
    /// oldest request (the oldest Write if it is a Tagged Buffer Error) that was sent, at least in
    /// part, and is not done.
    #[cold]
    #[must_use]
    pub fn terminated_request(&self, terminate: &Terminate, version: Version) -> Option<u64> {
        let header = terminate.ddp_header();
        if header.is_empty() {
            let is_tagged =
                (terminate.layer, terminate.error_type) == (LAYER_DDP, ETYPE_TAGGED_BUFFER);
            return self.oldest_outstanding(|operation| !is_tagged || is_write(operation));
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
            Header::Untagged(header) if header.qn == QN_SEND => self
                .oldest_outstanding(|operation| !is_write(operation) && !operation.is_answered()),
            Header::Untagged(_) => None,
        }
    }

    /// Returns the oldest Write to this STag and offset that was sent, at least in part, and not
    /// reported.
    fn find_write(&self, stag: Stag, to: u64) -> Option<u64> {
        let is_written = self
            .queue
            .get(self.built_count)
            .is_some_and(|entry| entry.progress == Progress::WriteBuilt);
        let begun = self.built_count + usize::from(self.offset > 0 || is_written);
        let index =
            self.queue.iter().take(begun).position(|entry| match entry.request.operation {
                Operation::Write { rkey, remote, .. }
                | Operation::WriteImmediate { rkey, remote, .. } => {
                    rkey == stag && to.wrapping_sub(remote) < entry.request.len.max(1)
                }
                _ => false,
            })?;
        Some(self.popped_count + index as u64)
    }

    /// Returns the oldest matching request that was sent, at least in part, and is not done.
    fn oldest_outstanding(&self, matches: impl Fn(&Operation) -> bool) -> Option<u64> {
        let is_begun = |index: usize, progress: Progress| match progress {
            Progress::Reading { .. } | Progress::Atomic { .. } | Progress::WriteBuilt => true,
            Progress::Queued => index == self.built_count && self.offset > 0,
            Progress::Built
            | Progress::Answered
            | Progress::LocalOpFailed(_)
            | Progress::Failed => false,
        };
        let mut queue = self.queue.iter().enumerate();
        let (index, _) = queue.find(|(index, entry)| {
            is_begun(*index, entry.progress) && matches(&entry.request.operation)
        })?;
        Some(self.popped_count + index as u64)
    }
}

const fn is_write(operation: &Operation) -> bool {
    matches!(operation, Operation::Write { .. } | Operation::WriteImmediate { .. })
}
