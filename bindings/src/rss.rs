//! RSS of a started port: hash key and redirection table, as its driver has set them.

use crate::attached::Attached;
use crate::eal::control_lock;
use crate::sys;

/// Packet types that are hashed: IP by its addresses, TCP by the four-tuple.
pub(crate) const HASHED: u64 = sys::FW_RSS_IP | sys::FW_RSS_TCP_IPV4 | sys::FW_RSS_TCP_IPV6;

/// Key length in bytes if the driver does not tell it: the one of the Toeplitz hash over the
/// longest input, 36 bytes of addresses and ports, and the hash's width.
const KEY_LEN: u8 = 40;

/// Entries of one group of the redirection table (`RTE_ETH_RETA_GROUP_SIZE`).
const GROUP_LEN: usize = 64;

/// RSS hash key and redirection table of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssConfig {
    /// Key of the Toeplitz hash, 40 bytes with most NICs.
    pub key: Vec<u8>,
    /// Receive queue by hash modulo the number of entries.
    pub table: Vec<u16>,
    /// TCP over IPv4 is hashed by the four-tuple.
    pub tcp_ipv4: bool,
    /// TCP over IPv6 is hashed by the four-tuple.
    pub tcp_ipv6: bool,
}

/// Reads key and table of a started port; `None` if it hashes nothing, or its driver does not tell.
pub(crate) fn read(port: &Attached) -> Option<RssConfig> {
    let _control = control_lock();
    let info = port.raw_info().ok()?;
    let mut key =
        vec![0; usize::from(if info.hash_key_size == 0 { KEY_LEN } else { info.hash_key_size })];
    let mut conf = sys::rte_eth_rss_conf {
        rss_key: key.as_mut_ptr(),
        rss_key_len: u8::try_from(key.len()).ok()?,
        ..sys::rte_eth_rss_conf::default()
    };
    // SAFETY: a started port, and a structure to fill, with space for a key of the driver's length.
    if unsafe { sys::rte_eth_dev_rss_hash_conf_get(port.id, &raw mut conf) } != 0 {
        return None;
    }
    if conf.rss_hf & HASHED == 0 || info.reta_size == 0 {
        return None;
    }
    let len = usize::from(info.reta_size);
    let all = sys::rte_eth_rss_reta_entry64 { mask: u64::MAX, reta: [0; GROUP_LEN] };
    let mut groups = vec![all; len.div_ceil(GROUP_LEN)];
    // SAFETY: a started port, and the groups that its table of this size has.
    let status =
        unsafe { sys::rte_eth_dev_rss_reta_query(port.id, groups.as_mut_ptr(), info.reta_size) };
    if status != 0 {
        return None;
    }
    let mut table: Vec<u16> = groups.iter().flat_map(|group| group.reta).collect();
    table.truncate(len);
    Some(RssConfig {
        key,
        table,
        tcp_ipv4: conf.rss_hf & sys::FW_RSS_TCP_IPV4 != 0,
        tcp_ipv6: conf.rss_hf & sys::FW_RSS_TCP_IPV6 != 0,
    })
}
