//! What routers and hosts report of packets sent.

use crate::ddp::memory::Memory;
use crate::device::{Device, RxFrame};
use crate::engine::Engine;
use crate::net::icmp_error::{IcmpError, IcmpErrorKind, ParseError};
use crate::tcp::{State, TooBig};
use crate::time::Instant;
use crate::verbs::cm::ConnectError;
use crate::verbs::wc::{Completions, QpId};
use crate::wire::ethernet::VLAN_ETHERNET_LEN;

/// Longest frame of an error message: routers quote up to the least MTU of IPv6 (RFC 4443
/// section 2.4 (c)).
const FRAME_LEN_MAX: usize = VLAN_ETHERNET_LEN + 1280;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Takes a frame of ICMP or ICMPv6 to us, whose IP header is at `l3`. False if it is no error
    /// message, and may be something else of use.
    ///
    /// An error is believed only about a segment that is under way (RFC 5927 section 4.1). "Packet
    /// too big" fits the connection's segments to the path. Everything else leaves an established
    /// connection alone, whatever the code (RFC 5461, RFC 5927 section 5): its timers decide. An
    /// attempt to connect ends at once if the host says that nobody is at the port or that it does
    /// not speak TCP (RFC 1122 section 4.2.3.9); other errors may pass, and only say why if it
    /// fails in the end. Both are reported as [`ConnectError::Unreachable`].
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

    /// False if it is refused.
    fn apply_icmp_error(&mut self, now: Instant, error: &IcmpError) -> bool {
        let IcmpError { kind: cause, tuple, seq, ack, packet_len } = *error;
        let Some(index) = self.lookup(&tuple) else { return false };
        let Some(conn) = self.connections.get_mut(index) else { return false };
        // Only what may be meant counts: whoever knows of no connection has no part in the limit.
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

    /// EMSS of a queue pair's connection: bytes of a full segment's payload. Changes as the path
    /// does; FPDUs are made for what it is when they are built. `None` without a connection.
    #[must_use]
    pub fn emss(&self, qp: QpId) -> Option<usize> {
        let index = self.verbs.index(qp)?;
        let conn = self.verbs.get(index)?.conn?;
        Some(self.connections.get(conn)?.tcb.emss())
    }
}
