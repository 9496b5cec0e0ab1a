//! Order of the steps that invalidate memory regions and memory windows, so that their memory can
//! be freed safely.
//!
//! Each function takes as `wait` the wait for running polls ([`synchronize`]), so that its proof
//! runs the sequence itself.
//!
//! [`synchronize`]: crate::qsbr::synchronize

use ferrowarp_proto::ddp::regions::{RegionTable, Stag, WindowKeys};

use crate::sync::Backoff;

/// Invalidates a region and every window bound to it. When it returns, no poll uses the memory and
/// none will, so it can be freed.
pub fn revoke_region(regions: &RegionTable, region: Stag, mut wait: impl FnMut()) {
    regions.invalidate(region);
    // After this, no lookup by the region's STag is in progress, and no request that was binding a
    // window to it: each has bound it, or has failed.
    wait();
    if regions.invalidate_windows(region) {
        // Nor is a lookup by a window, whoever invalidated it: the peer or the window's owner may
        // have done so during the poll that is using it.
        wait();
    }
    // The thread that unbound a window may not have decremented the count yet, and the slot may
    // soon count the windows of another region.
    let mut backoff = Backoff::default();
    while regions.window_count(region) > 0 {
        backoff.wait();
    }
}

/// Revokes a window: when it returns, no memory is accessible through it, and queued requests to
/// bind it will fail. Returns an STag with its new tag, and true if the window was bound.
pub fn revoke_window(
    regions: &RegionTable,
    keys: &mut WindowKeys,
    window: Stag,
    mut wait: impl FnMut(),
) -> (Stag, bool) {
    let renamed = keys.revoke(regions, window);
    // After this, a bind request that was executing before is complete.
    wait();
    let was_bound = regions.unbind(window);
    // Bound or not: the peer may have invalidated it during the poll that is using it.
    wait();
    (renamed, was_bound)
}

/// Deallocates a window and frees its slot.
pub fn dealloc_window(regions: &RegionTable, window: Stag, mut wait: impl FnMut()) {
    regions.retire_window(window);
    wait();
    regions.unbind(window);
    wait();
    regions.release(window);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use ferrowarp_proto::ddp::memory::Access;
    use ferrowarp_proto::ddp::regions::{AccessScope, Bind, Registration, StreamId};

    use super::*;

    const SCOPE: AccessScope = AccessScope { pd: 1, stream: StreamId(1) };

    fn table() -> (RegionTable, Stag, Stag) {
        let regions = RegionTable::new(4, 1);
        let access = Access::ALL;
        let what = Registration { pd: 1, stream: None, base: 0, len: 64, access, backing: 0 };
        let region = regions.register(&what).unwrap();
        let window = regions.allocate_window(1).unwrap();
        (regions, region, window)
    }

    fn bind(rkey: Stag, lkey: Stag) -> Bind {
        Bind { rkey, lkey, addr: 0, len: 64, access: Access::REMOTE_WRITE, zero_based: true }
    }

    /// A poll resolves through a window; its owner revokes the window while the region's owner
    /// waits for polls. The poll may have begun after that wait did, so a second wait is required.
    #[test]
    fn revoked_region_waits_once_more_for_its_windows() {
        let (regions, region, window) = table();
        regions.bind(&bind(window, region), SCOPE).unwrap();
        let mut waits = 0;
        revoke_region(&regions, region, || {
            waits += 1;
            assert_eq!(regions.unbind(window), waits == 1);
        });
        assert_eq!(waits, 2);
        assert_eq!(regions.window_count(region), 0);
    }

    #[test]
    fn region_without_windows_is_revoked_after_one_wait() {
        let (regions, region, _) = table();
        let mut waits = 0;
        revoke_region(&regions, region, || waits += 1);
        assert_eq!(waits, 1);
    }

    #[test]
    fn bind_queued_before_a_revoke_never_takes_effect() {
        let (regions, region, first) = table();
        let mut keys = regions.window_keys();
        let bound = keys.next(&regions, first);
        regions.bind(&bind(bound, region), SCOPE).unwrap();
        let queued = keys.next(&regions, bound);
        let (renamed, was_bound) = revoke_window(&regions, &mut keys, queued, || {});
        assert!(was_bound);
        assert!(regions.bind(&bind(queued, region), SCOPE).is_err());
        assert!(regions.bind(&bind(bound, region), SCOPE).is_err());
        assert_eq!(regions.invalidate_local(queued, SCOPE), Ok(()));
        let again = keys.next(&regions, renamed);
        regions.bind(&bind(again, region), SCOPE).unwrap();
        dealloc_window(&regions, renamed, || {});
        assert_eq!(regions.window_count(region), 0);
        assert!(regions.bind(&bind(again, region), SCOPE).is_err());
    }
}

#[cfg(all(test, loom))]
mod proofs;
