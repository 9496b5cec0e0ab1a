//! Rows of the Terminate table: a raw segment is received, the bytes of the Terminate are
//! compared.
//!
//! Segments are written by hand, as hexadecimal digits and names of STags. The expected Terminate
//! is derived from the row alone. Every row holds for each version: their bytes differ in DV and
//! RV, and in the error code for an STag of another stream.

mod received;
mod rows;

use std::collections::BTreeSet;

use rows::{MDR, NONE, READ_1, RESPONSE, ROWS};

use super::super::*;
use crate::ddp::memory::Access;
use crate::ddp::recv_queue::RqCap;
use crate::ddp::sgl::Sge;
use crate::ddp::untagged::BufferQueue;
use crate::ddp::vec_memory::VecMemory;
use crate::rdmap::fault::Abort;
use crate::rdmap::operation::Operation;
use crate::rdmap::operation::SendWr;
use crate::rdmap::send_queue::SqCap;
use crate::wire::ddp::UNTAGGED_LEN;
use crate::wire::terminate::is_defined;

const PD: u32 = 1;

/// Errors without a terminated segment.
#[rustfmt::skip]
const FAULTS_WITHOUT_SEGMENT: &[(Fault, &str)] = &[
    (Fault::LocalCatastrophic, "00 00"),
    (Fault::UlpAbort(Abort::Protection), "01 ff"),
    (Fault::UlpAbort(Abort::Stream), "02 07"),
    (Fault::UlpAbort(Abort::Global), "02 08"),
    (Fault::UlpAbort(Abort::Operation), "02 ff"),
    (Fault::Crc, "20 02"),
    (Fault::Marker, "20 03"),
    (Fault::InsufficientIrd, "20 06"),
    (Fault::NoMatchingRtr, "20 07"),
];

struct Fixture {
    arena: VecMemory,
    stream: Stream,
    version: Version,
    stags: [(&'static str, u32); 5],
}

fn fixture(version: Version) -> Fixture {
    let arena = VecMemory::new(0x800);
    let open = arena.register(0x100, 0x100, Access::ALL, PD);
    let readable = arena.register(0x200, 0x40, Access::REMOTE_READ, PD);
    let writable = arena.register(0x240, 0x40, Access::REMOTE_WRITE, PD);
    let foreign_pd = arena.register(0x280, 0x40, Access::ALL, PD + 1);
    let recv_region = arena.register(0x400, 0x100, Access::LOCAL_WRITE, PD);
    let gone = arena.register(0x300, 0x40, Access::ALL, PD);
    arena.regions().invalidate(gone);
    let mut stream =
        Stream::new(PD, Requester::new(SqCap::new(8)), BufferQueue::new(RqCap::new(8)));
    stream.start(version, 2, 2);
    for (wr_id, addr, len, lkey) in
        [(1, 0x400, 4, recv_region), (2, 0x440, 64, recv_region), (3, 0x300, 8, gone)]
    {
        let sg_list = [Sge { addr, len, lkey }];
        stream.recv_queue.post(wr_id, &sg_list).unwrap();
    }
    let sink = Sge { addr: 0x180, len: 8, lkey: open };
    let operation = Operation::Read { sink: [sink].into(), rkey: 5, remote: 6 };
    let read = SendWr { wr_id: 4, operation, signaled: true, fence: false };
    stream.requester.post_and_take(&read);
    let next = stream.next_tx().unwrap();
    stream.build_next(next, &arena, &mut [0; 128]).unwrap();
    let stags = [
        ("open", open),
        ("readable", readable),
        ("writable", writable),
        ("foreign_pd", foreign_pd),
        ("gone", gone),
    ];
    Fixture { arena, stream, version, stags }
}

impl Fixture {
    /// Converts a text to bytes: names of STags, and hexadecimal digits with an optional repeat
    /// count.
    fn bytes(&self, text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in text.split_whitespace() {
            if let Some((_, stag)) = self.stags.iter().find(|(name, _)| *name == word) {
                bytes.extend_from_slice(&stag.to_be_bytes());
                continue;
            }
            let (digits, count) = word.split_once('*').unwrap_or((word, "1"));
            let once: Vec<u8> = digits
                .as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
                .collect();
            bytes.extend(once.repeat(count.parse().unwrap()));
        }
        bytes
    }

    /// Returns a segment. DV is 0 in the older versions and 1 in the newest; RV is 0 in the oldest
    /// and 1 in the others.
    fn segment(&self, text: &str) -> Vec<u8> {
        let mut bytes = self.bytes(text);
        let older = match self.version {
            Version::Ietf => [0, 0],
            Version::Draft00 => [0x01, 0],
            Version::Rdmac => [0x01, 0x40],
        };
        for (byte, bits) in bytes.iter_mut().zip(older) {
            *byte ^= bits;
        }
        bytes
    }

    /// Returns the ULPDU of the Terminate with this cause, HdrCt bits and headers of the segment.
    fn expected_terminate(
        &self,
        cause: &str,
        copies: &str,
        header: &[u8],
        payload: &[u8],
    ) -> Vec<u8> {
        let mut answer = self.segment("41 47 00000000 00000002 00000001 00000000");
        let control = [("", "00 00"), ("MD", "c0 00"), ("MDR", "e0 00")];
        let (_, control) = control.iter().find(|(bits, _)| *bits == copies).unwrap();
        answer.extend(self.bytes(cause));
        answer.extend(self.bytes(control));
        if copies != NONE {
            answer.extend(u16::try_from(header.len() + payload.len()).unwrap().to_be_bytes());
            let whole = if header[0] & 0x80 != 0 { 14 } else { 18 };
            answer.extend_from_slice(header);
            answer.resize(18 + 6 + whole, 0);
        }
        if copies == MDR {
            answer.extend_from_slice(payload);
        }
        answer
    }

    /// Builds the next ULPDU, which has to be the Terminate and the last one.
    fn next_terminate(&mut self) -> Vec<u8> {
        assert!(self.stream.can_build() && self.stream.is_terminate_pending());
        let mut out = [0xee; 128];
        let next = self.stream.next_tx().expect("a ULPDU can be built");
        let len = self.stream.build_next(next, &self.arena, &mut out).unwrap();
        assert_eq!(len as u64, next.ulpdu_len);
        assert!(!self.stream.can_build() && !self.stream.is_terminate_pending());
        out[..len].to_vec()
    }
}

fn for_each_version(test: impl Fn(Version)) {
    for version in [Version::Ietf, Version::Rdmac, Version::Draft00] {
        test(version);
    }
}

/// Checks that every row with this cause sends its Terminate, and places nothing.
fn check_rows(wanted: &str) {
    assert!(ROWS.iter().any(|row| row.4 == wanted));
    for_each_version(|version| {
        for &(name, earlier, header, payload, cause, copies) in ROWS {
            if cause != wanted {
                continue;
            }
            let mut fixture = fixture(version);
            for text in earlier {
                let ulpdu = fixture.segment(text);
                let seen = fixture.stream.on_ulpdu(&fixture.arena, &ulpdu);
                assert!(seen.is_ok(), "{name}: {seen:?} for the segments before it");
            }
            let before = fixture.arena.read(0, 0x800);
            let (header, payload) = (fixture.segment(header), fixture.bytes(payload));
            let ulpdu = [&header[..], &payload].concat();
            let Err(fault) = fixture.stream.on_ulpdu(&fixture.arena, &ulpdu) else {
                panic!("{name}: nothing wrong");
            };
            assert!(fixture.arena.read(0, 0x800) == before, "{name}: something was placed");
            let terminate = fixture.stream.fail(fault, &ulpdu).expect("the first fault");
            // In the older versions an STag of another stream is "Invalid STag".
            let cause = match (version, cause) {
                (Version::Rdmac | Version::Draft00, "01 03") => "01 00",
                (Version::Rdmac | Version::Draft00, "11 02") => "11 00",
                _ => cause,
            };
            let expected = fixture.expected_terminate(cause, copies, &header, &payload);
            let sent = fixture.next_terminate();
            assert_eq!(sent, expected, "{name}, {version:?}");
            assert_eq!(Terminate::parse(&sent[UNTAGGED_LEN..]), Some(terminate), "{name}");
        }
    });
}

// req-test: DDP-155, DDP-156, DDP-170, DDP-171, RDMAP-334
#[test]
fn tagged_stag_invalid() {
    check_rows("11 00");
}

// req-test: DDP-157, DDP-158, DDP-172, RDMAP-166
#[test]
fn tagged_base_or_bounds() {
    check_rows("11 01");
}

// req-test: DDP-058, DDP-173, DDP-188, RDMAP-333
#[test]
fn tagged_stag_not_associated() {
    check_rows("11 02");
}

// req-test: DDP-159, DDP-174, RDMAP-082
#[test]
fn tagged_to_wrap() {
    check_rows("11 03");
}

// req-test: DDP-048, DDP-175
#[test]
fn tagged_version() {
    check_rows("11 04");
}

// req-test: DDP-144, DDP-176, DDP-177
#[test]
fn untagged_queue_number() {
    check_rows("12 01");
}

// req-test: DDP-010, DDP-145, DDP-178, RDMAP-238
#[test]
fn untagged_no_buffer() {
    check_rows("12 02");
}

// req-test: DDP-148, DDP-179
#[test]
fn untagged_msn_out_of_range() {
    check_rows("12 03");
}

// req-test: DDP-146, DDP-180
#[test]
fn untagged_message_offset() {
    check_rows("12 04");
}

// req-test: DDP-004, DDP-147, DDP-181, RDMAP-172, RDMAP-072
#[test]
fn untagged_too_long() {
    check_rows("12 05");
}

// req-test: DDP-182
#[test]
fn untagged_version() {
    check_rows("12 06");
}

// req-test: DDP-169, RDMAP-121
#[test]
fn ddp_local_catastrophic() {
    check_rows("10 00");
}

// req-test: RDMAP-041, RDMAP-098, RDMAP-259
#[test]
fn read_stag_invalid() {
    check_rows("01 00");
}

// req-test: RDMAP-099
#[test]
fn read_base_or_bounds() {
    check_rows("01 01");
}

// req-test: RDMAP-100
#[test]
fn read_access_rights() {
    check_rows("01 02");
}

// req-test: RDMAP-101, RDMAP-328, RDMAP-330
#[test]
fn read_stag_not_associated() {
    check_rows("01 03");
}

// req-test: RDMAP-102
#[test]
fn read_to_wrap() {
    check_rows("01 04");
}

// req-test: RDMAP-103, RDMAP-184, RDMAP-185, RDMAP-329, RDMAP-331
#[test]
fn invalidate_stag_not_associated() {
    check_rows("01 09");
}

// req-test: RDMAP-055, RDMAP-056, RDMAP-105, RDMAP-264, RDMAP-269
#[test]
fn rdmap_version() {
    check_rows("02 05");
}

// req-test: RDMAP-070, RDMAP-106, RDMAP-263
#[test]
fn unexpected_opcode() {
    check_rows("02 06");
}

// req-test: DDP-088, RDMAP-107
#[test]
fn truncated_header() {
    check_rows("02 07");
}

// req-test: RDMAP-109, RDMAP-265
#[test]
fn invalidate_stag_invalid() {
    check_rows("02 09");
}

// req-test: RDMAP-110
#[test]
fn unspecified_error() {
    check_rows("02 ff");
}

// req-test: RDMAP-096, RDMAP-104, RDMAP-108, RDMAP-128, RDMAP-132
#[test]
fn faults_without_segment_have_zero_hdrct() {
    for_each_version(|version| {
        for &(fault, cause) in FAULTS_WITHOUT_SEGMENT {
            let mut fixture = fixture(version);
            assert!(fixture.stream.fail(fault, &[]).is_some());
            let expected = fixture.expected_terminate(cause, NONE, &[], &[]);
            assert_eq!(fixture.next_terminate(), expected, "{fault:?}");
        }
    });
}

// req-test: RDMAP-088, RDMAP-113
#[test]
fn every_terminate_code_has_a_row() {
    let fixture = fixture(Version::Ietf);
    let cause = |text: &str| {
        let bytes = fixture.bytes(text);
        (bytes[0] >> 4, bytes[0] & 15, bytes[1])
    };
    let mut seen: BTreeSet<_> = ROWS.iter().map(|row| cause(row.4)).collect();
    seen.extend(FAULTS_WITHOUT_SEGMENT.iter().map(|(_, text)| cause(text)));
    for layer in 0..=2 {
        for error_type in 0..=15 {
            for code in 0..=255 {
                let triple = (layer, error_type, code);
                let expected = match triple {
                    // Local Catastrophic Error: any code is valid, 0 is sent.
                    (0, 0, code) => code == 0,
                    // The others are never sent: TCP connection lost, startup failures without a
                    // specific code.
                    (2, 0, code) => matches!(code, 2 | 3 | 6 | 7),
                    (layer, error_type, code) => is_defined(layer, error_type, code),
                };
                assert_eq!(seen.contains(&triple), expected, "{triple:?}");
            }
        }
    }
}

// req-test: DDP-045, DDP-106, DDP-158, RDMAP-060
#[test]
fn reserved_bits_and_unused_fields_are_ignored() {
    for_each_version(|version| {
        for text in [
            // Reserved bits of both control bytes.
            "fd 70 open 0000000000000100 78",
            "7d 73 00000000 00000000 00000001 00000000 78",
            // Zero length: STag and offset are not checked.
            "c1 40 deadbeef ffffffffffffffff",
            "41 41 00000000 00000001 00000001 00000000 \
             00000001 0000000000000002 00000000 deadbeef ffffffffffffffff",
            // Up to the last byte of the region.
            "c1 40 open 00000000000001fe 7879",
            // An STag in a Send without Invalidate.
            "41 43 open 00000000 00000001 00000000 78",
            READ_1,
            RESPONSE,
        ] {
            let mut fixture = fixture(version);
            let ulpdu = fixture.segment(text);
            let seen = fixture.stream.on_ulpdu(&fixture.arena, &ulpdu);
            assert!(seen.is_ok(), "{text}: {seen:?}");
            let (_, open) = fixture.stags[0];
            assert_eq!(fixture.arena.regions().pd_of(open), Some(PD), "{text}");
        }
    });
}
