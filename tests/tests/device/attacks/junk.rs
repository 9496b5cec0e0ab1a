//! Junk frames of every kind that a stack has to parse before it can drop them.

use std::net::Ipv4Addr;

use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Fields, Flags, FourTuple, HeaderTemplate, Options};
use ferrowarp_tests::ip;
use ferrowarp_tests::stack::STACK;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::host::HOST;
use super::server::PORT;

const ICMP: u8 = 1;
const TCP: u8 = 6;
/// MF (more fragments) flag of an IPv4 header.
const MORE: u16 = 0x2000;

/// Generator of junk frames, deterministic.
pub(crate) struct Junk {
    rng: SmallRng,
    /// MAC addresses of the host and of the stack.
    macs: [[u8; 6]; 2],
    count: u16,
}

impl Junk {
    /// A generator for frames between these MAC addresses.
    pub(crate) fn new(macs: [[u8; 6]; 2]) -> Self {
        Self { rng: SmallRng::seed_from_u64(7), macs, count: 0 }
    }

    /// The next frame.
    pub(crate) fn next(&mut self) -> Vec<u8> {
        self.count = self.count.wrapping_add(1);
        match self.count % 6 {
            0 => self.icmp(),
            1 => self.segment(Flags::RST, HOST, PORT),
            2 => self.spoofed_syn(),
            3 => self.segment(Flags::ACK, HOST, PORT),
            4 => self.fragment(),
            _ => {
                let port = self.rng.random();
                self.segment(Flags::SYN, HOST, port)
            }
        }
    }

    /// A SYN to the listener from a host that may or may not exist.
    fn spoofed_syn(&mut self) -> Vec<u8> {
        let host = Ipv4Addr::new(198, 18, 7, self.rng.random_range(100..250));
        self.segment(Flags::SYN, host, PORT)
    }

    /// A segment of no connection.
    fn segment(&mut self, flags: Flags, from: Ipv4Addr, to: u16) -> Vec<u8> {
        let port: u16 = self.rng.random_range(1..=u16::MAX);
        let tuple = FourTuple { local: (from, port).into(), remote: (STACK, to).into() };
        let fields = Fields {
            seq: Seq(self.rng.random()),
            ack: Seq(self.rng.random()),
            flags,
            window: self.rng.random(),
            options: Options::default(),
            ..Fields::default()
        };
        let mut frame = vec![0; 54];
        HeaderTemplate::new(self.macs[0], self.macs[1], tuple).emit(
            &mut frame,
            &fields,
            0,
            ChecksumMode::Software,
        );
        frame
    }

    /// An ICMP error about a segment that the stack never sent.
    fn icmp(&mut self) -> Vec<u8> {
        let mut quoted = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0];
        quoted.extend(STACK.octets());
        quoted.extend(HOST.octets());
        quoted.extend(PORT.to_be_bytes());
        // Destination Unreachable with all codes, Fragmentation Needed among them.
        let code = self.rng.random_range(0..16);
        quoted.extend(self.rng.random::<[u8; 6]>());
        self.packet(ICMP, 0, &ip::icmp_message((3, code), 0x500, &quoted))
    }

    /// A fragment of a packet that never becomes complete.
    fn fragment(&mut self) -> Vec<u8> {
        let offset = self.rng.random_range(0..1000);
        let payload = [0xA5; 256];
        self.packet(TCP, MORE | offset, &payload)
    }

    fn packet(&mut self, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let addresses = [HOST.octets(), STACK.octets()];
        let packet = ip::ipv4_packet(protocol, addresses, self.rng.random(), fragment, payload);
        [&self.macs[1][..], &self.macs[0], &[8, 0], &packet].concat()
    }
}
