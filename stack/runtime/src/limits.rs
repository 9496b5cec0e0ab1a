//! What one context may take of the machine at a time, and the account of what it has taken.
//!
//! A context is its own tenant: everything scarce is asked of the account here, or of the engine
//! behind the gate, and refused with the limit's name when it is reached (RFC 5042 section 7.1.2
//! calls this the Privileged Resource Manager).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::LimitError;

/// Bounds of one context, beside [`Config::regions_max`](crate::Config::regions_max) and
/// [`Config::qps_max`](crate::Config::qps_max). The defaults suit a program that is alone on its
/// machine; who shares it with others sets them lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes registered at a time, in all regions together.
    pub registered_bytes_max: u64,
    /// Completions that all completion queues together can hold.
    // req: RDMAP-294
    pub cq_entries_max: u64,
    /// Requests that the queues of all queue pairs and all shared receive queues together can
    /// hold.
    pub queue_entries_max: u64,
    /// Connections at a time, those that linger after their end included.
    pub connections_max: usize,
    /// Connections at a time whose handshake a peer began and has not completed; beyond it peers
    /// are answered without keeping anything.
    pub half_open_max: usize,
    /// Connections whose peers have completed the handshake and not sent a whole start-up request,
    /// over all listeners: 4,096. Beyond it one of the peer address that has most of them is reset.
    pub awaiting_request_max: usize,
    /// Bytes of memory for FPDUs that have arrived in part, over all connections; taken as needed:
    /// 128 MiB. Beyond it each connection still keeps one of up to 2 KiB; longer ones wait.
    pub partial_bytes_max: usize,
    /// Bytes of memory for segments that came ahead of their turn, over all connections, beside
    /// half of the port's spare frames; taken as needed, and kept: 16 MiB. Beyond it such segments
    /// are dropped.
    pub ooo_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
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
}

/// What can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    RegisteredBytes,
    CqEntries,
    QueueEntries,
}

impl Resource {
    /// What it is, and the setting that limits it.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::RegisteredBytes => ("registered bytes", "limits.registered_bytes_max"),
            Self::CqEntries => ("completion queue entries", "limits.cq_entries_max"),
            Self::QueueEntries => ("work queue entries", "limits.queue_entries_max"),
        }
    }
}

/// The account of one context.
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

    /// Takes so many until the grant is dropped.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        what: Resource,
        count: usize,
    ) -> Result<Permit, LimitError> {
        let (cell, limit, wanted) = (&self.in_use[what as usize], self.limit(what), count as u64);
        // req: DDP-214, DDP-217, RDMAP-291, RDMAP-294, RDMAP-295
        let fits = |used: u64| used.checked_add(wanted).filter(|&sum| sum <= limit);
        match cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Permit { limits: Arc::clone(self), what, count: wanted }),
            Err(used) => {
                let (what, setting) = what.names();
                Err(LimitError { what, setting, limit, used, wanted })
            }
        }
    }

    #[cfg(test)]
    fn used(&self, what: Resource) -> u64 {
        self.in_use[what as usize].load(Ordering::Relaxed)
    }
}

/// What was taken; given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limits: Arc<ResourceLimits>,
    what: Resource,
    count: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limits.in_use[self.what as usize].fetch_sub(self.count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // req-test: DDP-217, RDMAP-291, RDMAP-295
    #[test]
    fn acquire_beyond_a_limit_names_its_setting() {
        let ledger = ResourceLimits::new(Limits { cq_entries_max: 10, ..Limits::default() });
        let seven = ledger.acquire(Resource::CqEntries, 7).unwrap();
        let refused = ledger.acquire(Resource::CqEntries, 4).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "4 completion queue entries more would be over the limit of 10, of which 7 are taken: \
             raise `limits.cq_entries_max` of the configuration, or give some back"
        );
        let three = ledger.acquire(Resource::CqEntries, 3).unwrap();
        assert!(ledger.acquire(Resource::CqEntries, 1).is_err());
        assert!(ledger.acquire(Resource::CqEntries, usize::MAX).is_err(), "no wrap");
        assert!(ledger.acquire(Resource::QueueEntries, 100).is_ok(), "each has its own account");
        drop(seven);
        assert_eq!(ledger.used(Resource::CqEntries), 3);
        drop(three);
        assert_eq!(ledger.used(Resource::CqEntries), 0);
    }
}
