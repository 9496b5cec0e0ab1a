//! Ours, by `iwperf`: RDMA Writes.

use std::rc::Rc;

use super::{Peer, Test, own_version};
use crate::iwperf::{self, Iwperf, Place};

/// Largest MTU of the library, next to the loopback's 65,536.
pub(crate) const LARGEST_MTU: u16 = 65_280;

/// Returns `iwperf` with an MTU, or with its default: two processes over `memif` with CRC, or one
/// over `ring` without. It runs all tests, or long messages of one queue pair alone.
pub(crate) fn peer(iwperf: &Rc<Iwperf>, place: Place, mtu: Option<u16>, runs_all: bool) -> Peer {
    let is_memif = matches!(place, Place::Memif(_));
    let kind = if is_memif {
        "two processes over `memif`, checksums in software, CRC on"
    } else {
        "`loop` over `ring`, no checksums, no CRC"
    };
    let iwperf = Rc::clone(iwperf);
    let with_mtu = mtu.map_or_else(|| "its default MTU".to_owned(), |mtu| format!("MTU {mtu}"));
    Peer {
        name: match mtu {
            Some(9000) if is_memif => "ferrowarp, MTU 9000",
            Some(LARGEST_MTU) => "ferrowarp, MTU 65280",
            _ => "ferrowarp",
        },
        about: format!("`iwperf write-bw`, `write-lat`: RDMA Writes, {kind}, {with_mtu}"),
        is_ours: true,
        version: Ok(own_version()),
        supports: Box::new(move |test| {
            runs_all || matches!(test, Test::Stream { size: 4096.., connections: 1 })
        }),
        run: Box::new(move |test, seconds| {
            let (name, size, qps) = match test {
                Test::Stream { size, connections } => ("write-bw", size, connections),
                Test::PingPong { size } => ("write-lat", size, 1),
            };
            let mut options = vec!["--qps".to_owned(), qps.to_string()];
            options.extend((!is_memif).then(|| "--no-crc".to_owned()));
            let test = iwperf::Test { name, mtu, size, options, checksum: None };
            iwperf.run(&place, &test, seconds)
        }),
    }
}
