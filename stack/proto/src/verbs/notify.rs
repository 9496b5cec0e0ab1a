//! Completion notification: which completions an application can ask to be notified of.

use crate::verbs::wc::{Wc, WcStatus};

/// Which completion is to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next.
    Next,
    /// The next that the peer asked for with a solicited event, or that failed.
    Solicited,
}

impl Wc {
    /// Whoever waits for solicited completions alone is told of this one: the peer asked for it,
    /// or it failed.
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
        Wc {
            wr_id: 0,
            qp: QpId { index: 0, generation: 0 },
            status,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            solicited,
            invalidated: None,
            immediate: None,
        }
    }

    #[test]
    fn completions_in_error_count_as_solicited() {
        assert!(!wc(WcStatus::Success, false).is_solicited());
        assert!(wc(WcStatus::Success, true).is_solicited());
        assert!(wc(WcStatus::Flushed, false).is_solicited());
    }
}
