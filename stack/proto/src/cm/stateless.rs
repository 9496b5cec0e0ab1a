//! Segments sent without a connection: RST for unmatched segments, and SYN-ACK with a cookie.

use crate::cm::context::Context;
use crate::cm::env::Env;
use crate::device::{Device, TxClass, TxFrame};
use crate::wire::tcp::{Fields, FourTuple};

impl<E: Env> Context<E> {
    /// Sends a segment without payload between the ends of `tuple`, with checksum offload if the
    /// port has it. False if no frame could be allocated.
    pub(crate) fn send_stateless(
        &mut self,
        remote_mac: [u8; 6],
        tuple: FourTuple,
        fields: &Fields,
    ) -> bool {
        let has_descriptor = self.device.tx_free_count() > 0;
        let frame = if has_descriptor { self.device.allocate(TxClass::Control) } else { None };
        let Some(mut frame) = frame else {
            self.verbs.counters.frame_shortages += 1;
            return false;
        };
        let template = self.net.header_template(remote_mac, tuple);
        let mode = self.capabilities.checksum;
        let len = template.emit(frame.buf_mut(), fields, 0, mode);
        frame.set_len(len);
        if mode.is_offloaded() {
            frame.request_checksum(&template.checksum_request(len, mode));
        }
        self.device.transmit(frame);
        self.verbs.counters.frames_out += 1;
        true
    }
}
