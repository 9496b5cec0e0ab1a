//! ICMP errors received about segments sent.

use crate::ddp::memory::Memory;
use crate::device::{Device, RxFrame};
use crate::engine::Engine;
use crate::net::icmp_error::{IcmpError, IcmpErrorKind, ParseError};
use crate::tcp::{State, TooBig};
use crate::time::Instant;
use crate::verbs::cm::ConnectError;
use crate::verbs::wc::{Completions, QpId};
use crate::wire::ethernet::VLAN_ETHERNET_LEN;

/// Longest frame of an ICMP error: routers quote up to the minimum MTU of IPv6 (RFC 4443 section
/// 2.4 (c)).
const FRAME_LEN_MAX: usize = VLAN_ETHERNET_LEN + 1280;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Processes an ICMP or ICMPv6 packet to this host, whose IP header is at `l3`. False if it is
    /// no error message, and may be another message.
    ///
    /// An error is accepted only if the sequence number in it is outstanding, within
    /// SND.UNA..SND.NXT (RFC 5927 section 4.1). "Packet too big" lowers the path MTU. Any other
    /// error leaves an established connection alone, whatever the code (RFC 5461, RFC 5927 section
    /// 5): its timers decide. An attempt to connect ends at once if the host reports that the port
    /// or the protocol is unreachable (RFC 1122 section 4.2.3.9). Other errors may be transient,
    /// and only become the reason if it fails in the end. Both are reported as
    /// [`ConnectError::Unreachable`].
    pub(super) fn on_icmp_error(&mut self, now: Instant, frame: &D::Rx, l3: usize) -> bool {
        if frame.len() > FRAME_LEN_MAX {
            return false;
        }
        let mut bytes = [0; FRAME_LEN_MAX];
        let whole = if frame.head().len() == frame.len() {
            frame.head()
        } else {
            let whole = &mut bytes[..frame.len()];
            frame.copy_out(0, whole);
            whole
        };
        let error = match IcmpError::parse(whole.get(l3..).unwrap_or(&[])) {
            Err(ParseError::NotError) => return false,
            Err(_) => None,
            Ok(error) => Some(error),
        };
        if error.is_some_and(|error| self.apply_icmp_error(now, &error)) {
            self.verbs.counters.icmp_errors_in += 1;
        } else {
            self.verbs.counters.icmp_errors_ignored += 1;
        }
        true
    }

    /// Applies an ICMP error to its connection; false if it is ignored.
    fn apply_icmp_error(&mut self, now: Instant, error: &IcmpError) -> bool {
        let IcmpError { kind: cause, tuple, seq, ack, packet_len } = *error;
        let Some(index) = self.lookup(&tuple) else { return false };
        let Some(conn) = self.connections.get_mut(index) else { return false };
        // Match first: an off-path attacker without valid numbers must not use up the rate limit.
        if !conn.tcb.matches_outstanding(seq, ack) || !self.icmp_error_in_limit.admits(now) {
            return false;
        }
        match cause {
            IcmpErrorKind::PacketTooBig { mtu } => {
                if !conn.tcb.packet_too_big(now, &TooBig { seq, ack, mtu, packet_len }) {
                    return false;
                }
                self.handle_tcp_events_and_arm(now, index);
                self.make_ready(index);
            }
            IcmpErrorKind::SourceQuench => return false,
            _ if conn.tcb.state() != State::SynSent => {}
            _ if cause.is_hard() => {
                self.fail_connect(index, ConnectError::Unreachable, None);
                self.abort(index);
                self.handle_tcp_events_and_arm(now, index);
            }
            _ => conn.unreachable = true,
        }
        true
    }

    /// Returns the EMSS of a queue pair's connection: payload bytes of a full segment. It changes
    /// with the path MTU; an FPDU is sized for its value when it is built. `None` without a
    /// connection.
    #[must_use]
    pub fn emss(&self, qp: QpId) -> Option<usize> {
        let index = self.verbs.index(qp)?;
        let conn = self.verbs.get(index)?.conn?;
        Some(self.connections.get(conn)?.tcb.emss())
    }
}
