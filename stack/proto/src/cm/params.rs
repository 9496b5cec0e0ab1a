//! Parameters of connection setup as MPA and full operation take them.

use crate::mpa::startup::{Negotiated, Offer};
use crate::verbs::cm::{CmError, ConnParam, PRIVATE_DATA_LEN_MAX, PrivateData};
use crate::wire::mpa::ENHANCED_LEN;

/// Parameters of full operation.
pub(super) struct StartParams {
    pub(super) negotiated: Negotiated,
    pub(super) revision: u8,
    /// Private data of the peer.
    pub(super) private_data: PrivateData,
    /// RDMA Writes are placed out of order.
    pub(super) ooo_placement: bool,
    /// The local end need not wait for the peer's first FPDU.
    pub(super) tx_allowed: bool,
}

impl StartParams {
    /// Parameters without startup frames: each direction starts independently.
    pub(super) const fn unframed(negotiated: Negotiated, ooo_placement: bool) -> Self {
        let private_data = PrivateData::new();
        Self { negotiated, revision: 0, private_data, ooo_placement, tx_allowed: true }
    }
}

/// Checks that private data fits the startup frame; without startup frames it must be empty.
pub(super) fn check_private_data(data: &[u8], framed: bool, enhanced: bool) -> Result<(), CmError> {
    let len_max = match (framed, enhanced) {
        (false, _) => 0,
        (true, false) => PRIVATE_DATA_LEN_MAX,
        (true, true) => PRIVATE_DATA_LEN_MAX - ENHANCED_LEN,
    };
    if data.len() > len_max { Err(CmError::PrivateDataTooLong) } else { Ok(()) }
}

/// Returns those parameters of a connection that MPA negotiates.
pub(super) const fn mpa_offer(param: &ConnParam) -> Offer {
    Offer {
        ird: param.ird,
        ird_max: param.ird_max,
        ord: param.ord,
        crc: param.crc,
        markers: param.markers,
        peer_to_peer: param.peer_to_peer,
        rtr: param.rtr,
        rdmap_draft00: param.rdmap_draft00,
    }
}
