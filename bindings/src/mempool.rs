//! Pools of equal mbufs.
//!
//! A pool is never given back to DPDK while the process lives: it is retired, and taken again by
//! the next request of the same shape once all its mbufs are home. So no mbuf, wherever a peer
//! or a driver keeps it, can outlive the memory it lies in.

use core::ptr::NonNull;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use crate::eal::{Eal, control_lock};
use crate::error::{Errno, Error};
use crate::mbuf::TxMbuf;
use crate::sys;

/// Bytes DPDK keeps free in front of the frame in each mbuf.
#[expect(clippy::cast_possible_truncation, reason = "128 in every build")]
pub const HEADROOM: u16 = sys::RTE_PKTMBUF_HEADROOM as u16;

/// All pools ever made.
static POOLS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// The shape of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MempoolConfig {
    /// Number of mbufs.
    pub count: u32,
    /// Mbufs each registered thread keeps for itself; it may keep half as many again. At most
    /// 512 and two thirds of `count`.
    pub cache: u32,
    /// Bytes of frame that fit, without the headroom.
    pub frame_capacity: u16,
}

struct Entry {
    pool: NonNull<sys::rte_mempool>,
    shape: MempoolConfig,
    leased: bool,
}

// SAFETY: the pointer is to a pool that lives as long as the process, and every function that is
// called with it is safe between threads.
unsafe impl Send for Entry {}

/// A pool. Clones are the same pool; mbufs may outlive all of them.
#[derive(Clone, Debug)]
pub struct Mempool(Arc<Lease>);

#[derive(Debug)]
struct Lease {
    pool: NonNull<sys::rte_mempool>,
    shape: MempoolConfig,
}

// SAFETY: see `Entry`; the shape is plain data.
unsafe impl Send for Lease {}
// SAFETY: allocation and counting are safe between threads (the handlers are multi-producer and
// multi-consumer, caches belong to the calling thread's slot).
unsafe impl Sync for Lease {}

impl Mempool {
    /// Takes a retired pool of this shape, or makes one.
    ///
    /// # Errors
    /// [`Error::PoolCreate`] if EAL has too little memory.
    pub fn new(_eal: Eal, shape: &MempoolConfig) -> Result<Self, Error> {
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let retired = pools.iter_mut().find(|entry| {
            !entry.leased && entry.shape == *shape && available(entry.pool) == shape.count
        });
        if let Some(entry) = retired {
            entry.leased = true;
            return Ok(Self(Arc::new(Lease { pool: entry.pool, shape: *shape })));
        }
        let name = CString::new(format!("fw_pool_{}", pools.len())).map_err(|_| Error::BadName)?;
        let room = shape
            .frame_capacity
            .checked_add(HEADROOM)
            .ok_or(Error::PoolCreate(Errno(libc::EINVAL)))?;
        let _control = control_lock();
        // SAFETY: EAL runs (`_eal`); the name is copied; DPDK checks the numbers.
        let pool = unsafe {
            sys::rte_pktmbuf_pool_create(
                name.as_ptr(),
                shape.count,
                shape.cache,
                0,
                room,
                sys::SOCKET_ID_ANY,
            )
        };
        let pool = NonNull::new(pool).ok_or_else(|| Error::PoolCreate(Errno::last()))?;
        pools.push(Entry { pool, shape: *shape, leased: true });
        Ok(Self(Arc::new(Lease { pool, shape: *shape })))
    }

    /// The shape it was made with.
    #[must_use]
    pub fn shape(&self) -> &MempoolConfig {
        &self.0.shape
    }

    /// Mbufs not in use, those in threads' caches included. Walks all caches: for tests and
    /// slow reports, not for the data path.
    #[must_use]
    pub fn available(&self) -> u32 {
        available(self.0.pool)
    }

    /// Mbufs not in use and not in threads' caches either: how many a thread with an empty cache
    /// may still get. Two loads, cheap enough for every pass.
    #[inline]
    #[must_use]
    pub fn common_pool_count(&self) -> u32 {
        // SAFETY: the pool lives.
        unsafe { sys::fw_mempool_ops_get_count(self.raw()) }
    }

    pub(crate) fn raw(&self) -> *mut sys::rte_mempool {
        self.0.pool.as_ptr()
    }

    /// Appends `count` empty mbufs to `frames`, all or none; returns whether it did.
    ///
    /// About 2 ns an mbuf in batches of 32 from a registered thread.
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
        // SAFETY: on success exactly `count` elements were written, each a fresh mbuf of one
        // segment with reference count 1, which is what `TxMbuf` promises.
        unsafe { frames.set_len(len) };
        true
    }
}

fn available(pool: NonNull<sys::rte_mempool>) -> u32 {
    // SAFETY: pools live as long as the process.
    unsafe { sys::rte_mempool_avail_count(pool.as_ptr()) }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = pools.iter_mut().find(|entry| entry.pool == self.pool) {
            entry.leased = false;
        }
    }
}

/// Empties the calling thread's caches into the pools.
pub(crate) fn flush_own_caches() {
    let pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    for entry in pools.iter() {
        // SAFETY: the pool lives, and the shim flushes the calling thread's cache alone.
        unsafe { sys::fw_mempool_flush_own_cache(entry.pool.as_ptr()) };
    }
}
