//! RTR (ready to receive) message: the first FPDU of an initiator, which allows its responder to
//! send (RFC 6581 section 9.2). It has no work request: it generates no completion and consumes no
//! receive buffer.

use arrayvec::ArrayVec;

use crate::rdmap::stream::Stream;
use crate::wire::ddp::{Header, TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
use crate::wire::mpa::Rtr;
use crate::wire::rdmap::{Opcode, QN_READ_REQUEST, QN_SEND, READ_REQUEST_LEN, ReadRequest};

/// RTR message as a ULPDU.
pub type RtrUlpdu = ArrayVec<u8, { UNTAGGED_LEN + READ_REQUEST_LEN }>;

/// STag of a zero-length message. It is not checked, but some hardware refuses 0.
const NO_STAG: u32 = 1;

impl Stream {
    /// Builds the RTR message of this kind, which has to be the first FPDU of the stream. An RDMA
    /// Write may also be sent later: it has no effect.
    #[doc(alias = "zero-length FPDU")]
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

    /// Handles the first FPDU of the stream: true if it is an RTR indication by a zero-length Send.
    /// The Send uses an MSN, but no receive buffer.
    pub fn consume_rtr(&mut self, ulpdu: &[u8]) -> bool {
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
