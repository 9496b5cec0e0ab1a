//! Send side variables, and control segments that are pending.

use crate::wire::seq::Seq;

/// State of our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Fin {
    /// Not requested.
    None,
    /// To be sent or retransmitted.
    Due,
    /// Sent.
    Sent,
    /// Acknowledged.
    Acked,
}

/// Send sequence variables (RFC 9293 section 3.3.1).
#[derive(Debug)]
pub(in crate::tcp) struct SndVars {
    /// SND.UNA: oldest sequence number not acknowledged.
    pub(in crate::tcp) una: Seq,
    /// SND.NXT: next sequence number to send.
    pub(in crate::tcp) nxt: Seq,
    /// SND.WND: the peer's window, scaled.
    pub(in crate::tcp) wnd: u32,
    /// SND.WL1: sequence number of the segment that last updated the window. SND.WL2, its
    /// acknowledgment number, is `una`: an acceptable acknowledgment that advances SND.UNA also
    /// updates the window.
    pub(in crate::tcp) wl1: Seq,
    /// Largest window that the peer has advertised.
    pub(in crate::tcp) max_wnd: u32,
    /// Shift of the window field in segments received.
    pub(in crate::tcp) wscale: u8,
    /// Segment size: the lesser of the peer's MSS and the link's, TCP options not deducted.
    pub(in crate::tcp) mss: u16,
    /// State of our FIN.
    pub(in crate::tcp) fin: Fin,
}

/// Our SYN and FIN.
#[derive(Debug)]
pub(in crate::tcp) struct Local {
    /// ISS: initial send sequence number.
    pub(in crate::tcp) iss: Seq,
    /// Sequence number of the FIN, once sent.
    pub(in crate::tcp) fin_seq: Option<Seq>,
}

/// Segments without payload to be sent, apart from ACK and FIN.
#[derive(Debug, Default)]
pub(in crate::tcp) struct Pending {
    /// SYN or SYN-ACK.
    pub(in crate::tcp) syn: bool,
    /// RST that ends the connection.
    pub(in crate::tcp) reset: bool,
    /// RST with this sequence number, in reply to an unacceptable acknowledgment; state is kept.
    pub(in crate::tcp) stray_reset: Option<Seq>,
    /// Zero-window or keepalive probe: a segment below the peer's window, which the peer answers
    /// with an ACK.
    pub(in crate::tcp) probe: bool,
    /// Tail loss probe.
    pub(in crate::tcp) tlp: bool,
}

impl Pending {
    pub(in crate::tcp) const fn any(&self) -> bool {
        self.syn || self.reset || self.stray_reset.is_some() || self.probe || self.tlp
    }
}

impl SndVars {
    pub(in crate::tcp) const fn new(iss: Seq, mss: u16) -> Self {
        Self { una: iss, nxt: iss, wnd: 0, wl1: Seq(0), max_wnd: 0, wscale: 0, mss, fin: Fin::None }
    }

    /// Makes our FIN due again, if it was sent and is not acknowledged; true if so.
    pub(in crate::tcp) fn resend_fin(&mut self) -> bool {
        let is_outstanding = self.fin == Fin::Sent;
        if is_outstanding {
            self.fin = Fin::Due;
        }
        is_outstanding
    }

    /// FlightSize: bytes sent and not acknowledged, the FIN included.
    #[inline]
    pub(in crate::tcp) fn flight(&self) -> u32 {
        self.nxt - self.una
    }

    /// Bytes that the window admits beyond SND.NXT.
    #[inline]
    pub(in crate::tcp) fn usable(&self) -> u32 {
        u32::try_from((self.una + self.wnd).distance(self.nxt)).unwrap_or(0)
    }

    /// Updates the window from an acceptable segment (RFC 9293 section 3.10.7.4, SND.WL1 and WL2),
    /// if that is newer: it advances SND.UNA (`moved`), or else its sequence number is not older. A
    /// retransmission has an old sequence number; but if its acknowledgment advanced SND.UNA and
    /// the window was not updated, the window would seem to reach beyond what the peer allows.
    #[inline]
    pub(in crate::tcp) fn update_window(&mut self, seq: Seq, moved: bool, window: u32) {
        if moved || self.wl1 <= seq {
            self.wnd = window;
            self.wl1 = seq;
            self.max_wnd = self.max_wnd.max(window);
        }
    }
}
