//! MAC address of the stack on a port.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::quirks::MacFrom;

/// Returns the stack's MAC address on a port with the address `port`, all zero if it has none.
pub(super) fn stack_mac(port: [u8; 6], from: MacFrom) -> [u8; 6] {
    let [first, b, c, d, e, last] = port;
    match from {
        _ if port == [0; 6] => next_local_mac(),
        MacFrom::Port => port,
        // Locally administered, unicast.
        MacFrom::PortFlipped => [(first | 0x02) & 0xfe, b, c, d, e, last ^ 0x01],
        MacFrom::Local => next_local_mac(),
    }
}

/// Returns a locally administered MAC address that is unique in this process.
fn next_local_mac() -> [u8; 6] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [_, _, high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let [.., a, b] = std::process::id().to_be_bytes();
    [0x02, 0xfe, a, b, high, low]
}
