//! Compares layouts and constants of DPDK in Rust with the values that C computes.

use core::mem::{offset_of, size_of};

use crate::mbuf_field::{OL_FLAGS, TX_OFFLOAD};
use crate::sys;

fn c(which: sys::fw_layout) -> usize {
    // SAFETY: a pure function of its argument.
    let value = unsafe { sys::fw_layout_value(which) };
    usize::try_from(value).unwrap()
}

#[test]
fn sizes_and_offsets_agree_with_c() {
    use sys::*;
    let rust = [
        (FW_SIZEOF_ETH_CONF, size_of::<rte_eth_conf>()),
        (FW_OFFSETOF_ETH_CONF_RXMODE, offset_of!(rte_eth_conf, rxmode)),
        (FW_OFFSETOF_ETH_CONF_TXMODE, offset_of!(rte_eth_conf, txmode)),
        (FW_SIZEOF_ETH_DEV_INFO, size_of::<rte_eth_dev_info>()),
        (FW_OFFSETOF_DEV_INFO_DEVICE, offset_of!(rte_eth_dev_info, device)),
        (FW_OFFSETOF_DEV_INFO_RX_OFFLOAD_CAPA, offset_of!(rte_eth_dev_info, rx_offload_capa)),
        (FW_OFFSETOF_DEV_INFO_DEFAULT_TXCONF, offset_of!(rte_eth_dev_info, default_txconf)),
        (FW_SIZEOF_ETH_RXCONF, size_of::<rte_eth_rxconf>()),
        (FW_SIZEOF_ETH_TXCONF, size_of::<rte_eth_txconf>()),
        (FW_SIZEOF_ETHER_ADDR, size_of::<rte_ether_addr>()),
        (FW_SIZEOF_DEVARGS, size_of::<rte_devargs>()),
    ];
    assert_eq!(rust.len(), usize::try_from(FW_LAYOUT_COUNT).unwrap(), "every row is checked");
    for (row, (which, value)) in rust.into_iter().enumerate() {
        assert_eq!(usize::try_from(which).unwrap(), row, "rows in the order of wrapper.h");
        assert_eq!(value, c(which), "row {row} of enum fw_layout");
    }
    assert_eq!(c(FW_LAYOUT_COUNT), usize::MAX, "one past the end is refused");
}

#[test]
fn constants_agree_with_c() {
    let rust = [
        u64::from(sys::RTE_MBUF_F_RX_IP_CKSUM_BAD),
        u64::from(sys::RTE_MBUF_F_RX_IP_CKSUM_GOOD),
        u64::from(sys::RTE_MBUF_F_RX_L4_CKSUM_BAD),
        u64::from(sys::RTE_MBUF_F_RX_L4_CKSUM_GOOD),
        sys::RTE_MBUF_F_TX_IPV4,
        sys::RTE_MBUF_F_TX_IPV6,
        sys::RTE_MBUF_F_TX_IP_CKSUM,
        sys::RTE_MBUF_F_TX_TCP_CKSUM,
        sys::RTE_MBUF_F_TX_TCP_SEG,
        u64::from(sys::RTE_PKTMBUF_HEADROOM),
        sys::FW_TX_OFFLOAD_IPV4_CKSUM,
        sys::FW_TX_OFFLOAD_TCP_CKSUM,
        sys::FW_TX_OFFLOAD_TCP_TSO,
        sys::FW_TX_OFFLOAD_MULTI_SEGS,
        sys::FW_RX_OFFLOAD_IPV4_CKSUM,
        sys::FW_RX_OFFLOAD_TCP_CKSUM,
        sys::FW_RX_OFFLOAD_SCATTER,
        sys::FW_RX_OFFLOAD_RSS_HASH,
        sys::FW_RSS_IP,
        sys::FW_RSS_TCP_IPV4,
        sys::FW_RSS_TCP_IPV6,
        u64::from(sys::RTE_ETH_MQ_RX_RSS),
        size_of::<sys::rte_eth_rss_conf>() as u64,
        size_of::<sys::rte_eth_rss_reta_entry64>() as u64,
    ];
    for (index, value) in rust.into_iter().enumerate() {
        // SAFETY: a pure function of its argument.
        let c = unsafe { sys::fw_constant(u32::try_from(index).unwrap()) };
        assert_eq!(value, c, "constant {index}");
    }
}

#[test]
fn field_access_agrees_with_c() {
    let eal = crate::Eal::init(&crate::EalConfig::default()).unwrap();
    let config = crate::MempoolConfig { count: 15, cache: 0, frame_capacity: 500 };
    let pool = crate::Mempool::new(eal, &config).unwrap();
    let mut frames = Vec::new();
    assert!(pool.allocate(&mut frames, 1));
    let mut frame = frames.remove(0);
    let raw = frame.0.as_ptr();
    // SAFETY: a live mbuf; C only reads it.
    let (start, tail) = (unsafe { sys::fw_mtod(raw) }, unsafe { sys::fw_tailroom(raw) });
    let buf = frame.buf_mut();
    assert_eq!(buf.len(), 500);
    assert_eq!(buf.len(), usize::from(tail));
    assert_eq!(buf.as_mut_ptr().cast(), start);
    frame.set_len(60);
    // SAFETY: as above.
    assert_eq!(unsafe { sys::fw_tailroom(raw) }, 440);
    frame.request_checksum(14, 20, 32, true);
    for segment in [0, 1448] {
        if segment != 0 {
            frame.request_segmentation(segment.into());
        }
        let word = TX_OFFLOAD.get(frame.exclusive());
        // SAFETY: a pure function of its arguments.
        assert_eq!(word, unsafe { sys::fw_tx_offload_word(14, 20, 32, segment) });
    }
}

#[test]
fn ip_checksum_is_requested_for_ipv4_only_where_the_port_has_it() {
    let eal = crate::Eal::init(&crate::EalConfig::default()).unwrap();
    let config = crate::MempoolConfig { count: 15, cache: 0, frame_capacity: 500 };
    let pool = crate::Mempool::new(eal, &config).unwrap();
    let (v4, v6) = (sys::RTE_MBUF_F_TX_IPV4, sys::RTE_MBUF_F_TX_IPV6);
    let (ip, tcp) = (sys::RTE_MBUF_F_TX_IP_CKSUM, sys::RTE_MBUF_F_TX_TCP_CKSUM);
    for (l2, l3, ipv4, wanted) in [
        (14, 20, true, v4 | ip | tcp),
        (18, 20, true, v4 | ip | tcp),
        (14, 20, false, v4 | tcp),
        (14, 40, true, v6 | tcp),
        (18, 40, false, v6 | tcp),
    ] {
        let mut frames = Vec::new();
        assert!(pool.allocate(&mut frames, 1));
        let mut frame = frames.remove(0);
        // The headers are written later.
        frame.buf_mut()[..200].fill(0);
        frame.set_len(l2 + l3 + 20);
        frame.request_checksum(l2, l3, 20, ipv4);
        assert_eq!(OL_FLAGS.get(frame.exclusive()) & (v4 | v6 | ip | tcp), wanted, "{l2} {l3}");
    }
}

#[test]
fn checksum_flags_are_read_piece_by_piece() {
    use crate::mbuf::RxChecksum::{self, Bad, Good, TransportGood, Unknown};
    let [ip_bad, ip_good, l4_bad, l4_good] = [
        sys::RTE_MBUF_F_RX_IP_CKSUM_BAD,
        sys::RTE_MBUF_F_RX_IP_CKSUM_GOOD,
        sys::RTE_MBUF_F_RX_L4_CKSUM_BAD,
        sys::RTE_MBUF_F_RX_L4_CKSUM_GOOD,
    ]
    .map(u64::from);
    for (flags, state) in [
        (0, Unknown),
        (ip_good, Unknown),
        (l4_good, TransportGood),
        (ip_good | l4_good, Good),
        (ip_bad | l4_good, Bad),
        (ip_good | l4_bad, Bad),
        (l4_bad, Bad),
        (ip_bad, Bad),
        // Intact, and the field never filled in.
        (l4_bad | l4_good, TransportGood),
        (ip_bad | ip_good | l4_bad | l4_good, Good),
    ] {
        assert_eq!(RxChecksum::from_flags(flags), state, "{flags:#x}");
    }
}
