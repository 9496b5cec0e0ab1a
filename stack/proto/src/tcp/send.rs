//! The send side's variables.

use crate::wire::seq::Seq;

/// Our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fin {
    /// Not asked for.
    None,
    /// To be sent, or to be sent again.
    Due,
    /// Sent.
    Sent,
    /// Acknowledged.
    Acked,
}

/// Send variables (RFC 9293 section 3.3.1).
#[derive(Debug)]
pub(super) struct SndVars {
    /// Oldest sequence number not acknowledged.
    pub(super) una: Seq,
    /// Next sequence number to send.
    pub(super) nxt: Seq,
    /// Window, scaled up.
    pub(super) wnd: u32,
    /// Sequence number of the segment that last updated the window. Its acknowledgment number,
    /// SND.WL2, is `una`: each that is acceptable becomes that, and updates the window if it moves.
    pub(super) wl1: Seq,
    /// Largest window seen.
    pub(super) max_wnd: u32,
    /// Shift of the window field in segments received.
    pub(super) wscale: u8,
    /// Segment size: the lesser of the peer's and the link's, TCP options not taken off.
    pub(super) mss: u16,
    /// Our FIN.
    pub(super) fin: Fin,
}

/// Our SYN and FIN.
#[derive(Debug)]
pub(super) struct Local {
    /// Initial send sequence number.
    pub(super) iss: Seq,
    /// Where the FIN is, once sent.
    pub(super) fin_seq: Option<Seq>,
}

impl SndVars {
    pub(super) const fn new(iss: Seq, mss: u16) -> Self {
        Self { una: iss, nxt: iss, wnd: 0, wl1: Seq(0), max_wnd: 0, wscale: 0, mss, fin: Fin::None }
    }

    /// Bytes sent and not acknowledged, FIN included.
    #[inline]
    pub(super) fn flight(&self) -> u32 {
        self.nxt - self.una
    }

    /// Bytes the window admits beyond `nxt`.
    #[inline]
    pub(super) fn usable(&self) -> u32 {
        u32::try_from((self.una + self.wnd).distance(self.nxt)).unwrap_or(0)
    }

    /// Takes the window of an acceptable segment (RFC 9293 section 3.10.7.4, SND.WL1 and WL2),
    /// if it is the newer one: its acknowledgment `on_advance`, or else by its sequence number.
    /// Bytes sent again are old by their number, but if their acknowledgment moved SND.UNA alone,
    /// the window would seem to reach beyond what the peer allows.
    #[inline]
    pub(super) fn update_window(&mut self, seq: Seq, moved: bool, window: u32) {
        if moved || self.wl1 <= seq {
            self.wnd = window;
            self.wl1 = seq;
            self.max_wnd = self.max_wnd.max(window);
        }
    }
}
