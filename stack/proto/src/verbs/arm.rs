//! Completion queues that tell of a completion, once, when they were asked to.

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

/// What a completion queue was asked to tell of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arm {
    wanted: Option<Notify>,
}

impl Arm {
    /// Tell of the next such completion that is appended from now on. A wish for any completion is
    /// not narrowed by a later one for solicited ones.
    pub const fn arm(&mut self, notify: Notify) {
        if !matches!(self.wanted, Some(Notify::Next)) {
            self.wanted = Some(notify);
        }
    }

    /// A completion was appended: true if it is to be told of. Nothing more is told of then, until
    /// armed again.
    // req: RDMAP-017, RDMAP-174
    #[inline]
    pub const fn tells_of(&mut self, wc: &Wc) -> bool {
        let tells = match self.wanted {
            None => false,
            Some(Notify::Next) => true,
            Some(Notify::Solicited) => wc.is_solicited(),
        };
        if tells {
            self.wanted = None;
        }
        tells
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
    fn each_wish_is_granted_once() {
        let plain = wc(WcStatus::Success, false);
        let solicited = wc(WcStatus::Success, true);
        let failed = wc(WcStatus::Flushed, false);
        let mut arm = Arm::default();
        assert!(!arm.tells_of(&solicited), "nobody asked");
        arm.arm(Notify::Next);
        assert!(arm.tells_of(&plain) && !arm.tells_of(&plain));
        for told in [solicited, failed] {
            arm.arm(Notify::Solicited);
            assert!(!arm.tells_of(&plain) && arm.tells_of(&told) && !arm.tells_of(&told));
        }
        for wishes in [[Notify::Next, Notify::Solicited], [Notify::Solicited, Notify::Next]] {
            wishes.into_iter().for_each(|notify| arm.arm(notify));
            assert!(arm.tells_of(&plain), "the wider wish counts");
        }
    }
}
