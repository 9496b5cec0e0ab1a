//! Mempool sizes: each count is a sum of named components.

use dpdk_sys::BURST;
use ferrowarp_proto::device::{PACKET_CAPACITY_MIN, frame_capacity};
use ferrowarp_proto::setters;

use crate::device::device_error::DeviceError;
use crate::device::quirks::DriverQuirks;
use crate::device::spec::DeviceSpec;

/// Layer 2 overhead per frame, in bytes: Ethernet header, and 18 for tags and the frame check
/// sequence.
const L2_OVERHEAD: u16 = 14 + 18;

/// TCP and IPv4 headers without options, in bytes: overhead of a data segment.
const TCP_IPV4_HEADER_LEN: u32 = 40;

/// Largest FPDU in bytes, rounded up to a power of two (RFC 5044 section 4: 16-bit ULPDU_Length).
const FPDU_BYTES_MAX: u32 = 65_536;

/// Smallest MTU: below it the headers and the shortest FPDU do not fit in a packet. IPv6 requires
/// 1280 (RFC 8200 section 5).
pub const MTU_MIN: u16 = ferrowarp_proto::device::MTU_MIN;

/// Largest MTU: an mbuf's buffer length, headroom included, has 16 bits.
pub const MTU_MAX: u16 = ferrowarp_proto::device::MTU_MAX;

/// Minimum length of a frame's first segment, in bytes: all headers lie in it.
pub(super) const FIRST_SEGMENT_LEN_MIN: u16 = 128;

const _: () = assert!(FIRST_SEGMENT_LEN_MIN as usize >= ferrowarp_proto::wire::tcp::MAX_HEADER_LEN);

/// Mempool cache size: mbufs that a registered thread caches per pool. The cache is flushed at 1.5
/// times the size. Twice the size gave the same throughput, half the size 5 % less.
pub(crate) const MEMPOOL_CACHE_SIZE: u32 = 32;

/// Frames for new control packets, independent of the traffic: handshakes, resets, ARP, ICMP.
const CONTROL_FRAME_COUNT: u32 = 128;

/// Frames for retransmission at SND.UNA when all others are in flight.
const RESERVE_FRAME_COUNT: u32 = 64;

/// Demands from which a device's mempool sizes are computed. Each queue pair has mempools of its
/// own, for as much: all of the traffic may arrive on one of them.
///
/// The defaults suit `ring` and memif. They keep the working set near 2 MiB at an MTU of 1,500, so
/// that it stays in the last-level cache: pools many times that size halved the throughput. A
/// device with a real path behind it needs more: see [`PoolNeeds::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolNeeds {
    /// Bytes one connection may have in flight, in each direction. The frames of all windows, and
    /// those of `path_bytes`, are 4,194,304 at most.
    pub window_bytes: u32,
    /// Connections that may have a full window in flight at the same time, at most 65,536.
    pub windows: u32,
    /// Bandwidth-delay product of the path in bytes, per direction, over all connections. 0 if
    /// the peer shares memory.
    pub path_bytes: u32,
    /// Threads that may hold mbufs in their mempool caches, at once or one after another: the
    /// polling threads and up to six others of the application. At most 1,024.
    pub threads: u32,
    /// Capacity of the transmit queue: frames waiting for one flush, 1 to 65,536.
    pub tx_queue: u32,
}

impl PoolNeeds {
    /// Demands for `ring` and memif.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            window_bytes: 256 << 10,
            windows: 4,
            path_bytes: 0,
            threads: Self::THREADS,
            tx_queue: 256,
        }
    }

    setters! {
        window_bytes: u32,
        windows: u32,
        path_bytes: u32,
        threads: u32,
        tx_queue: u32,
    }

    /// Default of [`PoolNeeds::threads`]: six of the application, and the two that poll the
    /// devices of a pair.
    pub(crate) const THREADS: u32 = 8;

    /// Returns the demands of a kind of device. The path behind a network interface or a NIC is
    /// unknown: 8 MiB in flight, which is 1 Gb/s over 64 ms or 10 Gb/s over 6 ms.
    #[must_use]
    pub fn of(device: &DeviceSpec) -> Self {
        let path_bytes = DriverQuirks::of(device.driver().unwrap_or_default()).path_bytes;
        Self::new().path_bytes(path_bytes)
    }
}

impl Default for PoolNeeds {
    fn default() -> Self {
        Self::new()
    }
}

/// Sizes of a device's mempools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    /// Bytes of frame in each buffer.
    pub frame_capacity: u16,
    /// Received frames. 0 for `ring`, where the peer's mbufs arrive themselves.
    pub receive: u32,
    /// Data segments.
    pub data: u32,
    /// Frames without stream data.
    pub control: u32,
    /// Retransmissions when `data` is exhausted.
    pub reserve: u32,
}

/// Size of one mempool for all frames that several queue pairs send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OnePool {
    /// Bytes of frame in each buffer, at least.
    pub(super) frame_capacity: u16,
    /// Number of mbufs, at least.
    pub(super) count: u32,
    /// Mbufs that data segments leave in the pool, for all other frames.
    pub(super) left_by_data: u32,
    /// Mbufs that control packets leave in the pool, for retransmissions at SND.UNA.
    pub(super) left_by_control: u32,
}

impl PoolNeeds {
    /// Frames in flight, at most: 8 GiB of buffers at an MTU of 1,500.
    const IN_FLIGHT_MAX: u32 = 1 << 22;
    /// Largest value of each other demand.
    const WINDOWS_MAX: u32 = 1 << 16;
    const THREADS_MAX: u32 = 1024;
    const TX_QUEUE_MAX: u32 = 1 << 16;

    /// Fails if a demand is outside its range, or if there are too many frames in all.
    pub(super) fn check(&self, mtu: u16) -> Result<(), DeviceError> {
        for (setting, value, min, max) in [
            ("pools.windows", self.windows, 0, Self::WINDOWS_MAX),
            ("pools.threads", self.threads, 0, Self::THREADS_MAX),
            // With none nothing could be sent.
            ("pools.tx_queue", self.tx_queue, 1, Self::TX_QUEUE_MAX),
        ] {
            if !(min..=max).contains(&value) {
                let [value, min, max] = [value, min, max].map(u64::from);
                return Err(DeviceError::OutOfRange { setting, value, min, max });
            }
        }
        let frames = self.in_flight(mtu);
        if frames > Self::IN_FLIGHT_MAX {
            return Err(DeviceError::PoolsTooLarge { frames, max: Self::IN_FLIGHT_MAX });
        }
        Ok(())
    }

    /// Returns the size of one mempool for `queues` queue pairs, of which each thread caches
    /// `cache` mbufs. The threads are those of all queue pairs ([`PoolNeeds::of_queue`]). Other
    /// contexts on the port receive the mbufs themselves, as the peer does over `ring`.
    pub(super) fn one_pool(
        &self,
        mtu: u16,
        tx_descriptors: u16,
        queues: u16,
        cache: u32,
    ) -> OnePool {
        let queues = u32::from(queues);
        let in_flight = self.in_flight(mtu).saturating_add(u32::from(BURST));
        let data = in_flight.saturating_add(self.held_by_peer(mtu));
        // A cache is flushed at 1.5 times its size.
        let cached = self.threads.saturating_mul(cache.saturating_add(cache / 2));
        let control = queues.saturating_mul(CONTROL_FRAME_COUNT.saturating_add(self.tx_queue));
        let reserve = queues.saturating_mul(RESERVE_FRAME_COUNT);
        let held = queues.saturating_mul(data.saturating_add(u32::from(tx_descriptors)));
        OnePool {
            frame_capacity: one_pool_frame_capacity(mtu),
            count: held.saturating_add(control).saturating_add(reserve).saturating_add(cached),
            left_by_data: control.saturating_add(reserve),
            left_by_control: reserve,
        }
    }

    /// Returns the sizes for `ring`, where each side holds mbufs of the other's pools.
    #[must_use]
    pub fn ring_sizes(&self, mtu: u16) -> PoolSizes {
        let sizes = self.sizes(mtu, 0, 0);
        PoolSizes { receive: 0, data: sizes.data.saturating_add(self.held_by_peer(mtu)), ..sizes }
    }

    /// Frames that are acknowledged, but held by the peer until the FPDU is complete.
    fn held_by_peer(&self, mtu: u16) -> u32 {
        self.windows.saturating_mul(FPDU_BYTES_MAX.div_ceil(segment_len(mtu)))
    }

    /// Returns the demands of each of `queues` queue pairs: the threads that poll the others may
    /// free its frames into their mempool caches.
    #[must_use]
    pub(crate) fn of_queue(self, queues: u16, is_pair: bool) -> Self {
        let others = u32::from(queues.saturating_sub(1)) * if is_pair { 2 } else { 1 };
        Self { threads: self.threads.saturating_add(others), ..self }
    }

    /// Returns how many frames may be in flight at once: the larger of all windows and the
    /// bandwidth-delay product.
    #[must_use]
    pub fn in_flight(&self, mtu: u16) -> u32 {
        let windows = self.windows.saturating_mul(self.window_bytes.div_ceil(segment_len(mtu)));
        windows.max(self.path_bytes.div_ceil(segment_len(mtu)))
    }

    /// Returns the sizes for a port with these numbers of descriptors.
    #[must_use]
    pub fn sizes(&self, mtu: u16, rx_descriptors: u16, tx_descriptors: u16) -> PoolSizes {
        let in_flight = self.in_flight(mtu);
        // A cache is flushed at 1.5 times its size.
        let cached = self.threads.saturating_mul(MEMPOOL_CACHE_SIZE + MEMPOOL_CACHE_SIZE / 2);
        let burst = u32::from(BURST);
        // More than a port can have is refused when it is opened.
        let sum = |counts: [u32; 4]| counts.into_iter().fold(0, u32::saturating_add);
        let descriptors = u32::from(rx_descriptors);
        PoolSizes {
            frame_capacity: own_frame_capacity(mtu),
            // Posted to the port; held out of order or for an incomplete FPDU; the current burst;
            // cached.
            receive: sum([descriptors, in_flight, burst, cached]),
            // In flight; acknowledged but still held by the port; allocated in advance; cached.
            data: sum([in_flight, tx_descriptors.into(), burst, cached]),
            // New control packets; queued behind data; held by the port; cached.
            control: sum([CONTROL_FRAME_COUNT, self.tx_queue, tx_descriptors.into(), cached]),
            reserve: RESERVE_FRAME_COUNT,
        }
    }
}

/// Returns the bytes of frame in each buffer of a pool that we create.
fn own_frame_capacity(mtu: u16) -> u16 {
    mtu.max(PACKET_CAPACITY_MIN).saturating_add(L2_OVERHEAD).next_multiple_of(64)
}

/// Returns the bytes of frame that each buffer of the host program's pool has to have.
fn one_pool_frame_capacity(mtu: u16) -> u16 {
    u16::try_from(frame_capacity(mtu)).unwrap_or(u16::MAX)
}

impl OnePool {
    /// Has buffers for packets of `mtu` bytes at least.
    pub(super) fn with_room_for(self, mtu: u16) -> Self {
        Self { frame_capacity: self.frame_capacity.max(one_pool_frame_capacity(mtu)), ..self }
    }
}

/// Returns how many bytes of stream data one frame carries.
fn segment_len(mtu: u16) -> u32 {
    u32::from(mtu).saturating_sub(TCP_IPV4_HEADER_LEN).max(1)
}

impl PoolSizes {
    /// Has buffers for packets of `mtu` bytes at least.
    pub(super) fn with_room_for(self, mtu: u16) -> Self {
        Self { frame_capacity: self.frame_capacity.max(own_frame_capacity(mtu)), ..self }
    }

    /// Returns the memory of all four pools in bytes, approximately.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        /// Mbuf header, headroom and mempool object header, in bytes.
        const OVERHEAD: u64 = 128 + 128 + 64;
        let frames = [self.receive, self.data, self.control, self.reserve].map(u64::from);
        frames.iter().sum::<u64>() * (u64::from(self.frame_capacity) + OVERHEAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_pools_hold_four_windows_within_the_cache() {
        let ring = PoolNeeds::new().ring_sizes(1500);
        assert!(ring.data >= 4 * (256 << 10) / 1460);
        assert!(u64::from(ring.data) * u64::from(ring.frame_capacity) < 2 << 20);
        assert_eq!(ring.receive, 0);
        assert!(usize::from(ring.frame_capacity) >= 1500 + 18);
        let jumbo = PoolNeeds::new().ring_sizes(9000);
        assert!(jumbo.data >= 4 * (256 << 10) / 8960);
        assert!(usize::from(jumbo.frame_capacity) >= 9000 + 18);
        assert!(jumbo.memory_bytes() < 32 << 20);
    }

    #[test]
    fn pools_cover_the_bandwidth_delay_product() {
        let sizes = |name: &str| PoolNeeds::of(&name.parse().unwrap()).sizes(1500, 8, 8);
        for name in ["tap:a", "af_packet:a", "af_xdp:a", "pci:00:01.0", "eal:-a 1"] {
            let sizes = sizes(name);
            assert!(sizes.data >= (8 << 20) / 1460 && sizes.receive >= (8 << 20) / 1460, "{name}");
            assert!(sizes.memory_bytes() < 32 << 20, "{name}: {}", sizes.memory_bytes());
        }
        assert_eq!(sizes("memif:/a"), PoolNeeds::new().sizes(1500, 8, 8));
        // A few busy connections with small windows add nothing.
        let tap = PoolNeeds::of(&"tap:a".parse().unwrap());
        assert_eq!(PoolNeeds { windows: 16, ..tap }.in_flight(1500), tap.in_flight(1500));
    }

    #[test]
    fn pools_grow_by_the_descriptor_counts() {
        let none = PoolNeeds::new().sizes(1500, 0, 0);
        let some = PoolNeeds::new().sizes(1500, 512, 256);
        assert_eq!(some.receive - none.receive, 512);
        assert_eq!(some.data - none.data, 256);
    }

    #[test]
    fn pools_of_a_queue_cover_the_caches_of_all_polling_threads() {
        let one = PoolNeeds::new();
        assert_eq!(one.of_queue(1, true), one);
        let [two, four] = [2, 4].map(|queues| one.of_queue(queues, true).ring_sizes(1500));
        let cache = MEMPOOL_CACHE_SIZE + MEMPOOL_CACHE_SIZE / 2;
        assert_eq!(two.data, one.ring_sizes(1500).data + 2 * cache);
        assert_eq!(four.control, two.control + 4 * cache);
        let sixteen = PoolNeeds::of(&"tap:a".parse().unwrap()).of_queue(16, false);
        assert!(sixteen.sizes(1500, 8, 8).memory_bytes() < 32 << 20);
    }

    #[test]
    fn demands_beyond_their_range_are_refused_with_it() {
        let refused = |needs: PoolNeeds| needs.check(1500).map_err(|error| error.to_string());
        let ok = PoolNeeds::new();
        assert_eq!(refused(ok), Ok(()));
        for (needs, message) in [
            (
                PoolNeeds { tx_queue: 0, ..ok },
                "pools.tx_queue of 0 is not possible: give 1 to 65536",
            ),
            (
                PoolNeeds { threads: u32::MAX, ..ok },
                "pools.threads of 4294967295 is not possible: give 0 to 1024",
            ),
            (
                PoolNeeds { windows: 65_537, ..ok },
                "pools.windows of 65537 is not possible: give 0 to 65536",
            ),
            (
                PoolNeeds { window_bytes: u32::MAX, ..ok },
                "pools for 11767036 frames in flight are too large: lower window_bytes, windows or \
                 path_bytes of the pools to 4194304 frames",
            ),
        ] {
            assert_eq!(refused(needs), Err(message.to_owned()));
        }
        // The sums do not wrap, whatever the demands.
        let all = PoolNeeds {
            window_bytes: u32::MAX,
            windows: u32::MAX,
            path_bytes: u32::MAX,
            threads: u32::MAX,
            tx_queue: u32::MAX,
        };
        let (sizes, ring) = (all.sizes(256, u16::MAX, u16::MAX), all.ring_sizes(256));
        assert_eq!([sizes.receive, sizes.data, sizes.control, ring.data], [u32::MAX; 4]);
        for needs in [
            PoolNeeds { window_bytes: 0, windows: 0, path_bytes: 0, threads: 0, tx_queue: 1 },
            PoolNeeds { tx_queue: 65_536, threads: 1024, windows: 65_536, window_bytes: 1, ..ok },
        ] {
            assert_eq!(refused(needs), Ok(()));
        }
    }

    #[test]
    fn one_pool_has_room_for_each_kind_of_frame_and_for_the_caches() {
        let needs = PoolNeeds::new();
        let one = needs.one_pool(1500, 64, 1, 0);
        let without_threads = PoolNeeds { threads: 0, ..needs };
        // Other contexts on the port hold frames as well, as the peer does over `ring`.
        let data = without_threads.ring_sizes(1500).data;
        let sizes = without_threads.sizes(1500, 0, 0);
        assert!(data > sizes.data);
        assert_eq!(one.count, data + 64 + sizes.control + sizes.reserve);
        assert_eq!(one.left_by_data, sizes.control + sizes.reserve);
        assert_eq!(one.left_by_control, sizes.reserve);
        assert_eq!(one.frame_capacity, 1518);
        let cached = needs.one_pool(1500, 64, 1, 250);
        assert_eq!(cached.count - one.count, needs.threads * 375);
        let two = needs.one_pool(1500, 64, 2, 250);
        assert_eq!(two.count - cached.count, one.count, "the caches are the threads'");
        let all = PoolNeeds { windows: u32::MAX, threads: u32::MAX, ..needs };
        assert_eq!(all.one_pool(1500, 512, 64, 512).count, u32::MAX);
    }

    #[test]
    fn every_mtu_fits_its_buffer() {
        for mtu in MTU_MIN..=MTU_MAX {
            let frame_capacity = PoolNeeds::new().sizes(mtu, 0, 0).frame_capacity;
            assert!(
                usize::from(frame_capacity) >= ferrowarp_proto::device::frame_capacity(mtu),
                "MTU {mtu}"
            );
        }
        let frame_capacity = PoolNeeds::new().sizes(MTU_MAX, 0, 0).frame_capacity;
        assert!(frame_capacity.checked_add(dpdk_sys::HEADROOM).is_some());
        assert!(frame_capacity >= MTU_MAX + 18);
    }
}
