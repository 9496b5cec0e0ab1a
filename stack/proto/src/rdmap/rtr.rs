//! The ready-to-receive message: the FPDU by which an initiator lets its responder speak first
//! (RFC 6581 section 9.2). It is nobody's request: it completes nowhere and fills no buffer.

use arrayvec::ArrayVec;

use crate::mpa::startup::Rtr;
use crate::rdmap::stream::Stream;
use crate::wire::ddp::{Header, TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
use crate::wire::rdmap::{Opcode, QN_READ_REQUEST, QN_SEND, READ_REQUEST_LEN, ReadRequest};

/// A ready-to-receive message as a ULPDU.
pub type RtrUlpdu = ArrayVec<u8, { UNTAGGED_LEN + READ_REQUEST_LEN }>;

/// STag of a message without bytes: it names nothing, but some hardware refuses 0.
const NO_STAG: u32 = 1;

impl Stream {
    /// The ready-to-receive message of this kind, which must be the first FPDU of the stream. A
    /// Write may also come later: it changes nothing.
    #[must_use]
    pub fn build_rtr(&mut self, rtr: Rtr) -> RtrUlpdu {
        self.rtr_sent = true;
        let version = self.version();
        let mut out = [0; UNTAGGED_LEN + READ_REQUEST_LEN];
        let untagged = |opcode: Opcode, queue, msn| Untagged {
            last: true,
            rsvd_ulp: opcode.control(version),
            rsvd_ulp_rest: 0,
            qn: queue,
            msn,
            mo: 0,
        };
        let len = match rtr {
            Rtr::Send => {
                let opcode = Opcode::Send { invalidate: false, solicited: false };
                untagged(opcode, QN_SEND, self.requester.alloc_send_msn()).emit(version, &mut out);
                UNTAGGED_LEN
            }
            Rtr::Write => {
                let rsvd_ulp = Opcode::Write.control(version);
                let header = Tagged { last: true, rsvd_ulp, stag: NO_STAG, to: 0 };
                header.emit(version, &mut out);
                TAGGED_LEN
            }
            Rtr::Read => {
                let msn = self.requester.start_rtr_read();
                untagged(Opcode::ReadRequest, QN_READ_REQUEST, msn).emit(version, &mut out);
                let request = ReadRequest {
                    sink_stag: NO_STAG,
                    sink_to: 0,
                    len: 0,
                    source_stag: NO_STAG,
                    source_to: 0,
                };
                request.emit(&mut out[UNTAGGED_LEN..]);
                UNTAGGED_LEN + READ_REQUEST_LEN
            }
        };
        out[..len].iter().copied().collect()
    }

    /// The first FPDU of the stream has come: true if it is a Send of no bytes that says no more
    /// than that the peer is ready. It takes its place in the order of Sends, and no buffer.
    pub fn consume_rtr(&mut self, ulpdu: &[u8]) -> bool {
        if !self.clear_rtr_expected() {
            return false;
        }
        let Ok(Header::Untagged(header)) = Header::parse(ulpdu, self.version()) else {
            return false;
        };
        let plain = Opcode::Send { invalidate: false, solicited: false };
        let is_rtr = ulpdu.len() == UNTAGGED_LEN
            && Opcode::parse(header.rsvd_ulp, self.version()) == Ok(plain)
            && (header.qn, header.msn, header.mo, header.last) == (QN_SEND, 1, 0, true);
        if is_rtr {
            self.recv_queue.skip_message();
        }
        is_rtr
    }
}
