//! ICMP errors received about segments sent.

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::net::icmp_error::{IcmpError, IcmpErrorKind};
use crate::tcp::{State, TooBig};
use crate::time::Instant;
use crate::verbs::cm::ConnectError;
use crate::verbs::wc::Completions;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Processes a well-formed ICMP error about a TCP segment.
    ///
    /// An error is accepted only if the sequence number in it is outstanding, within
    /// SND.UNA..SND.NXT (RFC 5927 section 4.1). "Packet too big" lowers the path MTU. Any other
    /// error leaves an established connection alone, whatever the code (RFC 5461, RFC 5927 section
    /// 5): its timers decide. An attempt to connect ends at once if the host reports that the port
    /// or the protocol is unreachable (RFC 1122 section 4.2.3.9). Other errors may be transient,
    /// and only become the reason if it fails in the end. Both are reported as
    /// [`ConnectError::Unreachable`].
    pub(super) fn on_icmp_error(&mut self, now: Instant, error: &IcmpError) {
        if self.forward_icmp_error(error) {
            return;
        }
        if self.apply_icmp_error(now, error) {
            self.cx.verbs.counters.icmp_errors_in += 1;
        } else {
            self.cx.verbs.counters.icmp_errors_ignored += 1;
        }
    }

    /// Applies an ICMP error to its connection; false if it is ignored.
    fn apply_icmp_error(&mut self, now: Instant, error: &IcmpError) -> bool {
        let IcmpError { kind: cause, tuple, seq, ack, packet_len } = *error;
        let Some(index) = self.connections.find_by_hash(&tuple) else { return false };
        let Self { connections, cx, limits, .. } = self;
        let Some(conn) = connections.get_mut(index) else { return false };
        // Match first: an off-path attacker without valid numbers must not use up the rate limit.
        if !conn.tcb.matches_outstanding(seq, ack) || !limits.icmp_errors_in.admits(now) {
            return false;
        }
        match cause {
            IcmpErrorKind::PacketTooBig { mtu } => {
                if !conn.tcb.packet_too_big(now, &TooBig { seq, ack, mtu, packet_len }) {
                    return false;
                }
                conn.make_ready(&mut cx.schedule);
                self.handle_tcp_events_and_arm(now, index);
            }
            IcmpErrorKind::SourceQuench => return false,
            _ if conn.tcb.state() != State::SynSent => {}
            _ if cause.is_hard() => {
                conn.fail_connect(cx, ConnectError::Unreachable, None);
                conn.abort(cx);
                self.handle_tcp_events_and_arm(now, index);
            }
            _ => conn.unreachable = true,
        }
        true
    }
}
