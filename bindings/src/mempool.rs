//! Mempools of mbufs of one size.
//!
//! A mempool is never freed while the process runs. When its last handle is dropped it is no
//! longer in use, and it is reused by the next request of the same configuration once all its
//! mbufs are returned. So no mbuf, wherever a peer or a driver holds it, can outlive its memory.
//!
//! A mempool of the host program ([`Mempool::of_host`]) is the program's to free: not before its
//! handles, and all mbufs allocated through them, are dropped.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::ffi::CString;
use std::sync::Arc;

use crate::eal::{Eal, control_lock};
use crate::error::{Errno, Error};
use crate::lock_order::{Rank, RankedMutex};
use crate::mbuf::TxMbuf;
use crate::sys;

/// Number of mempools created here.
static CREATED: AtomicU32 = AtomicU32::new(0);

/// Headroom of each mbuf: bytes in front of the frame.
#[expect(clippy::cast_possible_truncation, reason = "128 in every build")]
pub const HEADROOM: u16 = sys::RTE_PKTMBUF_HEADROOM as u16;

/// All mempools that were created here, and the host program's that are in use here, once
/// for each use.
static POOLS: RankedMutex<Vec<Entry>> = RankedMutex::new(Rank::Pools, Vec::new());

/// Shape of a mempool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MempoolConfig {
    /// Number of mbufs.
    pub count: u32,
    /// Size of each registered thread's cache, in mbufs; it may hold up to 1.5 times as many. At
    /// most 512 and two thirds of `count`.
    pub cache: u32,
    /// Bytes of frame that an mbuf holds, without the headroom.
    pub frame_capacity: u16,
}

struct Entry {
    pool: NonNull<sys::rte_mempool>,
    config: MempoolConfig,
    in_use: bool,
    /// The host program created it. The entry is removed when it is not in use.
    is_of_host: bool,
}

// SAFETY: the pointer is to a pool that lives as long as the entry, and every function that is
// called with it is thread-safe.
unsafe impl Send for Entry {}

/// Handle of a mempool. Clones refer to the same pool; mbufs may outlive all handles.
#[derive(Clone, Debug)]
pub struct Mempool(Arc<PoolRef>);

#[derive(Debug)]
struct PoolRef {
    pool: NonNull<sys::rte_mempool>,
    config: MempoolConfig,
    is_of_host: bool,
}

/// The mempool of a receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RxPool<'a> {
    /// This one.
    Own(&'a Mempool),
    /// One of the host program, which is not known here.
    OfHost,
}

impl RxPool<'_> {
    /// True if this is the address of the pool, or may be.
    pub(crate) fn may_be(self, address: *const sys::rte_mempool) -> bool {
        match self {
            Self::Own(pool) => core::ptr::eq(address, pool.raw()),
            // SAFETY: EAL runs, because there are queues; the address is compared only.
            Self::OfHost => unsafe { sys::fw_is_mempool(address.cast()) != 0 },
        }
    }
}

// SAFETY: see `Entry`; the config is plain data.
unsafe impl Send for PoolRef {}
// SAFETY: allocation and counting are thread-safe (the handlers are multi-producer and
// multi-consumer, caches belong to the calling thread's lcore slot).
unsafe impl Sync for PoolRef {}

impl Mempool {
    /// Reuses an unused mempool of this configuration, or creates one.
    ///
    /// # Errors
    /// [`Error::PoolCreate`] if EAL has too little memory.
    pub fn new(_eal: Eal, config: &MempoolConfig) -> Result<Self, Error> {
        let _control = control_lock();
        let mut pools = POOLS.lock();
        let retired = pools.iter_mut().find(|entry| {
            !entry.in_use && entry.config == *config && available(entry.pool) == config.count
        });
        if let Some(entry) = retired {
            entry.in_use = true;
            return Ok(Self::handle(entry.pool, *config, false));
        }
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(format!("fw_pool_{number}")).map_err(|_| Error::BadName)?;
        let data_room = config
            .frame_capacity
            .checked_add(HEADROOM)
            .ok_or(Error::PoolCreate(Errno(libc::EINVAL)))?;
        // SAFETY: EAL runs (`_eal`); the name is copied; DPDK checks the numbers.
        let pool = unsafe {
            sys::rte_pktmbuf_pool_create(
                name.as_ptr(),
                config.count,
                config.cache,
                0,
                data_room,
                sys::SOCKET_ID_ANY,
            )
        };
        let pool = NonNull::new(pool).ok_or_else(|| Error::PoolCreate(Errno::last()))?;
        pools.push(Entry { pool, config: *config, in_use: true, is_of_host: false });
        Ok(Self::handle(pool, *config, false))
    }

    /// Uses the mempool of this name, which the host program has created. It keeps the pool until
    /// all handles, and all mbufs that were allocated through them, are dropped.
    ///
    /// # Errors
    /// [`Error::NoPool`] if there is none of this name, or [`Error::NotMbufs`].
    pub fn of_host(_eal: Eal, name: &str) -> Result<Self, Error> {
        let name = CString::new(name).map_err(|_| Error::BadName)?;
        let _control = control_lock();
        // SAFETY: EAL runs (`_eal`), and a string that lives through the call.
        let pool = unsafe { sys::rte_mempool_lookup(name.as_ptr()) };
        let pool = NonNull::new(pool).ok_or(Error::NoPool)?;
        let config = Self::shape(pool.as_ptr()).ok_or(Error::NotMbufs)?;
        let entry = Entry { pool, config, in_use: true, is_of_host: true };
        POOLS.lock().push(entry);
        Ok(Self::handle(pool, config, true))
    }

    /// Returns the shape of a mempool of the host program; `None` without one, or if its objects
    /// are not mbufs.
    pub(crate) fn shape(pool: *mut sys::rte_mempool) -> Option<MempoolConfig> {
        let pool = NonNull::new(pool)?;
        let mut shape = sys::fw_pool_shape::default();
        // SAFETY: callers have it from DPDK, and the program keeps it; a structure to fill.
        let status = unsafe { sys::fw_pktmbuf_pool_shape(pool.as_ptr(), &raw mut shape) };
        let sys::fw_pool_shape { count, cache, data_room } = shape;
        let frame_capacity = data_room.checked_sub(HEADROOM).filter(|_| status == 0)?;
        Some(MempoolConfig { count, cache, frame_capacity })
    }

    fn handle(pool: NonNull<sys::rte_mempool>, config: MempoolConfig, is_of_host: bool) -> Self {
        Self(Arc::new(PoolRef { pool, config, is_of_host }))
    }

    /// Returns the configuration the pool was created with.
    #[must_use]
    pub fn config(&self) -> &MempoolConfig {
        &self.0.config
    }

    /// Returns the number of free mbufs, threads' caches included. Walks all caches: for tests and
    /// reports, not for the data path.
    #[must_use]
    pub fn available(&self) -> u32 {
        available(self.0.pool)
    }

    /// Returns the number of free mbufs outside the threads' caches: what a thread with an empty
    /// cache can still allocate. Two loads, cheap enough for every poll.
    #[inline]
    #[must_use]
    pub fn common_pool_count(&self) -> u32 {
        // SAFETY: the pool lives as long as its handle.
        unsafe { sys::fw_mempool_ops_get_count(self.raw()) }
    }

    pub(crate) fn raw(&self) -> *mut sys::rte_mempool {
        self.0.pool.as_ptr()
    }

    /// Allocates `count` empty mbufs and appends them to `frames`, all or none; false if there are
    /// too few.
    ///
    /// About 2 ns per mbuf in batches of 32 from a registered thread.
    pub fn allocate(&self, frames: &mut Vec<TxMbuf>, count: usize) -> bool {
        frames.reserve(count);
        let Ok(count_c) = u32::try_from(count) else { return false };
        let spare = frames.spare_capacity_mut().as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        // SAFETY: the spare capacity holds `count` pointers (reserved above), and `TxMbuf` is
        // one non-null pointer; the pool lives.
        let status = unsafe { sys::fw_mbuf_alloc_bulk(self.raw(), spare, count_c) };
        if status != 0 {
            return false;
        }
        let len = frames.len() + count;
        // SAFETY: on success exactly `count` elements were written, each a new mbuf of one
        // segment with reference count 1, which is the invariant of `TxMbuf`.
        unsafe { frames.set_len(len) };
        true
    }
}

fn available(pool: NonNull<sys::rte_mempool>) -> u32 {
    // SAFETY: pools live as long as their entry and their handles.
    unsafe { sys::rte_mempool_avail_count(pool.as_ptr()) }
}

impl Drop for PoolRef {
    fn drop(&mut self) {
        if crate::fork::is_child() {
            // The lock may have been held at the fork.
            return;
        }
        let mut pools = POOLS.lock();
        let is_own = |entry: &Entry| (entry.pool, entry.is_of_host) == (self.pool, self.is_of_host);
        let Some(index) = pools.iter().position(is_own) else { return };
        if !self.is_of_host {
            pools[index].in_use = false;
            return;
        }
        // The program may free it from now on: what this thread has cached goes back to all.
        // SAFETY: the pool lives until this handle is dropped, and the shim flushes the calling
        // thread's cache only.
        unsafe { sys::fw_mempool_flush_own_cache(self.pool.as_ptr()) };
        pools.swap_remove(index);
    }
}

/// Flushes the calling thread's caches into the pools.
pub(crate) fn flush_own_caches() {
    let pools = POOLS.lock();
    for entry in pools.iter() {
        // SAFETY: the pool lives, and the shim flushes the calling thread's cache only.
        unsafe { sys::fw_mempool_flush_own_cache(entry.pool.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::EalConfig;

    /// Both take the locks of DPDK's control path and of the list of mempools. A pool of this
    /// crate stands for one of the program.
    #[test]
    fn pools_are_created_and_found_by_two_threads_at_a_time() {
        const ROUNDS: usize = 20_000;
        let eal = Eal::init(&EalConfig::default()).unwrap();
        let config = MempoolConfig { count: 64, cache: 0, frame_capacity: 256 };
        let _kept = Mempool::new(eal, &config).unwrap();
        let (done, ends) = mpsc::channel();
        let creates = done.clone();
        std::thread::spawn(move || {
            (0..ROUNDS).for_each(|_| drop(Mempool::new(eal, &config).unwrap()));
            creates.send(()).unwrap();
        });
        std::thread::spawn(move || {
            (0..ROUNDS).for_each(|_| drop(Mempool::of_host(eal, "fw_pool_0").unwrap()));
            done.send(()).unwrap();
        });
        for _ in 0..2 {
            ends.recv_timeout(Duration::from_secs(60)).expect("two threads wait for each other");
        }
    }
}
