//! The RTR (ready to receive) message as an FPDU (RFC 6581 section 9).

use crate::mpa::fpdu::{LENGTH_LEN, fpdu_len};
use crate::mpa::framing::Framing;
use crate::mpa::markers;
use crate::rdmap::stream::Stream;
use crate::wire::rtr::Rtr;

/// Builds the RTR message as an FPDU: the first one of its direction, or anywhere in a direction
/// without markers.
pub(super) fn build_rtr_fpdu(stream: &mut Stream, rtr: Rtr, framing: Framing) -> Vec<u8> {
    let ulpdu = stream.build_rtr(rtr);
    let phase = framing.has_markers().then_some(0);
    let mut out = vec![0; fpdu_len(ulpdu.len()) + markers::MARKER_LEN];
    out[LENGTH_LEN..LENGTH_LEN + ulpdu.len()].copy_from_slice(&ulpdu);
    let len = framing.finalize(&mut out, ulpdu.len(), phase);
    out.truncate(len);
    out
}
