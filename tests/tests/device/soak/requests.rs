//! Requests that are posted and have not completed: each completes once, in the end.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, bail, ensure};
use ferrowarp::{QpId, Wc, WcStatus};

/// Expected result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// It has to succeed.
    Success,
    /// Its connection is being ended.
    Any,
}

/// Requests of a worker.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    next: u64,
    /// By `wr_id`.
    posted: HashMap<u64, (QpId, Expected)>,
    /// Those of destroyed queue pairs, whose completions may be in a completion queue.
    discarded: HashSet<u64>,
}

impl Requests {
    /// Returns the `wr_id` of a request that is about to be posted.
    pub(crate) fn add(&mut self, qp: QpId, expected: Expected) -> u64 {
        self.next += 1;
        self.posted.insert(self.next, (qp, expected));
        self.next
    }

    /// Removes a request that could not be posted.
    pub(crate) fn cancel(&mut self, wr_id: u64) {
        self.posted.remove(&wr_id);
    }

    /// These may fail: their connection is about to be ended.
    pub(crate) fn expect_any_of(&mut self, wr_ids: &[Vec<u64>]) {
        for wr_id in wr_ids.iter().flatten() {
            if let Some((_, expected)) = self.posted.get_mut(wr_id) {
                *expected = Expected::Any;
            }
        }
    }

    /// Takes a completion.
    pub(crate) fn complete(&mut self, wc: &Wc) -> Result<()> {
        let Some((qp, expected)) = self.posted.remove(&wc.wr_id) else {
            if self.discarded.remove(&wc.wr_id) {
                return Ok(());
            }
            bail!("completed twice, or never posted: {wc:?}");
        };
        ensure!(qp == wc.qp, "posted to {qp:?}: {wc:?}");
        ensure!(expected == Expected::Any || wc.status == WcStatus::Success, "{wc:?}");
        Ok(())
    }

    /// Returns whether none of these is outstanding.
    pub(crate) fn are_done(&self, wr_ids: &[u64]) -> bool {
        wr_ids.iter().all(|wr_id| !self.posted.contains_key(wr_id))
    }

    /// The requests have been discarded with their queue pair: their completions may come or not,
    /// until [`Self::end_discarded`].
    pub(crate) fn discard(&mut self, wr_ids: impl IntoIterator<Item = u64>) {
        for wr_id in wr_ids {
            if self.posted.remove(&wr_id).is_some() {
                self.discarded.insert(wr_id);
            }
        }
    }

    /// No completion of a discarded request is left in any queue.
    pub(crate) fn end_discarded(&mut self) {
        self.discarded.clear();
    }

    /// Returns the number of outstanding requests.
    pub(crate) fn outstanding(&self) -> usize {
        self.posted.len()
    }
}

#[cfg(test)]
mod tests {
    use ferrowarp::WcOpcode;

    use super::*;

    const QP: QpId = QpId { index: 1, generation: 2 };

    fn wc(wr_id: u64, status: WcStatus) -> Wc {
        Wc::new(wr_id, QP, status, WcOpcode::Send)
    }

    #[test]
    fn second_completion_of_a_request_is_an_error() {
        let mut requests = Requests::default();
        let wr_id = requests.add(QP, Expected::Success);
        assert!(!requests.are_done(&[wr_id]));
        requests.complete(&wc(wr_id, WcStatus::Success)).unwrap();
        assert!(requests.are_done(&[wr_id]));
        assert!(requests.complete(&wc(wr_id, WcStatus::Success)).is_err());
    }

    #[test]
    fn only_requests_of_ending_connections_may_fail() {
        let mut requests = Requests::default();
        let (first, second) =
            (requests.add(QP, Expected::Success), requests.add(QP, Expected::Success));
        assert!(requests.complete(&wc(first, WcStatus::Flushed)).is_err());
        requests.expect_any_of(&[vec![second]]);
        requests.complete(&wc(second, WcStatus::Flushed)).unwrap();
    }

    #[test]
    fn discarded_requests_may_complete_once_or_not() {
        let mut requests = Requests::default();
        let ids = [requests.add(QP, Expected::Any), requests.add(QP, Expected::Any)];
        requests.discard(ids);
        assert_eq!(requests.outstanding(), 0);
        requests.complete(&wc(ids[0], WcStatus::Flushed)).unwrap();
        assert!(requests.complete(&wc(ids[0], WcStatus::Flushed)).is_err());
        requests.end_discarded();
        assert!(requests.complete(&wc(ids[1], WcStatus::Flushed)).is_err());
    }
}
