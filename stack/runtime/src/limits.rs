//! Resource limits of one context, and the accounting of what it uses: the Privileged Resource
//! Manager of RFC 5042 section 7.1.2.
//!
//! Each context is accounted separately. Scarce resources are acquired here, or from the engine
//! under the shard's lock, and a request over a limit fails with the name of the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrowarp_proto::setters;
use ferrowarp_proto::work_queue::WORK_REQUESTS_MAX;

use crate::error::{CreateError, LimitError};

/// Resource limits of one context, in addition to
/// [`Config::regions_max`](crate::Config::regions_max) and
/// [`Config::qps_max`](crate::Config::qps_max). The defaults suit a program that has the machine to
/// itself; lower them on a shared one. Start from [`Limits::new`] and set what differs.
#[doc(alias = "ibv_device_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes registered at a time, in all regions together.
    pub registered_bytes_max: u64,
    /// Sum of the capacities of all completion queues.
    // req: RDMAP-294
    pub cq_entries_max: u64,
    /// Sum of the capacities of all send, receive and shared receive queues, in requests.
    pub queue_entries_max: u64,
    /// Connections at a time, including those that linger after their end: 1 to 1,048,576.
    pub connections_max: usize,
    /// Connections at a time in SYN-RECEIVED; beyond it the stack answers SYNs without keeping
    /// state.
    pub half_open_max: usize,
    /// Connections whose peers have completed the TCP handshake and not sent a whole MPA request,
    /// over all listeners: 4,096, at least 1. Beyond it one of the peer address with the most of
    /// them is reset.
    pub awaiting_request_max: usize,
    /// Bytes of memory for incomplete FPDUs of more than 2 KiB, over all connections; allocated as
    /// needed: 128 MiB. Beyond it such FPDUs wait. Each connection may keep a shorter one in any
    /// case. At least 18 KiB for each shard: [`OpenError::PartialBytes`].
    ///
    /// [`OpenError::PartialBytes`]: crate::OpenError::PartialBytes
    pub partial_bytes_max: usize,
    /// Bytes of memory for copies of out-of-order segments, over all connections, in addition to
    /// half of the port's spare frames; allocated as needed, and kept: 16 MiB. Beyond it such
    /// segments are dropped.
    pub ooo_bytes_max: usize,
}

impl Limits {
    /// Limits for a program that has the machine to itself.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            registered_bytes_max: 64 << 30,
            cq_entries_max: 1 << 22,
            queue_entries_max: 1 << 22,
            connections_max: 16_384,
            half_open_max: 1024,
            awaiting_request_max: 4096,
            partial_bytes_max: 128 << 20,
            ooo_bytes_max: 16 << 20,
        }
    }

    setters! {
        registered_bytes_max: u64,
        cq_entries_max: u64,
        queue_entries_max: u64,
        connections_max: usize,
        half_open_max: usize,
        awaiting_request_max: usize,
        partial_bytes_max: usize,
        ooo_bytes_max: usize,
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}

/// Accounted resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    RegisteredBytes,
    CqEntries,
    QueueEntries,
}

impl Resource {
    /// Name of the resource, and of the setting that limits it.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::RegisteredBytes => ("registered bytes", "limits.registered_bytes_max"),
            Self::CqEntries => ("completion queue entries", "limits.cq_entries_max"),
            Self::QueueEntries => ("work queue entries", "limits.queue_entries_max"),
        }
    }
}

/// Resource accounting of one context.
#[derive(Debug)]
pub(crate) struct ResourceLimits {
    limits: Limits,
    in_use: [AtomicU64; 3],
}

impl ResourceLimits {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, in_use: Default::default() })
    }

    const fn limit(&self, what: Resource) -> u64 {
        match what {
            Resource::RegisteredBytes => self.limits.registered_bytes_max,
            Resource::CqEntries => self.limits.cq_entries_max,
            Resource::QueueEntries => self.limits.queue_entries_max,
        }
    }

    /// Acquires `count` until the permit is dropped.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        what: Resource,
        count: usize,
    ) -> Result<Permit, LimitError> {
        self.add(what, count as u64)?;
        Ok(Permit { limits: Arc::clone(self), what, count: count as u64 })
    }

    /// Adds `count` to what a permit holds.
    fn add(&self, what: Resource, count: u64) -> Result<(), LimitError> {
        let (cell, limit) = (&self.in_use[what as usize], self.limit(what));
        let fits = |used: u64| {
            // req: DDP-214, DDP-217, RDMAP-291, RDMAP-294, RDMAP-295
            used.checked_add(count).filter(|&sum| sum <= limit)
        };
        cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map(drop).map_err(|used| {
            let (what, setting) = what.names();
            LimitError { what, setting, limit, used, wanted: count }
        })
    }

    /// Releases what a permit gave out with [`Permit::into_count`].
    pub(crate) fn release(&self, what: Resource, count: u64) {
        self.in_use[what as usize].fetch_sub(count, Ordering::Relaxed);
    }

    #[cfg(test)]
    fn used(&self, what: Resource) -> u64 {
        self.in_use[what as usize].load(Ordering::Relaxed)
    }
}

/// Fails if a work queue is to have more requests than one can.
pub(crate) const fn check_queue_len(wanted: usize) -> Result<(), CreateError> {
    if wanted > WORK_REQUESTS_MAX {
        return Err(CreateError::QueueTooLong { wanted, limit: WORK_REQUESTS_MAX });
    }
    Ok(())
}

/// Fails if a request is to have more of `option` than any can.
pub(crate) const fn check_request(
    option: &'static str,
    wanted: usize,
    limit: usize,
) -> Result<(), CreateError> {
    if wanted > limit {
        return Err(CreateError::RequestTooLong { option, wanted, limit });
    }
    Ok(())
}

/// Acquired resources; released when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limits: Arc<ResourceLimits>,
    what: Resource,
    count: u64,
}

impl Permit {
    /// Acquires `count` in addition.
    pub(crate) fn grow(&mut self, count: usize) -> Result<(), LimitError> {
        self.limits.add(self.what, count as u64)?;
        self.count += count as u64;
        Ok(())
    }

    /// Returns what it holds, for the caller to release: of many objects each keeps only the count.
    pub(crate) fn into_count(mut self) -> u64 {
        core::mem::take(&mut self.count)
    }

    /// Releases all but `count`.
    pub(crate) fn shrink_to(&mut self, count: usize) {
        let excess = self.count.saturating_sub(count as u64);
        self.limits.release(self.what, excess);
        self.count -= excess;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limits.release(self.what, self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // req-test: DDP-217, RDMAP-291, RDMAP-295
    #[test]
    fn acquire_beyond_a_limit_names_its_setting() {
        let limits = ResourceLimits::new(Limits::new().cq_entries_max(10));
        let seven = limits.acquire(Resource::CqEntries, 7).unwrap();
        let refused = limits.acquire(Resource::CqEntries, 4).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "4 completion queue entries more would be over the limit of 10, of which 7 are taken: \
             raise `limits.cq_entries_max` of the configuration, or release some"
        );
        let three = limits.acquire(Resource::CqEntries, 3).unwrap();
        assert!(limits.acquire(Resource::CqEntries, 1).is_err());
        assert!(limits.acquire(Resource::CqEntries, usize::MAX).is_err(), "no wrap");
        assert!(
            limits.acquire(Resource::QueueEntries, 100).is_ok(),
            "each resource is counted separately"
        );
        drop(seven);
        let mut permit = three;
        assert!(permit.grow(8).is_err());
        permit.grow(7).unwrap();
        assert_eq!(limits.used(Resource::CqEntries), 10);
        permit.shrink_to(12);
        permit.shrink_to(3);
        let three = permit;
        assert_eq!(limits.used(Resource::CqEntries), 3);
        let count = three.into_count();
        assert_eq!((count, limits.used(Resource::CqEntries)), (3, 3));
        limits.release(Resource::CqEntries, count);
        assert_eq!(limits.used(Resource::CqEntries), 0);
    }
}
