//! Events of TCP, as the layers above handle them.

use crate::connection::Connection;
use crate::connection::context::{Context, Env};
use crate::tcp::Event;
use crate::time::Instant;
use crate::verbs::cm::EndReason;

impl<E: Env> Connection<E> {
    pub(crate) fn on_tcp_event(&mut self, cx: &mut Context<E>, now: Instant, event: Event) {
        match event {
            Event::Established => {
                self.on_handshake_complete(cx);
                self.start_unframed(cx, now);
            }
            Event::DataAfterFin => self.on_data_after_fin(cx),
            Event::PeerClosed => {
                self.tcb.release_ooo(&mut cx.pools.ooo);
                // req: MPA-054, MPA-147, MPA-152
                self.on_fin(cx, now);
            }
            // The next FPDU is built for the new EMSS.
            Event::EmssChanged => cx.verbs.counters.emss_changes += 1,
            Event::Reset => self.on_tcp_lost(cx, EndReason::Reset),
            Event::TimedOut => self.on_tcp_lost(cx, EndReason::TimedOut),
            Event::TimeWait => self.on_time_wait(cx),
            Event::R1Exceeded => self.next_hop.mark_suspect(now),
            // The engine's: it concerns the windows of others.
            Event::RcvWndLimited => {}
            Event::Closed => {}
        }
    }
}
