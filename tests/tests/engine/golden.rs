//! Headers and whole exchanges, written by hand from the RFCs, against the stack; tshark checks the
//! captures of the exchanges.

use std::time::Duration;

use ferrowarp_proto::mpa::fpdu;
use ferrowarp_proto::wire::ddp::{Header, Tagged, Untagged, Version};
use ferrowarp_proto::wire::mpa::{Enhanced, FrameKind, Startup};
use ferrowarp_proto::wire::rdmap::{Opcode, ReadRequest};
use ferrowarp_proto::wire::terminate::Terminate;
use ferrowarp_tests::capture;
use ferrowarp_tests::compliance::fixture::FpduFixture;
use ferrowarp_tests::compliance::golden_exchange::{Step, exchanges, headers};
use ferrowarp_tests::pcap::PcapWriter;
use ferrowarp_tests::process;
use ferrowarp_tests::sim::world::address;
use ferrowarp_tests::skip;
use ferrowarp_tests::workspace::root;

fn golden(name: &str) -> Vec<u8> {
    headers(root()).unwrap().remove(name).unwrap_or_else(|| panic!("no header {name}"))
}

const TAGGED: Tagged =
    Tagged { last: true, rsvd_ulp: 0x40, stag: 0x1122_3344, to: 0x0102_0304_0506_0708 };

// req-test: DDP-034, DDP-049, DDP-050, DDP-051, DDP-046
#[test]
fn tagged_headers() {
    let mut out = [0xff; 14];
    TAGGED.emit(Version::Ietf, &mut out);
    assert_eq!(out[..], golden("tagged, last, version 1"));
    assert_eq!(Header::parse(&out, Version::Ietf), Ok(Header::Tagged(TAGGED)));
    let more = Tagged { last: false, ..TAGGED };
    more.emit(Version::Ietf, &mut out);
    assert_eq!(out[..], golden("tagged, not last, version 1"));
    assert_eq!(Header::parse(&out, Version::Ietf), Ok(Header::Tagged(more)));
}

// req-test: DDP-034, DDP-047, DDP-048, RDMAP-054
#[test]
fn rdmac_headers() {
    let mut out = [0xff; 14];
    let rsvd_ulp = Opcode::Write.control(Version::Rdmac);
    Tagged { rsvd_ulp, ..TAGGED }.emit(Version::Rdmac, &mut out);
    assert_eq!(out[..], golden("tagged, last, version 0"));
    let send = Opcode::Send { invalidate: false, solicited: false };
    let rsvd_ulp = send.control(Version::Rdmac);
    let header = Untagged { last: true, rsvd_ulp, rsvd_ulp_rest: 0, qn: 0, msn: 1, mo: 0 };
    let mut out = [0xff; 18];
    header.emit(Version::Rdmac, &mut out);
    assert_eq!(out[..], golden("send, version 0"));
    assert_eq!(Header::parse(&out, Version::Rdmac), Ok(Header::Untagged(header)));
    assert!(Header::parse(&out, Version::Ietf).is_err());
    assert_eq!(Opcode::parse(out[1], Version::Rdmac), Ok(send));
    assert!(Opcode::parse(out[1], Version::Ietf).is_err());
}

// req-test: DDP-067, DDP-068, DDP-069, DDP-070, DDP-076
#[test]
fn untagged_headers() {
    let header = Untagged {
        last: true,
        rsvd_ulp: 0x43,
        rsvd_ulp_rest: 0xdead_beef,
        qn: 2,
        msn: 0x0a0b_0c0d,
        mo: 0x1020_3040,
    };
    let mut out = [0xff; 18];
    header.emit(Version::Ietf, &mut out);
    assert_eq!(out[..], golden("untagged, last, version 1"));
    assert_eq!(Header::parse(&out, Version::Ietf), Ok(Header::Untagged(header)));
    let more = Untagged { last: false, ..header };
    more.emit(Version::Ietf, &mut out);
    assert_eq!(out[..], golden("untagged, not last, version 1"));
    assert_eq!(Header::parse(&out, Version::Ietf), Ok(Header::Untagged(more)));
}

// req-test: RDMAP-045, RDMAP-048, RDMAP-049, RDMAP-052, RDMAP-057
#[test]
fn control_bytes() {
    let send = |invalidate, solicited| Opcode::Send { invalidate, solicited };
    let opcodes = [
        Opcode::Write,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        send(false, false),
        send(true, false),
        send(false, true),
        send(true, true),
        Opcode::Terminate,
    ];
    let bytes = golden("control bytes 0 to 7, version 1");
    for (opcode, byte) in opcodes.into_iter().zip(bytes) {
        assert_eq!(opcode.control(Version::Ietf), byte, "{opcode:?}");
        assert_eq!(Opcode::parse(byte, Version::Ietf), Ok(opcode));
    }
}

// req-test: RDMAP-077, RDMAP-083, RDMAP-087, RDMAP-092, RDMAP-115
#[test]
fn rdmap_payload_headers() {
    let request = ReadRequest {
        sink_stag: 0x0a0b_0c0d,
        sink_to: 0x0102_0304_0506_0708,
        len: 0xffff_ffff,
        source_stag: 0xdead_beef,
        source_to: 0x1112_1314_1516_1718,
    };
    let mut out = [0xff; 28];
    request.emit(&mut out);
    assert_eq!(out[..], golden("read request"));
    assert_eq!(ReadRequest::parse(&out), Some(request));
    let segment = [&golden("tagged, last, version 1")[..], &[7; 3]].concat();
    let nothing = Terminate::new(2, 0, 2);
    let both = nothing.with_segment(&segment);
    let mut length = nothing;
    length.segment_len = both.segment_len;
    for (name, terminate) in [
        ("terminate, nothing", nothing),
        ("terminate, M", length),
        ("terminate, M and D, tagged", both),
    ] {
        let mut out = vec![0xff; terminate.wire_len()];
        terminate.emit(&mut out);
        assert_eq!(out, golden(name), "{name}");
        assert_eq!(Terminate::parse(&out), Some(terminate));
    }
}

// req-test: MPA-055, MPA-056, MPA-057, MPA-058, MPA-094
#[test]
fn fpdus_of_every_pad_length() {
    for len in 1..=5u8 {
        let expected = golden(&format!("FPDU of {len}"));
        let mut out = vec![0xff; expected.len()];
        let ulpdu: Vec<u8> = (1..=len).collect();
        out[2..2 + ulpdu.len()].copy_from_slice(&ulpdu);
        assert_eq!(fpdu::finalize(&mut out, ulpdu.len(), true), expected.len());
        assert_eq!(out, expected, "{len}");
        assert_eq!(fpdu::parse(&out, true), Ok(Some((&ulpdu[..], expected.len()))));
    }
}

// req-test: DDP-052, DDP-053, DDP-057, RDMAP-024, RDMAP-025
#[test]
fn rsvd_ulp_passes_unchanged() {
    for value in 0..=255u8 {
        let rest = u32::from_be_bytes([value, !value, value ^ 0x55, 0x80]);
        let stag = rest.rotate_left(8);
        let tagged = Tagged { rsvd_ulp: value, stag, ..TAGGED };
        let mut out = [0; 14];
        tagged.emit(Version::Ietf, &mut out);
        assert_eq!((out[1], &out[2..6]), (value, &stag.to_be_bytes()[..]));
        let header = Header::parse(&out, Version::Ietf).unwrap();
        assert_eq!((header, header.wire_len()), (Header::Tagged(tagged), 14));
        let untagged =
            Untagged { last: false, rsvd_ulp: value, rsvd_ulp_rest: rest, qn: 0, msn: 1, mo: 0 };
        let mut out = [0; 18];
        untagged.emit(Version::Ietf, &mut out);
        assert_eq!((out[1], &out[2..6]), (value, &rest.to_be_bytes()[..]));
        let header = Header::parse(&out, Version::Ietf).unwrap();
        assert_eq!((header, header.wire_len()), (Header::Untagged(untagged), 18));
    }
}

#[test]
fn mpa_startup_frames() {
    let frame = |kind, revision, enhanced, data: &[u8]| Startup {
        kind,
        markers: false,
        crc: true,
        reject: false,
        revision,
        enhanced,
        private_data: data.try_into().unwrap(),
    };
    let block = Enhanced {
        peer_to_peer: true,
        rtr_send: false,
        rtr_write: true,
        rtr_read: true,
        ird: 8,
        ord: 0x3fff,
    };
    for (name, frame) in [
        ("request, revision 1", frame(FrameKind::Request, 1, None, b"hi")),
        ("reply, revision 1", frame(FrameKind::Reply, 1, None, b"")),
        ("request, revision 2", frame(FrameKind::Request, 2, Some(block), b"hi")),
    ] {
        let expected = golden(name);
        let mut out = [0xff; 64];
        let len = frame.emit(&mut out);
        assert_eq!(out[..len], expected, "{name}");
        assert_eq!(Startup::parse(&expected, frame.kind), Ok(Some((frame, len))), "{name}");
    }
}

fn replay(names: &[&str]) {
    let all = exchanges(root()).unwrap();
    for name in names {
        FpduFixture::new().run(name, &all[*name]);
    }
}

// req-test: RDMAP-062, RDMAP-073, RDMAP-340, RDMAP-019, DDP-035
#[test]
fn write_exchanges() {
    replay(&["06-write", "08-read-by-the-stack"]);
}

// req-test: RDMAP-063, RDMAP-071, RDMAP-341
#[test]
fn read_request_exchanges() {
    replay(&["03-send", "07-read", "08-read-by-the-stack", "09-terminate"]);
}

// req-test: RDMAP-064, RDMAP-074, RDMAP-342
#[test]
fn read_response_exchanges() {
    replay(&["07-read", "08-read-by-the-stack"]);
}

// req-test: RDMAP-065, RDMAP-067, RDMAP-075, RDMAP-343
#[test]
fn send_exchanges() {
    replay(&["01-start-revision-1", "03-send", "04-send-solicited", "10-segments"]);
}

// req-test: RDMAP-076, RDMAP-344
#[test]
fn send_with_invalidate_exchange() {
    replay(&["05-send-invalidate"]);
}

// req-test: RDMAP-069, RDMAP-086, RDMAP-122, RDMAP-131, RDMAP-345
#[test]
fn terminate_exchanges() {
    replay(&["09-terminate", "12-read-refused", "05-send-invalidate"]);
}

// req-test: RDMAP-010, RDMAP-037, RDMAP-135, RDMAP-026, DDP-200
#[test]
fn refused_access_is_reported_at_both_ends() {
    replay(&["09-terminate", "11-terminated"]);
}

// req-test: RDMAP-227, RDMAP-230, RDMAP-087, RDMAP-129
#[test]
fn startup_exchanges() {
    replay(&["01-start-revision-1", "02-start-revision-2", "12-read-refused"]);
}

// req-test: MPA-062, MPA-063, MPA-066, MPA-075, MPA-076
#[test]
fn marker_exchange() {
    replay(&["17-markers"]);
}

// req-test: MPA-067, MPA-088
#[test]
fn marker_before_the_crc_exchange() {
    replay(&["17-markers", "20-marker-before-the-crc"]);
}

// req-test: MPA-150, MPA-153
#[test]
fn wrong_fpduptr_exchange() {
    replay(&["21-marker-astray", "17-markers"]);
}

// req-test: MPA-085, MPA-142, RDMAP-056
#[test]
fn immediate_start_exchange() {
    replay(&["18-immediate-start", "01-start-revision-1"]);
}

// req-test: DDP-010, DDP-104
#[test]
fn rdmac_peer_exchange() {
    replay(&["19-consortium", "18-immediate-start"]);
}

// req-test: RDMAP-055, RDMAP-333, DDP-047
#[test]
fn rdmap_draft00_exchange() {
    replay(&["22-draft-00", "23-draft-00-refuses-rv-0"]);
}

#[test]
fn every_exchange() {
    let exchanges = exchanges(root()).unwrap();
    assert!(exchanges.len() >= 10, "{} exchanges", exchanges.len());
    for (name, steps) in exchanges {
        FpduFixture::new().run(&name, &steps);
    }
}

#[test]
fn tshark_accepts_all_exchanges() {
    if !process::is_installed("tshark") {
        skip("no `tshark` program");
        return;
    }
    let dir = process::temp_dir().unwrap();
    let file = dir.path().join("exchanges.pcap");
    let mut writer = PcapWriter::create(&file).unwrap();
    let mut at = Duration::ZERO;
    let exchanges = exchanges(root()).unwrap();
    // Ports that no other dissector claims.
    for (port, (name, steps)) in (50_000..).zip(&exchanges) {
        let mut fx = FpduFixture::new();
        fx.peer_port = port;
        fx.run(name, steps);
        for frame in std::mem::take(&mut fx.frames) {
            at += Duration::from_millis(1);
            writer.write(at, &frame).unwrap();
        }
    }
    drop(writer);
    let begins_unframed = Step::Stack(vec!["unframed".to_owned()]);
    let unframed = exchanges.values().filter(|steps| steps.contains(&begins_unframed)).count();
    for end in 0..2 {
        let dissection = capture::dissect(&file, address(end), true).unwrap();
        assert!(dissection.is_clean(), "{dissection:?}");
        assert_eq!(dissection.startup_frames, exchanges.len() - unframed, "{dissection:?}");
    }
}
