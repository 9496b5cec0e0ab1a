//! ECN of a connection: CE marks and ECE received, and the response to them.

use super::Reduced;
use crate::device::{Retained, RxFrame};
use crate::tcp::recovery::state::CaState;
use crate::tcp::tcb::Tcb;
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{Ecn, Fields, Flags, Options, Segment};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Processes CE and ECE of an acceptable segment on a connection with ECN. To be called before
    /// `seg.ack` advances SND.UNA.
    pub(in crate::tcp) fn process_ecn(&mut self, seg: &Segment) {
        if !seg.payload.is_empty() {
            self.process_ce(seg);
        }
        if seg.ack < self.snd.una {
            return;
        }
        if seg.ack > self.ecn.reduced_at {
            self.ecn.reduced = Reduced::No;
        }
        let echoes = seg.flags.has(Flags::ECE);
        self.cc.observe(self.snd.una, seg.ack, self.snd.nxt, echoes);
        if echoes {
            self.on_ece();
        }
    }

    /// Processes CE as the receiver: ECE from CE until CWR is received (RFC 3168 section 6.1.3), or
    /// ECE as CE (RFC 8257 section 3.2).
    fn process_ce(&mut self, seg: &Segment) {
        let marked = seg.ecn == Ecn::Ce;
        if marked {
            self.stats.record().ce_in += 1;
        }
        if self.ecn.dctcp_echo {
            let pending = (self.rcv.nxt != self.rcv.last_ack_sent).then_some(self.rcv.nxt);
            if self.ecn.update_dctcp_echo(marked, pending) {
                // At once, and as a pure ACK: the peer counts the bytes acknowledged with ECE.
                self.rcv.ack_now = true;
                self.rcv.pure_ack = true;
            }
            return;
        }
        if seg.flags.has(Flags::CWR) {
            self.ecn.ece = Flags::default();
        }
        if marked {
            self.ecn.ece = Flags::ECE;
        }
    }

    /// Processes ECE as the sender: reduces the window as for a loss, without retransmission. Once
    /// for all data sent before a reduction, one for loss included (RFC 3168 section 6.1.2).
    #[cold]
    fn on_ece(&mut self) {
        self.stats.record().ece_in += 1;
        // ACKs with ECE do not grow the window.
        self.cc.cwnd_limited = false;
        if self.ecn.reduced != Reduced::No || self.recovery.ca_state != CaState::Open {
            return;
        }
        self.stats.record().ece_reductions += 1;
        self.ecn.on_window_reduced(self.snd.nxt, Reduced::ForEce);
        let flight = self.loss_flight(self.snd.una, self.snd.flight());
        self.cc.on_ece(flight, u32::from(self.emss));
    }

    /// Fields of an ACK of `ack` with ECE as it was then, and the window as advertised since.
    #[cold]
    pub(in crate::tcp) fn owed_ack_fields(&self, now: Instant, ack: Seq, echo: Flags) -> Fields {
        let window = (self.rcv.adv - ack) >> self.rcv.wscale;
        Fields {
            seq: self.snd.nxt,
            ack,
            flags: Flags::ACK | echo,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            options: Options::timestamps(self.timestamps(now)),
            ..Fields::default()
        }
    }
}
