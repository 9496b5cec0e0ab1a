//! A TCP endpoint whose segments a test makes by hand.

use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::wire::ethernet::EthernetLink;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Fields, Flags, FourTuple, HeaderTemplate, Options};

/// MAC addresses of the peer and of the engine.
pub const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// See the [module's documentation](self).
pub struct TcpPeer {
    /// Ethernet and IP headers of its frames, and its ports.
    pub template: HeaderTemplate,
    /// Four-tuple from the peer's side: local is the peer.
    pub tuple: FourTuple,
    /// SND.NXT.
    pub snd_nxt: Seq,
    /// RCV.NXT.
    pub rcv_nxt: Seq,
    /// Advertised window, as in the header.
    pub rcv_wnd: u16,
}

impl TcpPeer {
    /// Creates an endpoint without a connection, with an initial sequence number.
    #[must_use]
    pub fn new(tuple: FourTuple, iss: Seq) -> Self {
        Self::with_link(EthernetLink::without_vlan(MACS[0]), tuple, iss)
    }

    /// As [`TcpPeer::new`], with a MAC address and VLAN of its own.
    #[must_use]
    pub fn with_link(link: EthernetLink, tuple: FourTuple, iss: Seq) -> Self {
        let template = HeaderTemplate::with_link(link, MACS[1], tuple);
        Self { template, tuple, snd_nxt: iss, rcv_nxt: Seq(0), rcv_wnd: 0xffff }
    }

    /// The header fields of its next segment.
    #[must_use]
    pub fn fields(&self, flags: Flags, options: Options) -> Fields {
        let (seq, ack, window) = (self.snd_nxt, self.rcv_nxt, self.rcv_wnd);
        Fields { seq, ack, flags, window, options, ..Fields::default() }
    }

    /// A frame with a segment.
    #[must_use]
    pub fn build_frame(&self, fields: &Fields, payload: &[u8]) -> Vec<u8> {
        let header_len = self.template.base_len() + fields.options.wire_len();
        let mut frame = vec![0; header_len + payload.len()];
        frame[header_len..].copy_from_slice(payload);
        self.template.emit(&mut frame, fields, payload.len(), ChecksumMode::Software);
        frame
    }
}
