//! The bodies of the fuzz targets over a bounded corpus: random bytes, and well-formed input with a
//! few bytes changed.

use ferrowarp_tests::fuzz;
use ferrowarp_tests::peer::{Header, ReadRequest, Role, Startup, fpdu, marked_fpdu, opcode};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const ROUNDS: u64 = 200_000;

/// Calls `target` with random bytes and with mutations of the seeds.
fn run(target: fn(&[u8]), seeds: &[Vec<u8>]) {
    run_rounds(target, seeds, ROUNDS);
}

fn run_rounds(target: fn(&[u8]), seeds: &[Vec<u8>], rounds: u64) {
    for seed in seeds {
        target(seed);
    }
    for round in 0..rounds {
        let mut rng = SmallRng::seed_from_u64(round);
        let mut bytes = if rng.random_ratio(1, 4) {
            (0..rng.random_range(0..200)).map(|_| rng.random()).collect()
        } else {
            seeds[rng.random_range(0..seeds.len())].clone()
        };
        for _ in 0..rng.random_range(0..4) {
            match rng.random_range(0..3) {
                0 if !bytes.is_empty() => {
                    let at = rng.random_range(0..bytes.len());
                    bytes[at] = rng.random();
                }
                1 => bytes.truncate(rng.random_range(0..=bytes.len())),
                _ => bytes.extend((0..rng.random_range(0..20)).map(|_| rng.random::<u8>())),
            }
        }
        let outcome = std::panic::catch_unwind(|| target(&bytes));
        assert!(outcome.is_ok(), "round {round}: {bytes:02x?}");
    }
}

fn send(msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let qn = 0;
    Header::Untagged { opcode: opcode::SEND, last: true, invalidate: 0, qn, msn, mo }
        .encode(payload)
}

fn invalidate(msn: u32) -> Vec<u8> {
    let (opcode, qn) = (opcode::SEND_INVALIDATE, 0);
    Header::Untagged { opcode, last: true, invalidate: 1, qn, msn, mo: 0 }.encode(b"bye")
}

fn read_request(source_stag: u32) -> Vec<u8> {
    let request =
        ReadRequest { sink_stag: 1, sink_to: 2, len: 1000, source_stag, source_to: 0 }.encode();
    let (opcode, qn) = (opcode::READ_REQUEST, 1);
    Header::Untagged { opcode, last: true, invalidate: 0, qn, msn: 1, mo: 0 }.encode(&request)
}

/// A FetchAdd of 1 to the 64-bit word at `to` (RFC 7306 section 4.2).
fn atomic_request(to: u64) -> Vec<u8> {
    let fields = [to, 1, 0, 0, 0].map(u64::to_be_bytes).concat();
    let header = [&[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0], &fields[..]].concat();
    let (opcode, qn) = (opcode::ATOMIC_REQUEST, 1);
    Header::Untagged { opcode, last: true, invalidate: 0, qn, msn: 1, mo: 0 }.encode(&header)
}

fn atomic_response() -> Vec<u8> {
    let (opcode, qn) = (opcode::ATOMIC_RESPONSE, 3);
    Header::Untagged { opcode, last: true, invalidate: 0, qn, msn: 1, mo: 0 }.encode(&[1; 12])
}

fn immediate(msn: u32) -> Vec<u8> {
    let (opcode, qn) = (opcode::IMMEDIATE, 0);
    Header::Untagged { opcode, last: true, invalidate: 0, qn, msn, mo: 0 }.encode(b"it is so")
}

fn write(to: u64, payload: &[u8]) -> Vec<u8> {
    Header::Tagged { opcode: opcode::WRITE, last: true, stag: 0, to }.encode(payload)
}

#[test]
fn segment_parser_never_panics() {
    // Ethernet, IPv4 with and without options, TCP with timestamps, with the options of a SYN, and
    // the same over IPv6; the checksums are wrong, which mode 0 does not verify.
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let ipv4 = [0x45, 0, 0, 62, 0, 0, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
    let timestamps = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    let syn = [2, 4, 5, 0xB4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    let sack = [1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    let mut seeds = Vec::new();
    for options in [&timestamps[..], &syn, &sack, &[]] {
        let offset = u8::try_from((20 + options.len()) / 4 * 16).unwrap();
        let tcp = [0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, offset, 0x10, 1, 0, 0, 0, 0, 0];
        let len = u8::try_from(20 + tcp.len() + options.len() + 10).unwrap();
        let mut head = ipv4;
        head[3] = len;
        let mut ipv6 = vec![0x60, 0, 0, 0, 0, len - 20, 6, 64];
        ipv6.extend_from_slice(&[0x20; 32]);
        for (ethertype, ip) in [([8, 0], &head[..]), ([0x86, 0xDD], &ipv6)] {
            for choice in 0..4 {
                seeds.push(
                    [&[choice, 60], &ethernet[..], &ethertype, ip, &tcp, options, &[7; 10]]
                        .concat(),
                );
            }
        }
    }
    run(fuzz::segment, &seeds);
}

#[test]
fn startup_frames_survive_emitting_and_parsing() {
    let mut seeds = Vec::new();
    for role in [Role::Initiator, Role::Responder] {
        for revision in [1, 2] {
            for private_data in [vec![], vec![7; 508]] {
                let startup = Startup { revision, private_data, ..Startup::default() };
                seeds.push(startup.encode(role));
            }
        }
    }
    run(fuzz::startup, &seeds);
}

#[test]
fn ulpdus_do_not_depend_on_segmentation() {
    let mut seeds = Vec::new();
    for crc in [0, 1] {
        let chain: Vec<u8> =
            [1, 2, 3, 18, 60].into_iter().flat_map(|len| fpdu(&vec![9; len], crc == 1)).collect();
        seeds.extend([1, 3, 40].map(|piece| [&[crc, piece], &chain[..]].concat()));
        let mut marked = Vec::new();
        for len in [1, 2, 300, 18, 480, 60] {
            marked.extend(marked_fpdu(&vec![9; len], crc == 1, marked.len() as u64));
        }
        seeds.extend([1, 3, 40, 0].map(|piece| [&[crc | 2, piece], &marked[..]].concat()));
    }
    run(fuzz::fpdu_chain, &seeds);
}

#[test]
fn headers_survive_emitting_and_parsing() {
    let terminate = Header::Untagged {
        opcode: opcode::TERMINATE,
        last: true,
        invalidate: 0,
        qn: 2,
        msn: 1,
        mo: 0,
    }
    .encode(&[0x12, 5, 0xC0, 0, 0, 64, 0x41]);
    let seeds = [
        send(1, 0, b"hello"),
        read_request(5),
        write(9, b"x"),
        terminate,
        atomic_request(8),
        atomic_response(),
        immediate(1),
    ];
    run(fuzz::headers, &seeds);
}

#[test]
fn rdmap_stream_never_writes_outside_its_rights() {
    let lengths = |ulpdus: &[(u8, Vec<u8>)]| {
        let mut bytes = Vec::new();
        for (choice, ulpdu) in ulpdus {
            bytes.push(u8::try_from(ulpdu.len()).unwrap());
            bytes.push(*choice);
            bytes.extend_from_slice(ulpdu);
        }
        bytes
    };
    let sends: Vec<_> = (1..5).map(|msn| (0, send(msn, 0, b"message"))).collect();
    let mut seeds = vec![lengths(&sends)];
    for choice in 0xA0..0xA4 {
        seeds.push(lengths(&[(choice, write(5, &[1; 100])), (0, send(1, 0, b"done"))]));
        seeds.push(lengths(&[(choice, read_request(0)), (choice, read_request(0))]));
        seeds.push(lengths(&[
            (choice, atomic_request(8)),
            (0, immediate(1)),
            (0, send(2, 0, b"")),
        ]));
        seeds.push(lengths(&[(choice, atomic_request(2048)), (0, atomic_response())]));
        seeds.push(lengths(&[(choice, write(2048, &[1; 100]))]));
        seeds.push(lengths(&[(0, send(1, 0, b"first")), (choice, invalidate(2))]));
    }
    run(fuzz::stream, &seeds);
}

#[test]
fn two_engines_survive_forged_segments() {
    // Each kind, early and late, of both address families, with sequence numbers kept or changed.
    let mut seeds = Vec::new();
    for choice in 0..4 {
        for kind in 0..16 {
            for quiet_len in [2, 5, 20] {
                let mut bytes = vec![choice];
                bytes.resize(1 + quiet_len, 255);
                bytes.extend([0, kind, 0, 3, 5, 7, 1, 9, 200, 0, kind, 77, 1, 2, 3, 4, 5, 6]);
                seeds.push(bytes);
            }
        }
    }
    run_rounds(fuzz::live, &seeds, 1000);
}
