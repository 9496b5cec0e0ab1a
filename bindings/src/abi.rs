//! Number of DPDK's binary interface.

use crate::sys;

/// Number in the names of DPDK's libraries and of Debian's packages with them: 23 for DPDK 22.11,
/// whose EAL is `librte_eal.so.23` in the package `librte-eal23`. DPDK raises it each November.
pub const ABI: u32 = sys::RTE_VER_YEAR + (sys::RTE_VER_MONTH == 11) as u32;
