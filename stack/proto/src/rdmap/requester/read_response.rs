//! Requester of Reads: handles Read Responses.

use super::{Progress, Requester};
use crate::ddp::memory::MemoryFault;
use crate::ddp::regions::Stag;
use crate::ddp::sgl::Sge;
use crate::wire::ddp::Tagged;

impl Requester {
    /// Checks a segment of a Read Response against the oldest outstanding request: it has to
    /// continue the response to that Read without a gap. Returns the sink's STag for placement, or
    /// `None` if that request is not a Read or there is none.
    ///
    /// # Errors
    /// [`MemoryFault`] if STag, offset or length do not match the Read.
    pub fn check_read_response(
        &mut self,
        header: &Tagged,
        len: usize,
    ) -> Result<Option<Stag>, MemoryFault> {
        let Some((sink, &mut received)) = self.oldest_sink() else { return Ok(None) };
        let end = u64::from(received) + len as u64;
        // STag and offset of a segment without payload are not checked (RFC 5041 section 5.2).
        if len > 0 {
            // req: RDMAP-163
            if header.stag != sink.lkey {
                return Err(MemoryFault::InvalidStag);
            }
            // req: RDMAP-082
            if header.to.checked_add(len as u64).is_none() {
                return Err(MemoryFault::Wrap);
            }
            // req: RDMAP-166
            if header.to != sink.addr.wrapping_add(u64::from(received)) {
                return Err(MemoryFault::Bounds);
            }
        }
        // req: RDMAP-166
        if end > u64::from(sink.len) || (header.last && end != u64::from(sink.len)) {
            return Err(MemoryFault::Bounds);
        }
        Ok(Some(sink.lkey))
    }

    /// Returns the sink of the oldest outstanding request if it is a Read, and how many bytes of
    /// the response have been placed.
    #[inline]
    pub fn oldest_sink(&mut self) -> Option<(Sge, &mut u32)> {
        let number = *self.outstanding.front()?;
        let entry = self.entries.get_mut(number)?;
        let sink = entry.wqe(&self.sq).first_sge();
        let Progress::Reading { received } = &mut entry.progress else { return None };
        Some((sink, received))
    }

    /// Counts a placed segment of a Read Response; true if it completed the Read.
    pub fn on_response_placed(&mut self, len: usize, last: bool) -> bool {
        let Some(&number) = self.outstanding.front() else { return false };
        let Some(entry) = self.entries.get_mut(number) else { return false };
        let Progress::Reading { received } = entry.progress else { return false };
        // req: RDMAP-039, RDMAP-210, RDMAP-219, RDMAP-223
        if last {
            entry.progress = Progress::Answered;
            self.outstanding.pop_front();
        } else {
            let len = u32::try_from(len).expect("expect_response limits it to the sink");
            entry.progress = Progress::Reading { received: received + len };
        }
        last
    }
}
