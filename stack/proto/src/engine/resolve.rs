//! Hardware addresses for connections that are about to begin.

use core::net::IpAddr;

use crate::ddp::memory::Memory;
use crate::device::{Device, Pool, TxFrame};
use crate::engine::Engine;
use crate::net::arp;
use crate::net::neighbours::Answer;
use crate::time::{Instant, MILLISECOND};
use crate::verbs::cm::{ConnectError, PrivateData};
use crate::verbs::wc::Completions;

/// Between two looks at the neighbour cache while connections wait for it.
const RESOLVE_INTERVAL_NS: u64 = 10 * MILLISECOND;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Asks for hardware addresses that connections wait for.
    pub(super) fn resolve(&mut self, now: Instant) {
        if self.unresolved.is_empty() || now < self.resolve_at {
            return;
        }
        self.resolve_at = now + RESOLVE_INTERVAL_NS;
        let mut at = 0;
        while let Some(&index) = self.unresolved.get(at) {
            let hop = self
                .connections
                .get(index)
                .filter(|conn| !conn.resolved && !conn.tcb.is_closed())
                .and_then(|conn| self.next_hop(conn.tcb.tuple().remote.ip()));
            let Some(hop) = hop else {
                self.unresolved.swap_remove(at);
                continue;
            };
            match self.neighbours.look_up(now, hop) {
                Answer::Known(mac) => {
                    if let Some(conn) = self.connections.get_mut(index) {
                        conn.resolved = true;
                        conn.tcb.set_remote_mac(mac);
                    }
                    self.make_ready(index);
                    self.unresolved.swap_remove(at);
                }
                Answer::Unreachable => {
                    self.fail_connect(index, ConnectError::TimedOut, PrivateData::new());
                    self.drop_connection(index);
                    self.unresolved.swap_remove(at);
                }
                Answer::Ask => {
                    self.ask_for(hop);
                    at += 1;
                }
                Answer::Wait => at += 1,
            }
        }
    }

    fn ask_for(&mut self, hop: IpAddr) {
        let (IpAddr::V4(us), IpAddr::V4(hop)) = (self.config.address, hop) else { return };
        let mac = self.capabilities.mac;
        if let Some(mut frame) = self.device.allocate(Pool::Control) {
            let len = arp::write_request((us, mac), hop, frame.room());
            frame.set_len(len);
            self.device.transmit(frame);
            self.verbs.counters.frames_out += 1;
        }
    }

    /// Who takes packets for `remote`: itself on our link, else the gateway.
    pub(super) fn next_hop(&self, remote: IpAddr) -> Option<IpAddr> {
        let (IpAddr::V4(us), IpAddr::V4(them)) = (self.config.address, remote) else { return None };
        let shift = 32u32.saturating_sub(u32::from(self.config.prefix_len));
        let differing = u32::from(us) ^ u32::from(them);
        if differing.checked_shr(shift).unwrap_or(0) == 0 {
            Some(remote)
        } else {
            self.config.gateway
        }
    }
}
