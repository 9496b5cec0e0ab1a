//! Offloads of a port: work on packets that it takes over, each offered and asked for by itself.

use crate::sys;

/// Work on packets that a port may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offload {
    /// Fills in the checksum of the IPv4 header of sent frames, on request.
    TxIpv4Checksum,
    /// Fills in the TCP checksum of sent frames, on request.
    TxTcpChecksum,
    /// Cuts a frame longer than the MTU into TCP segments, on request (TSO): the frame is a chain
    /// of mbufs.
    TxTcpSegmentation,
    /// Verifies the checksum of the IPv4 header of received frames.
    RxIpv4Checksum,
    /// Verifies the TCP checksum of received frames.
    RxTcpChecksum,
    /// Receives a frame in several buffers.
    RxScatter,
    /// Delivers the RSS hash of received frames.
    RxRssHash,
}

/// Set of offloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offloads {
    rx: u64,
    tx: u64,
}

impl Offloads {
    /// No offload.
    pub const NONE: Self = Self { rx: 0, tx: 0 };

    /// Returns the offloads that a port offers.
    pub(crate) const fn offered(info: &sys::rte_eth_dev_info) -> Self {
        Self { rx: info.rx_offload_capa, tx: info.tx_offload_capa }
    }

    /// Returns those that are in all of these pairs of a receive and a transmit mode.
    pub(crate) fn common(modes: impl Iterator<Item = (u64, u64)>) -> Self {
        modes
            .map(|(rx, tx)| Self { rx, tx })
            .reduce(|all, mode| Self { rx: all.rx & mode.rx, tx: all.tx & mode.tx })
            .unwrap_or_default()
    }

    const fn of(offload: Offload) -> Self {
        const MULTI_SEGS: u64 = sys::FW_TX_OFFLOAD_MULTI_SEGS;
        let (rx, tx) = match offload {
            Offload::TxIpv4Checksum => (0, sys::FW_TX_OFFLOAD_IPV4_CKSUM),
            Offload::TxTcpChecksum => (0, sys::FW_TX_OFFLOAD_TCP_CKSUM),
            Offload::TxTcpSegmentation => (0, sys::FW_TX_OFFLOAD_TCP_TSO | MULTI_SEGS),
            Offload::RxIpv4Checksum => (sys::FW_RX_OFFLOAD_IPV4_CKSUM, 0),
            Offload::RxTcpChecksum => (sys::FW_RX_OFFLOAD_TCP_CKSUM, 0),
            Offload::RxScatter => (sys::FW_RX_OFFLOAD_SCATTER, 0),
            Offload::RxRssHash => (sys::FW_RX_OFFLOAD_RSS_HASH, 0),
        };
        Self { rx, tx }
    }

    /// True if the set has the offload.
    #[must_use]
    pub const fn has(self, offload: Offload) -> bool {
        let Self { rx, tx } = Self::of(offload);
        self.rx & rx == rx && self.tx & tx == tx
    }

    /// Returns the set with an offload added.
    #[must_use]
    pub const fn with(self, offload: Offload) -> Self {
        let Self { rx, tx } = Self::of(offload);
        Self { rx: self.rx | rx, tx: self.tx | tx }
    }

    /// Returns the bits of the configuration's receive mode and transmit mode.
    pub(crate) const fn bits(self) -> (u64, u64) {
        (self.rx, self.tx)
    }
}
