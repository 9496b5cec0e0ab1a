//! Kinds of registered memory, and its addresses in requests.

use ferrowarp::{
    Access, ConnEvent, DriveMode, EndReason, MemoryError, MrOptions, RegisterError, RemoteAddr,
    WcStatus,
};

use crate::support::*;

/// The same accesses with addresses in requests that begin at 0, high up, or in memory.
#[test]
fn requests_name_memory_by_the_iova_of_its_region() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let options = MrOptions::new(Access::ALL);
    let high = options.iova(0xffff_ffff_0000_0001);
    for (near, far) in [(options, options.zero_based()), (options.zero_based(), high), (high, high)]
    {
        let mr = left.pd.register(left.context.allocate(4096).unwrap(), near).unwrap();
        let remote = right.pd.register(right.context.allocate(4096).unwrap(), far).unwrap();
        assert_eq!(mr.iova(), near.iova.unwrap_or_else(|| mr.addr()));
        assert_eq!(remote.remote().at(7).addr, remote.iova() + 7);
        assert_eq!(mr.sge(5, 6).addr, mr.iova() + 5);
        assert_ne!(remote.addr(), remote.iova());
        mr.write(5, b"iovas!");
        a.post().write(mr.sge(5, 6), remote.remote().at(4090)).wr_id(1).signaled().ring().unwrap();
        a.post().read(mr.sge(100, 6), remote.remote().at(4090)).wr_id(2).signaled().ring().unwrap();
        assert!(left.completions(&right, 2).iter().all(|wc| wc.status == WcStatus::Success));
        let mut bytes = [0; 6];
        mr.read(100, &mut bytes);
        assert_eq!(&bytes, b"iovas!");
    }
}

/// The address in memory is not one of a region that has another `iova`.
#[test]
fn address_in_memory_is_outside_a_region_with_an_iova() {
    let (left, right) = endpoints(DriveMode::Inline);
    let source = left.mr(64, Access::ALL);
    let buffer = right.context.allocate(4096).unwrap();
    let target = right.pd.register(buffer, MrOptions::new(Access::ALL).zero_based()).unwrap();
    for addr in [target.addr(), 4096, 4095, u64::MAX] {
        let (a, b) = connect(&left, &right);
        let remote = RemoteAddr { addr, rkey: target.rkey() };
        a.post().write(source.sge(0, 2), remote).wr_id(1).signaled().ring().unwrap();
        let ConnEvent::Disconnected { reason, .. } = expect_event(&b) else { panic!() };
        assert!(matches!(reason, EndReason::TerminateSent(_)), "{addr:#x}: {reason:?}");
        left.completions(&right, 1);
    }
    assert!(contents(&target).iter().all(|&byte| byte == 0));
}

/// A window counts from the `iova` of its region, or from 0.
#[test]
fn window_of_a_region_with_an_iova_continues_its_addresses() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let source = left.mr(64, Access::ALL);
    source.write(0, b"window");
    let options = MrOptions::new(Access::ALL).iova(1 << 40);
    let region = right.pd.register(right.context.allocate(4096).unwrap(), options).unwrap();
    let mut window = right.pd.allocate_window().unwrap();
    for (zero_based, addr) in [(false, (1 << 40) + 100), (true, 0)] {
        region.fill(0, 4096, 0);
        let bind = window.bind(&region, 100, 6, Access::REMOTE_WRITE, zero_based);
        b.post().bind(bind).wr_id(1).signaled().ring().unwrap();
        assert_eq!(right.completions(&left, 1)[0].status, WcStatus::Success);
        let remote = RemoteAddr { addr, rkey: window.rkey() };
        a.post().write(source.sge(0, 6), remote).wr_id(2).signaled().ring().unwrap();
        assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
        drive_until(&left.context, &right.context, || region.load_last(105) == b'w');
        assert_eq!(&contents(&region)[100..106], b"window");
        assert!(window.revoke());
    }
}

#[test]
fn iova_beyond_the_address_space_is_refused() {
    let (left, _right) = contexts(DriveMode::Inline);
    let pd = left.alloc_pd();
    for iova in [u64::MAX, u64::MAX - 4094, u64::MAX - 4095] {
        let options = MrOptions::new(Access::ALL).iova(iova);
        let refused = pd.register(left.allocate(4096).unwrap(), options).unwrap_err();
        let wraps = matches!(refused.error, MemoryError::Register(RegisterError::Wrap));
        assert!(wraps && refused.to_string().contains("`iova`"), "{iova:#x}: {refused}");
        assert_eq!(refused.buffer.len(), 4096);
    }
    let highest = MrOptions::new(Access::ALL).iova(u64::MAX - 4096);
    let mr = pd.register(left.allocate(4096).unwrap(), highest).unwrap();
    assert_eq!(mr.sge(4095, 1).addr, u64::MAX - 1);
}
