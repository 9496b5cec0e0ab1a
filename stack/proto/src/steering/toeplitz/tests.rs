use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use proptest::collection::vec;
use proptest::prelude::*;

use super::{KEY_LEN_MIN, PortSolver, RssTable, RssTableError};
use crate::wire::tcp::FourTuple;

/// Key of Microsoft's verification suite.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// Microsoft's verification suite: destination, source, hash of the addresses, hash with TCP.
const VECTORS: [(&str, &str, u32, u32); 8] = [
    ("161.142.100.80:1766", "66.9.149.187:2794", 0x323e_8fc2, 0x51cc_c178),
    ("65.69.140.83:4739", "199.92.111.2:14230", 0xd718_262a, 0xc626_b0ea),
    ("12.22.207.184:38024", "24.19.198.95:12898", 0xd2d0_a5de, 0x5c2b_394a),
    ("209.142.163.6:2217", "38.27.205.30:48228", 0x8298_9176, 0xafc7_327f),
    ("202.188.127.2:1303", "153.39.163.191:44251", 0x5d18_09c5, 0x10e8_28a2),
    ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x2cc1_8cd5, 0x4020_7d3d),
    ("[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0x0f0c_461c, 0xdde5_1bbf),
    (
        "[fe80::200:f8ff:fe21:67cf]:38024",
        "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
        0x4b61_e985,
        0x02d1_feef,
    ),
];

/// The queue of index i is i.
fn identity(len: u16) -> Vec<u16> {
    (0..len).collect()
}

fn table(key: &[u8]) -> RssTable {
    RssTable::new(key, &identity(128)).unwrap()
}

fn address_bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Input of a hash over addresses, and of one over addresses and ports.
fn inputs(source: SocketAddr, destination: SocketAddr) -> [Vec<u8>; 2] {
    let addresses = [address_bytes(source.ip()), address_bytes(destination.ip())].concat();
    let ports = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
    [addresses.clone(), [addresses, ports].concat()]
}

/// The hash as Microsoft defines it: the whole key is shifted left by a bit for each input bit.
fn reference_hash(key: &[u8], input: &[u8]) -> u32 {
    let mut key = key.to_vec();
    let mut result = 0;
    for byte in input {
        for bit in (0..8).rev() {
            if byte >> bit & 1 == 1 {
                result ^= u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
            }
            let mut carry = 0;
            for part in key.iter_mut().rev() {
                (*part, carry) = (*part << 1 | carry, *part >> 7);
            }
        }
    }
    result
}

fn v4() -> impl Strategy<Value = SocketAddr> {
    any::<(Ipv4Addr, u16)>().prop_map(|(ip, port)| (ip, port).into())
}

fn v6() -> impl Strategy<Value = SocketAddr> {
    any::<(Ipv6Addr, u16)>().prop_map(|(ip, port)| (ip, port).into())
}

/// Four-tuples of both address families.
fn tuple() -> impl Strategy<Value = FourTuple> {
    prop_oneof![(v4(), v4()), (v6(), v6())].prop_map(|(local, remote)| FourTuple { local, remote })
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), KEY_LEN_MIN..=52)
}

#[test]
fn hashes_are_those_of_the_verification_suite() {
    let table = table(&KEY);
    for (destination, source, of_addresses, with_tcp) in VECTORS {
        let (local, remote) = (destination.parse().unwrap(), source.parse().unwrap());
        assert_eq!(table.hash(&FourTuple { local, remote }), with_tcp, "{source}");
        let expected = inputs(remote, local).map(|input| reference_hash(&KEY, &input));
        assert_eq!([of_addresses, with_tcp], expected, "{source}");
    }
}

#[test]
fn short_keys_and_empty_tables_are_refused() {
    assert_eq!(KEY_LEN_MIN, KEY.len());
    let short = RssTable::new(&KEY[..39], &[0]);
    assert_eq!(short, Err(RssTableError::KeyTooShort { len: 39 }));
    assert_eq!(RssTable::new(&KEY, &[]), Err(RssTableError::EmptyTable));
    assert!(RssTable::new(&KEY, &[0]).is_ok());
}

#[test]
fn index_is_the_hash_modulo_the_length_of_the_table() {
    let of_len = |len| RssTable::new(&KEY, &identity(len)).unwrap();
    assert_eq!(of_len(128).queue_of_hash(0x51cc_c178), 0x78);
    assert_eq!(of_len(512).queue_of_hash(0x51cc_c178), 0x178);
    assert_eq!(of_len(100).queue_of_hash(4_294_967_242), 42);
    assert_eq!(of_len(1).queue_of_hash(u32::MAX), 0);
    assert_eq!(RssTable::new(&KEY, &[7, 3]).unwrap().queue_of_hash(5), 3);
}

#[test]
fn ephemeral_ports_are_spread_evenly_over_the_table() {
    let table = table(&KEY);
    for (local, remote, ..) in VECTORS {
        let local: SocketAddr = local.parse().unwrap();
        let solver = PortSolver::new(&table, local.ip(), remote.parse().unwrap());
        let mut ports = [0; 128];
        for port in 49_152..=u16::MAX {
            ports[usize::from(solver.queue_of_port(port))] += 1;
        }
        assert_eq!(ports, [128; 128], "{remote}");
    }
}

proptest! {
    #[test]
    fn hash_equals_the_reference(key in key(), tuple in tuple()) {
        let [_, input] = inputs(tuple.remote, tuple.local);
        prop_assert_eq!(table(&key).hash(&tuple), reference_hash(&key, &input));
    }

    #[test]
    fn solver_equals_the_hash_of_the_four_tuple(
        key in key(),
        queues in vec(any::<u16>(), 1..200),
        tuple in tuple(),
        ports in vec(any::<u16>(), 64),
    ) {
        let table = RssTable::new(&key, &queues).unwrap();
        let solver = PortSolver::new(&table, tuple.local.ip(), tuple.remote);
        for port in ports.into_iter().chain([0, 1, 0x8000, u16::MAX]) {
            let local = SocketAddr::new(tuple.local.ip(), port);
            let tuple = FourTuple { local, ..tuple };
            prop_assert_eq!(solver.hash_of_port(port), table.hash(&tuple));
            prop_assert_eq!(solver.queue_of_port(port), table.queue_of(&tuple));
        }
    }

    #[test]
    fn hash_is_linear(key in key(), a in any::<[(u32, u16); 2]>(), b in any::<[(u32, u16); 2]>()) {
        let table = table(&key);
        let hash = |ends: [(u32, u16); 2]| {
            let [local, remote] =
                ends.map(|(ip, port)| SocketAddrV4::new(ip.into(), port).into());
            table.hash(&FourTuple { local, remote })
        };
        let sum = [0, 1].map(|end| (a[end].0 ^ b[end].0, a[end].1 ^ b[end].1));
        prop_assert_eq!(hash(sum), hash(a) ^ hash(b));
    }

    #[test]
    fn queue_is_one_of_the_table(
        key in key(),
        queues in vec(any::<u16>(), 1..200),
        tuple in tuple(),
    ) {
        let table = RssTable::new(&key, &queues).unwrap();
        prop_assert!(queues.contains(&table.queue_of(&tuple)));
    }

    #[test]
    fn symmetric_key_hashes_both_directions_alike(tuple in tuple()) {
        let table = table(&[0x6d, 0x5a].repeat(20));
        let reverse = FourTuple { local: tuple.remote, remote: tuple.local };
        prop_assert_eq!(table.hash(&tuple), table.hash(&reverse));
    }
}
