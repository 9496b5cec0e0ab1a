//! Kinds of registered memory, and its addresses in requests.

use std::sync::Arc;

use ferrowarp::{
    Access, AtomicOp, ConnEvent, DriveMode, EndReason, MemoryError, MrOptions, Qp, RegisterError,
    RemoteAddr, WcStatus,
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

/// Bytes that are a part of the owner.
#[derive(Debug)]
struct Inline([u8; 100]);

impl AsMut<[u8]> for Inline {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Registers memory of an owner at both ends, writes and reads it there, and takes it back.
fn exchange<T: AsMut<[u8]> + Send + 'static>(
    (left, right): (&Endpoint, &Endpoint),
    qp: &Qp,
    owners: [T; 2],
) -> [T; 2] {
    let [near, far] = owners;
    let source = left.pd.register_owned(near, Access::LOCAL_WRITE).unwrap();
    // It moves with its owner.
    let sink = Box::new(right.pd.register_owned(far, Access::ALL).unwrap());
    source.write(0, b"owned");
    write(qp, 1, source.sge(0, 5), &sink, 95).unwrap();
    read(qp, 2, source.sge(50, 5), &sink, 95).unwrap();
    assert!(left.completions(right, 2).iter().all(|wc| wc.status == WcStatus::Success));
    [source.deregister(), sink.deregister()]
}

#[test]
fn owner_comes_back_with_what_the_peer_wrote() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let ends = (&left, &right);
    let check = |near: &[u8], far: &[u8]| {
        assert_eq!((&near[50..55], &far[95..100]), (&b"owned"[..], &b"owned"[..]));
    };
    let [near, far] = exchange(ends, &a, [(); 2].map(|()| vec![0; 100]));
    check(&near, &far);
    let [near, far] = exchange(ends, &a, [(); 2].map(|()| vec![0; 100].into_boxed_slice()));
    check(&near, &far);
    let [near, far] = exchange(ends, &a, [(); 2].map(|()| Inline([0; 100])));
    check(&near.0, &far.0);
    let [near, far] = exchange(ends, &a, [(); 2].map(|()| Box::leak(vec![0; 100].into())));
    check(near, far);
    let map = || memmap2::MmapMut::map_anon(100).unwrap();
    let [near, far] = exchange(ends, &a, [(); 2].map(|()| map()));
    check(&near, &far);
}

#[test]
fn refused_registration_returns_the_owner() {
    let mut small = config(1, DriveMode::Inline);
    small.limits.registered_bytes_max = 100;
    let (left, _right) = ring_pair(small, config(2, DriveMode::Inline)).unwrap();
    let pd = left.alloc_pd();
    let half = pd.register_owned(vec![1; 50], Access::ALL).unwrap();
    let refused = pd.register_owned(Inline([7; 100]), Access::ALL).unwrap_err();
    assert!(matches!(refused.error, MemoryError::Limit(_)), "{refused}");
    assert_eq!(refused.buffer.0, [7; 100]);
    let refused = pd.register_shared(&[0; 51][..], Access::REMOTE_READ).unwrap_err();
    assert!(matches!(refused.error, MemoryError::Limit(_)) && refused.buffer.len() == 51);
    assert_eq!(half.deregister(), [1; 50]);
    let whole = pd.register_owned(Inline([8; 100]), Access::ALL).unwrap();
    let empty = pd.register_owned(Vec::new(), Access::ALL).unwrap();
    assert!(empty.is_empty() && whole.deregister().0 == [8; 100]);
}

#[test]
fn shared_memory_is_read_by_the_peer_and_its_owner() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let sink = left.mr(64, Access::LOCAL_WRITE);
    let bytes: Arc<[u8]> = Arc::from(pattern(64, 3));
    let rights = Access::REMOTE_READ | Access::WINDOW_BIND;
    let mut shared = right.pd.register_shared(Arc::clone(&bytes), rights).unwrap();
    for _ in 0..2 {
        sink.fill(0, 64, 0);
        a.post().read(sink.sge(0, 64), shared.remote()).wr_id(1).signaled().ring().unwrap();
        assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
        assert_eq!((&contents(&sink)[..], &shared.owner()[..]), (&bytes[..], &bytes[..]));
        shared.enable(rights).unwrap();
    }
    assert!(Arc::ptr_eq(&shared.deregister(), &bytes));
    // As the source of a Send, without any remote right.
    let greeting = left.pd.register_shared("hello", Access::default()).unwrap();
    let (a, b) = connect(&left, &right);
    let received = right.mr(64, Access::LOCAL_WRITE);
    b.post_recv(1, received.sge(0, 64)).unwrap();
    a.post().send(greeting.sge(0, 5)).signaled().ring().unwrap();
    assert_eq!(right.completions(&left, 1)[0].byte_len, 5);
    assert_eq!(&contents(&received)[..5], b"hello");
}

/// Every way to a right to write: registration, enabling, a window; and the operations that write.
#[test]
fn shared_memory_cannot_be_written() {
    let (left, right) = endpoints(DriveMode::Inline);
    let source = left.mr(64, Access::ALL);
    let bytes: &'static [u8] = &[5; 64];
    for bits in 0..=Access::ALL.bits() {
        let access = Access::from_bits(bits);
        let writes = [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
        let expected = !writes.into_iter().any(|right| access.allows(right));
        let refused = right.pd.register_shared(bytes, access).err();
        assert_eq!(refused.is_none(), expected, "{access:?}");
        if let Some(refused) = refused {
            assert!(matches!(refused.error, MemoryError::ReadOnly), "{refused}");
        }
    }
    // Its words have addresses that an atomic operation may name.
    let options = MrOptions::new(Access::REMOTE_READ | Access::WINDOW_BIND).zero_based();
    let mut shared = right.pd.register_shared(bytes, options).unwrap();
    let before = shared.rkey();
    assert!(matches!(shared.enable(Access::ALL), Err(MemoryError::ReadOnly)));
    assert_eq!(shared.rkey(), before);
    let mut window = right.pd.allocate_window().unwrap();
    for case in 0..6 {
        let (a, b) = connect(&left, &right);
        let (here, there) = (source.sge(0, 8), shared.remote());
        match case {
            0 => a.post().write(here, there).ring().unwrap(),
            1 => a.post().atomic(AtomicOp::swap(0), here, there).ring().unwrap(),
            // Local requests: a receive buffer and the sink of a Read.
            2 => {
                b.post_recv(1, shared.sge(0, 8)).unwrap();
                a.post().send(here).ring().unwrap();
            }
            3 => b.post().read(shared.sge(0, 8), source.remote()).ring().unwrap(),
            _ => {
                let access = if case == 4 { Access::REMOTE_WRITE } else { Access::REMOTE_ATOMIC };
                let bind = window.bind(&shared, 0, 8, access, false);
                b.post().bind(bind).signaled().ring().unwrap();
                assert_eq!(right.completions(&left, 1)[0].status, WcStatus::Bind);
            }
        }
        let ConnEvent::Disconnected { .. } = expect_event(&b) else { panic!("case {case}") };
        drop((a, b));
        drive_until(&left.context, &right.context, || left.context.connection_count() == 0);
        poll_once(&left.cq);
        poll_once(&right.cq);
        assert_eq!((contents(&shared), shared.window_count()), (bytes.to_vec(), 0));
    }
    let bind = window.bind(&shared, 0, 8, Access::REMOTE_READ, false);
    let (a, b) = connect(&left, &right);
    b.post().bind(bind).signaled().ring().unwrap();
    assert_eq!(right.completions(&left, 1)[0].status, WcStatus::Success);
    let remote = RemoteAddr { addr: shared.iova(), rkey: window.rkey() };
    a.post().read(source.sge(0, 8), remote).signaled().ring().unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    assert_eq!(&contents(&source)[..8], &[5; 8]);
}
