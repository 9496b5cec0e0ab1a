//! Regions that are registered again: other rights, another domain, other memory.

use ferrowarp::{
    Access, ConnEvent, DriveMode, EndReason, MemoryError, MrOptions, RegisterError, ReregOptions,
    WcStatus,
};

use crate::support::*;

const NO_CHANGE: ReregOptions<'_> = ReregOptions::new();

#[test]
fn rights_addresses_and_memory_change() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let source = left.mr(64, Access::ALL);
    source.write(0, b"again");
    let options = MrOptions::new(Access::REMOTE_READ).zero_based();
    let mut region = right.pd.register(right.context.allocate(64).unwrap(), options).unwrap();
    let mut stags = vec![region.rkey()];
    // Rights: a Write is granted now. The address stays.
    let stag = region.reregister(&NO_CHANGE.access(Access::REMOTE_WRITE)).unwrap();
    assert_eq!((stag, region.iova(), region.len()), (region.rkey(), 0, 64));
    assert_eq!(region.access(), Access::REMOTE_WRITE | Access::LOCAL_READ);
    stags.push(stag);
    write(&a, 1, source.sge(0, 5), &region, 59).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    drive_until(&left.context, &right.context, || region.load_last(63) == b'n');
    // Address in requests.
    stags.push(region.reregister(&NO_CHANGE.iova(1 << 50)).unwrap());
    assert_eq!((region.iova(), region.sge(1, 1).addr), (1 << 50, (1 << 50) + 1));
    // Memory: the address is that in memory, unless another is set.
    let longer = right.context.allocate(4096).unwrap();
    let shorter = region.reregister_buffer(longer, &NO_CHANGE).unwrap().unwrap();
    assert_eq!((&shorter[59..], region.len()), (&b"again"[..], 4096));
    assert_eq!(region.iova(), region.addr());
    stags.push(region.rkey());
    write(&a, 2, source.sge(0, 5), &region, 4091).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    drive_until(&left.context, &right.context, || region.load_last(4095) == b'n');
    let longer = region.reregister_buffer(shorter, &NO_CHANGE.iova(7)).unwrap().unwrap();
    assert_eq!((&longer[4091..], region.iova()), (&b"again"[..], 7));
    stags.push(region.rkey());
    // No change: another STag nevertheless.
    stags.push(region.reregister(&NO_CHANGE).unwrap());
    let count = stags.len();
    stags.sort_unstable();
    stags.dedup();
    assert_eq!(stags.len(), count, "each time another STag");
}

#[test]
fn old_stag_meets_a_refusal() {
    let (left, right) = endpoints(DriveMode::Inline);
    let mut source = left.mr(64, Access::ALL);
    let mut sink = right.mr(64, Access::ALL);
    // The peer's.
    let (a, b) = connect(&left, &right);
    let old = sink.remote();
    sink.reregister(&NO_CHANGE).unwrap();
    a.post().write(source.sge(0, 8), old).signaled().ring().unwrap();
    let ConnEvent::Disconnected { reason, .. } = expect_event(&b) else { panic!() };
    assert!(matches!(reason, EndReason::TerminateSent(_)), "{reason:?}");
    left.completions(&right, 1);
    // That of a local request.
    let (a, _b) = connect(&left, &right);
    let old = source.sge(0, 8);
    source.reregister(&NO_CHANGE).unwrap();
    write(&a, 1, old, &sink, 0).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::LocalProtection);
}

#[test]
fn region_moves_to_another_domain() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let source = left.mr(64, Access::ALL);
    let other = right.context.alloc_pd();
    let mut region = other.register(right.context.allocate(64).unwrap(), Access::ALL).unwrap();
    region.reregister(&NO_CHANGE.pd(&right.pd)).unwrap();
    drop(other);
    write(&a, 1, source.sge(0, 8), &region, 0).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    let other = right.context.alloc_pd();
    region.reregister(&NO_CHANGE.pd(&other)).unwrap();
    write(&a, 2, source.sge(0, 8), &region, 0).unwrap();
    let ConnEvent::Disconnected { .. } = expect_event(&b) else { panic!() };
}

/// Each refusal leaves the region as it is, under the same STag.
#[test]
fn refused_change_changes_nothing() {
    let mut small = config(2, DriveMode::Inline);
    small.limits.registered_bytes_max = 8192;
    let (left, right) = ring_pair(config(1, DriveMode::Inline), small).unwrap();
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let (a, b) = connect(&left, &right);
    let source = left.mr(64, Access::ALL);
    let mut region = right.mr(4096, Access::ALL);
    let before = region.remote();
    let check = |error: MemoryError, text: &str, region: &ferrowarp::Mr| {
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!((region.remote(), region.access()), (before, Access::ALL));
        write(&a, 1, source.sge(0, 8), region, 4088).unwrap();
        assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    };
    let error = region.reregister(&NO_CHANGE.iova(u64::MAX - 4095)).unwrap_err();
    assert!(matches!(error, MemoryError::Register(RegisterError::Wrap)));
    check(error, "`iova`", &region);
    let error = region.reregister(&NO_CHANGE.pd(&left.pd)).unwrap_err();
    assert!(matches!(error, MemoryError::Foreign));
    check(error, "context", &region);
    let buffer = right.context.allocate(8193).unwrap();
    let refused = region.reregister_buffer(buffer, &NO_CHANGE).unwrap_err();
    assert!(matches!(refused.error, MemoryError::Limit(_)) && refused.buffer.len() == 8193);
    check(refused.error, "limits.registered_bytes_max", &region);
    // A window is bound.
    let mut window = right.pd.allocate_window().unwrap();
    let bind = window.bind(&region, 0, 64, Access::REMOTE_READ, false);
    b.post().bind(bind).signaled().ring().unwrap();
    assert_eq!(right.completions(&left, 1)[0].status, WcStatus::Success);
    let error = region.reregister(&NO_CHANGE.access(Access::REMOTE_READ)).unwrap_err();
    assert!(matches!(error, MemoryError::WindowsBound));
    check(error, "window", &region);
    assert_eq!(region.window_count(), 1);
    window.revoke();
    region.reregister(&NO_CHANGE.access(Access::REMOTE_READ)).unwrap();
    // Exactly the limit fits, and what it replaced is released.
    let whole = right.context.allocate(8192).unwrap();
    let part = region.reregister_buffer(whole, &NO_CHANGE).unwrap().unwrap();
    let refused = right.pd.register(part, Access::ALL).unwrap_err();
    region.reregister_buffer(refused.buffer, &NO_CHANGE).unwrap();
    assert_eq!(right.mr(4096, Access::ALL).len(), 4096);
}

#[test]
fn region_of_one_queue_pair_stays_in_its_domain() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let source = left.mr(64, Access::ALL);
    let buffer = right.context.allocate(64).unwrap();
    let mut region = right.pd.register_for(&b, buffer, Access::REMOTE_READ).unwrap();
    let other = right.context.alloc_pd();
    let refused = region.reregister(&NO_CHANGE.pd(&other));
    assert!(matches!(refused, Err(MemoryError::Foreign)));
    let change = NO_CHANGE.pd(&right.pd).access(Access::REMOTE_WRITE);
    region.reregister(&change).unwrap();
    write(&a, 1, source.sge(0, 8), &region, 0).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    // Of that queue pair still.
    let (c, d) = connect(&left, &right);
    write(&c, 2, source.sge(0, 8), &region, 0).unwrap();
    let ConnEvent::Disconnected { .. } = expect_event(&d) else { panic!() };
}

#[test]
fn owners_are_exchanged() {
    let (left, _right) = endpoints(DriveMode::Inline);
    let mut owned = left.pd.register_owned(vec![1; 10], Access::ALL).unwrap();
    let old = owned.reregister_owner(vec![2; 20], &NO_CHANGE).unwrap();
    assert_eq!((old, contents(&owned)), (vec![1; 10], vec![2; 20]));
    let refused = owned.reregister_owner(vec![3; 30], &NO_CHANGE.iova(u64::MAX)).unwrap_err();
    assert_eq!((refused.buffer, contents(&owned)), (vec![3; 30], vec![2; 20]));
    owned.reregister(&NO_CHANGE.access(Access::REMOTE_READ)).unwrap();
    assert_eq!(owned.deregister(), vec![2; 20]);
    let mut shared = left.pd.register_shared("shared", Access::REMOTE_READ).unwrap();
    let refused = shared.reregister(&NO_CHANGE.access(Access::LOCAL_WRITE));
    assert!(matches!(refused, Err(MemoryError::ReadOnly)));
    let stag = shared.reregister(&NO_CHANGE.iova(0)).unwrap();
    assert_eq!((shared.rkey(), shared.remote().addr), (stag, 0));
}
