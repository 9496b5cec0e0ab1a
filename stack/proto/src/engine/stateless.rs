//! Segments that leave without a connection: RST for what matches none, and SYN-ACK with a cookie.

use crate::ddp::memory::Memory;
use crate::device::{ChecksumMode, Device, Pool, TxFrame};
use crate::engine::Engine;
use crate::verbs::wc::Completions;
use crate::wire::tcp::{Fields, FourTuple};

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Sends a segment without payload between the ends of `tuple`, its checksums as the port has
    /// them. False if there is no frame to be had.
    pub(super) fn send_stateless(
        &mut self,
        remote_mac: [u8; 6],
        tuple: FourTuple,
        fields: &Fields,
    ) -> bool {
        let has_room = self.device.transmit_room() > 0;
        let frame = if has_room { self.device.allocate(Pool::Control) } else { None };
        let Some(mut frame) = frame else {
            self.verbs.counters.frame_shortages += 1;
            return false;
        };
        let template = self.template(remote_mac, tuple);
        let mode = self.capabilities.checksum;
        let len = template.emit(frame.room(), fields, 0, mode);
        frame.set_len(len);
        if mode == ChecksumMode::Offload {
            let (l2, l3) = template.layer_lens();
            frame.request_checksum(l2, l3, len - l2 - l3);
        }
        self.device.transmit(frame);
        self.verbs.counters.frames_out += 1;
        true
    }
}
