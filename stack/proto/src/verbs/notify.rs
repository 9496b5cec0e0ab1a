//! Completion notification (verbs: `ibv_req_notify_cq`).

use crate::verbs::wc::{Wc, WcStatus};

/// Completions that trigger a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next completion.
    Next,
    /// The next solicited completion (verbs: `solicited_only`): one with solicited event, or in
    /// error.
    Solicited,
}

impl Wc {
    /// True for a solicited completion: the peer requested an event, or the request failed.
    #[must_use]
    pub const fn is_solicited(&self) -> bool {
        self.solicited || !matches!(self.status, WcStatus::Success)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::wc::{QpId, WcOpcode};

    const fn wc(status: WcStatus, solicited: bool) -> Wc {
        let qp = QpId { index: 0, generation: 0 };
        Wc { solicited, ..Wc::new(0, qp, status, WcOpcode::Recv) }
    }

    #[test]
    fn completions_in_error_count_as_solicited() {
        assert!(!wc(WcStatus::Success, false).is_solicited());
        assert!(wc(WcStatus::Success, true).is_solicited());
        assert!(wc(WcStatus::Flushed, false).is_solicited());
    }
}
