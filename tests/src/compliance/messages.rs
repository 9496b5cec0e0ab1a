//! Hand-made messages of a peer, and results of the engine under test, for tests of rules.

use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::verbs::wr::{Operation, Payload, Sge};

use super::fixture::FpduFixture;
pub use crate::peer::PEER_STAG;
use crate::peer::{Header, ReadRequest, opcode};

/// A connected engine under test: segments of 1460 bytes, four Reads in each direction.
#[must_use]
pub fn connected() -> FpduFixture {
    FpduFixture::connected(1460, 4, 4)
}

/// Two engines as of [`connected`], one for each path of reception: the fast one takes the ULPDUs
/// injected into the first, the general one those into the second.
#[must_use]
pub fn connected_for_each_path() -> [FpduFixture; 2] {
    let [fast, mut general] = [(); 2].map(|()| connected());
    general.sets_reserved_bit = true;
    [fast, general]
}

/// A Send in one segment.
#[must_use]
pub fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    Header::send(msn, 0, true).encode(payload)
}

/// An untagged message of queue 0 in one segment, with this opcode and STag to invalidate.
#[must_use]
pub fn send_as(opcode: u8, msn: u32, invalidate: u32, payload: &[u8]) -> Vec<u8> {
    Header::Untagged { opcode, last: true, invalidate, qn: 0, msn, mo: 0 }.encode(payload)
}

/// An RDMA Write in one segment.
#[must_use]
pub fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    Header::write(stag, to, true).encode(payload)
}

/// A segment of an RDMA Read Response.
#[must_use]
pub fn read_response(stag: u32, to: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    Header::Tagged { opcode: opcode::READ_RESPONSE, last, stag, to }.encode(payload)
}

/// An RDMA Read Request for `len` bytes into `sink_to`.
#[must_use]
pub fn read_request(msn: u32, source_stag: u32, source_to: u64, len: u32, sink_to: u64) -> Vec<u8> {
    let request = ReadRequest { sink_stag: PEER_STAG, sink_to, len, source_stag, source_to };
    Header::read(msn).encode(&request.encode())
}

/// The first `len` bytes of memory, in one element or in two halves: a segment across both takes
/// the general path of sending.
///
/// # Panics
/// If they are more than `u32::MAX`.
#[must_use]
pub fn elements(fx: &FpduFixture, len: usize, halved: bool) -> Vec<Sge> {
    let len = u32::try_from(len).expect("a message");
    let first = if halved { len / 2 } else { len };
    let sge = |at, len| Sge { addr: u64::from(at), len, lkey: fx.mem_stag };
    if halved { vec![sge(0, first), sge(first, len - first)] } else { vec![sge(0, first)] }
}

/// A Send of these elements.
///
/// # Panics
/// If they are more than a request holds.
#[must_use]
pub fn send_of(list: &[Sge]) -> Operation {
    let payload = Payload::gather(list).expect("as many as fit");
    Operation::Send { payload, solicited: false, invalidate: None }
}

/// A Write of these elements.
///
/// # Panics
/// If they are more than a request holds.
#[must_use]
pub fn write_of(list: &[Sge]) -> Operation {
    let payload = Payload::gather(list).expect("as many as fit");
    Operation::Write { payload, rkey: PEER_STAG, remote: 0 }
}

/// Returns the opcodes that the engine has sent since the last call.
pub fn sent_opcodes(fx: &mut FpduFixture) -> Vec<u8> {
    fx.sent_ulpdus().iter().map(|ulpdu| ulpdu[1] & 0x0f).collect()
}

/// Returns `wr_id` and status of the completions since the last call.
pub fn wc_statuses(fx: &mut FpduFixture) -> Vec<(u64, WcStatus)> {
    fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.status)).collect()
}
