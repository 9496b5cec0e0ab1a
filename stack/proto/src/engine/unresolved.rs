//! Connections that wait for address resolution, and the next hop of those that transmit.

use crate::connection::schedule::ConnId;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::net::neighbor::Lookup;
use crate::net::next_hop::REFRESH_INTERVAL_NS;
use crate::time::Instant;
use crate::verbs::cm::ConnectError;
use crate::verbs::wc::Completions;

/// Unresolved connections checked in one pass: a bound on the work, however many wait. The rest is
/// checked in the next passes.
const RESOLVES_PER_PASS: usize = 64;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Checks connections that wait for address resolution, and sends the solicitations that are
    /// due.
    #[inline(always)]
    pub(super) fn resolve_next_hops(&mut self, now: Instant) {
        if !self.cx.schedule.unresolved.is_empty() || self.cx.net.has_due_solicits(now) {
            self.check_next_hops(now);
        }
    }

    #[cold]
    fn check_next_hops(&mut self, now: Instant) {
        let epoch = self.cx.net.neighbor_epoch();
        let schedule = &mut self.cx.schedule;
        if !schedule.unresolved.is_empty()
            && (self.resolve_at <= now || self.resolve_epoch != epoch)
        {
            self.resolve_at = now + REFRESH_INTERVAL_NS;
            self.resolve_epoch = epoch;
            schedule.unresolved_due = schedule.unresolved.len();
        }
        for _ in 0..schedule.unresolved_due.min(RESOLVES_PER_PASS) {
            self.cx.schedule.unresolved_due -= 1;
            if let Some(id) = self.cx.schedule.unresolved.pop_front()
                && self.recheck_unresolved(now, id)
            {
                self.cx.schedule.unresolved.push_back(id);
            }
        }
        self.send_solicits(now);
    }

    /// Checks a connection that waits for address resolution; true if it still waits.
    fn recheck_unresolved(&mut self, now: Instant, id: ConnId) -> bool {
        let Some((conn, cx)) = self.by_id(id) else { return false };
        if conn.next_hop.is_resolved() {
            return false;
        }
        let remote = (conn.tcb.tuple().remote.ip(), conn.tcb.remote_mac());
        match cx.net.resolve_next_hop(now, &mut conn.next_hop, remote) {
            Lookup::Found(mac) => {
                conn.tcb.set_remote_mac(mac);
                conn.make_ready(&mut cx.schedule);
                false
            }
            // An established connection stays, and continues if its neighbor replies in time.
            Lookup::Unreachable if !conn.tcp_established => {
                cx.verbs.counters.neighbors_unreachable += 1;
                conn.fail_connect(cx, ConnectError::Unreachable, None);
                self.remove_connection(id.index);
                false
            }
            Lookup::Unreachable | Lookup::Pending => true,
        }
    }
}
