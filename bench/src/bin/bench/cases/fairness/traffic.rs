//! The traffic beside which latency is measured.

/// Segments that a connection sends per pass, at most (`connection/tx.rs`).
pub(crate) const QUANTUM_SEGMENTS: usize = 16;
/// Bytes around a payload in an FPDU: ULPDU length, tagged header, CRC.
const FPDU_OVERHEAD_LEN: usize = 2 + 14 + 4;
/// Bytes of IP and TCP headers with timestamps, at IPv4.
const HEADERS_LEN: usize = 20 + 20 + 12;

/// Traffic beside the Writes whose latency is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Name, by which `--rows` selects it.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Whether each queue pair has a context and a port of its own, all connected to one sink.
    pub(crate) is_incast: bool,
    pub(crate) qps: usize,
    pub(crate) size: u32,
    pub(crate) depth: usize,
}

pub(crate) fn all() -> Vec<Traffic> {
    let kind =
        |name, title, qps, size, depth| Traffic { name, title, is_incast: false, qps, size, depth };
    vec![
        kind("stream", "1 MiB Writes on another queue pair", 1, 1 << 20, 16),
        kind("qps-64", "64-byte Writes on 1,000 queue pairs", 1000, 64, 16),
        kind("qps-64K", "64 KiB Writes on 1,000 queue pairs", 1000, 65_536, 2),
        Traffic {
            is_incast: true,
            ..kind("incast-64", "64-byte Writes of 31 other senders", 31, 64, 1)
        },
        Traffic {
            is_incast: true,
            ..kind("incast-64K", "64 KiB Writes of 31 other senders", 31, 65_536, 16)
        },
    ]
}

impl Traffic {
    /// Returns the segments that a queue pair sends when it is served, at most: a quantum, or all
    /// that it has outstanding.
    pub(crate) fn quantum(&self, mtu: u16) -> usize {
        let capacity = usize::from(mtu) - HEADERS_LEN;
        let outstanding = self.depth * (self.size as usize + FPDU_OVERHEAD_LEN);
        // A message that exceeds a segment has an FPDU in each.
        let segments = outstanding.div_ceil(capacity - FPDU_OVERHEAD_LEN);
        segments.min(QUANTUM_SEGMENTS)
    }
}
