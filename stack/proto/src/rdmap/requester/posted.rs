//! Requests pass from the send queue to the requester.

use super::entries::{Entry, Progress};
use super::{Rejection, Requester};
use crate::rdmap::operation::SendWr;
use crate::rdmap::send_queue::wqe::{Control, OpcodeSet};
use crate::work_queue::PostError;

/// Operations that are rejected when requests are taken from the send queue: the connection may
/// have changed after they were posted.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Operations that are rejected.
    pub rejected: OpcodeSet,
    /// Reason for the rejection.
    pub reason: Rejection,
}

impl Admission {
    /// Nothing is rejected.
    pub const ALL: Self = Self { rejected: OpcodeSet::NONE, reason: Rejection::WrongState };
}

impl Requester {
    /// Posts a request, which [`Requester::take_posted`] takes. The caller has checked the rights
    /// of the connection.
    ///
    /// # Errors
    /// [`PostError`]; `QueueFull` also if the application posts itself.
    pub fn post(&mut self, wr: &SendWr) -> Result<(), PostError> {
        self.publish_retired();
        let producer = self.producer.as_mut().ok_or(PostError::QueueFull)?;
        let posted = wr.post_to(producer);
        producer.publish();
        posted
    }

    /// Posts a request and takes it.
    #[cfg(test)]
    pub(in crate::rdmap) fn post_and_take(&mut self, wr: &SendWr) {
        self.post(wr).expect("a free place");
        self.take_posted(Admission::ALL, usize::MAX);
    }

    /// True if requests are posted by [`Requester::post`].
    pub(crate) const fn has_producer(&self) -> bool {
        self.producer.is_some()
    }

    /// Takes the next posted requests, at most `max`; returns their number. A rejected one
    /// completes with [`RequestOutcome::Rejected`](super::RequestOutcome::Rejected), after all
    /// requests before it.
    #[inline(always)]
    pub fn take_posted(&mut self, admission: Admission, max: usize) -> usize {
        if self.entries.is_unallocated() && !self.prepare_entries() {
            return 0;
        }
        let unsent = OpcodeSet::LOCAL.union(admission.rejected);
        // Counted down: the loop has no register to spare for the maximum.
        let mut left = max;
        while left > 0
            && let Some((slot, wqe)) = self.sq.take()
        {
            let control = wqe.control();
            // req: DDP-109, RDMAP-003, RDMAP-139, RDMAP-178
            self.entries.push(Entry::new(slot, &wqe));
            if unsent.contains_of(control) {
                self.note_unsent(control, admission);
            }
            left -= 1;
        }
        max - left
    }

    /// Allocates the entries, if there is a first request: true then.
    #[cold]
    fn prepare_entries(&mut self) -> bool {
        if !self.sq.has_published() {
            return false;
        }
        self.entries.allocate(self.sq.count_max());
        true
    }

    /// The request taken last is not sent.
    #[cold]
    fn note_unsent(&mut self, control: Control, admission: Admission) {
        self.local_count += 1;
        if admission.rejected.contains_of(control)
            && let Some(entry) = self.entries.get_mut(self.entries.end - 1)
        {
            entry.progress = Progress::Rejected(admission.reason);
        }
    }

    /// True if a posted request was not taken.
    #[inline]
    pub fn has_posted(&mut self) -> bool {
        self.sq.has_published()
    }

    /// Lets the application use the places of completed requests.
    #[inline]
    pub fn publish_retired(&mut self) {
        self.sq.retire(self.entries.oldest);
    }
}
