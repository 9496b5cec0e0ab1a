//! The traffic beside which latency is measured.

/// Segments that a connection sends per pass, at most (`connection/tx.rs`).
pub const QUANTUM_SEGMENTS: usize = 16;
/// Bytes around a payload in an FPDU: ULPDU length, tagged header, CRC.
const FPDU_OVERHEAD_LEN: usize = 2 + 14 + 4;
/// Bytes of IP and TCP headers with timestamps, at IPv4.
const HEADERS_LEN: usize = 20 + 20 + 12;

/// Traffic beside the Writes whose latency is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Name, by which `--cases` selects it.
    pub name: &'static str,
    /// What it is.
    pub title: &'static str,
    /// Whether each queue pair has a context and a port of its own, all connected to one sink.
    pub is_incast: bool,
    /// Queue pairs that compete.
    pub qps: usize,
    /// Bytes of their Writes.
    pub size: u32,
    /// Outstanding Writes of each.
    pub depth: usize,
}

/// Returns all cases.
#[must_use]
pub fn all() -> Vec<Case> {
    let case =
        |name, title, qps, size, depth| Case { name, title, is_incast: false, qps, size, depth };
    vec![
        case("stream", "1 MiB Writes on another queue pair", 1, 1 << 20, 16),
        case("qps-64", "64-byte Writes on 1,000 queue pairs", 1000, 64, 16),
        case("qps-64K", "64 KiB Writes on 1,000 queue pairs", 1000, 65_536, 2),
        Case {
            is_incast: true,
            ..case("incast-64", "64-byte Writes of 31 other senders, one at a time", 31, 64, 1)
        },
        Case {
            is_incast: true,
            ..case("incast-64K", "64 KiB Writes of 31 other senders", 31, 65_536, 16)
        },
    ]
}

impl Case {
    /// Returns the segments that a queue pair sends when it is served, at most: a quantum, or all
    /// that it has outstanding.
    #[must_use]
    pub fn quantum(&self, mtu: u16) -> usize {
        let capacity = usize::from(mtu) - HEADERS_LEN;
        let outstanding = self.depth * (self.size as usize + FPDU_OVERHEAD_LEN);
        // A message that exceeds a segment has an FPDU in each.
        let segments = outstanding.div_ceil(capacity - FPDU_OVERHEAD_LEN);
        segments.min(QUANTUM_SEGMENTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantum_is_bounded_by_what_is_outstanding() {
        let quanta: Vec<usize> = all().iter().map(|case| case.quantum(1500)).collect();
        assert_eq!(quanta, [16, 1, 16, 1, 16]);
    }
}
