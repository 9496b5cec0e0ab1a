//! What an application must not do, and may do in any order: an error, or nothing, but never more.

use std::any::Any;
use std::sync::Barrier;

use ferrowarp::{
    Access, ConnParam, CqOptions, DriveMode, PostError, QpOptions, QpState, Sge, SrqOptions,
    WcStatus,
};

use crate::support::*;

/// Lists whose elements overlap, or are of several regions: they are sent as they are read, and
/// filled front to back.
#[test]
fn lists_may_overlap_and_mix_regions() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let sources = [0, 1].map(|seed| {
        let region = left.mr(64, Access::LOCAL_READ);
        region.write(0, &pattern(64, seed));
        region
    });
    let sinks = [(); 2].map(|()| right.mr(64, Access::LOCAL_WRITE));
    // 40 bytes, of which 24 twice; then 16 of the other region.
    let list = [sources[0].sge(0, 32), sources[0].sge(8, 32), sources[1].sge(48, 16)];
    // 80 bytes: the last 16 overwrite the first.
    let buffer = [sinks[0].sge(0, 32), sinks[1].sge(0, 32), sinks[0].sge(0, 16)];
    b.post_recv(1, buffer).unwrap();
    a.post().send(&list).wr_id(2).signaled().ring().unwrap();
    assert_eq!(right.completions(&left, 1)[0].byte_len, 80);
    assert_eq!(outcomes(&left.completions(&right, 1)), [(2, WcStatus::Success)]);
    let sent = [&pattern(64, 0)[..32], &pattern(64, 0)[8..40], &pattern(64, 1)[48..]].concat();
    assert_eq!(contents(&sinks[1])[..32], sent[32..64]);
    assert_eq!(contents(&sinks[0])[16..32], sent[16..32]);
    assert_eq!(contents(&sinks[0])[..16], sent[64..]);
}

/// An element that is not memory of the queue pair's domain, in any place of a list of a request of
/// any kind: the request fails, and the connection with it.
#[test]
fn element_outside_of_the_domain_fails_the_request() {
    let (left, right) = endpoints(DriveMode::Inline);
    let own = left.mr(64, Access::ALL);
    let other_domain = left.context.alloc_pd();
    let foreign = other_domain.register(left.context.allocate(64).unwrap(), Access::ALL).unwrap();
    let gone = left.mr(64, Access::ALL).sge(0, 8);
    let good = own.sge(0, 8);
    let bad = [
        foreign.sge(0, 8),
        gone,
        Sge { addr: u64::MAX - 3, ..good },
        Sge { len: u32::MAX, ..good },
        Sge { addr: good.addr - 1, ..good },
        Sge { addr: good.addr + 57, ..good },
        Sge { lkey: 0, ..good },
        Sge { lkey: good.lkey ^ 1, ..good },
    ];
    let target = right.mr(64, Access::ALL);
    for (case, bad) in bad.into_iter().enumerate() {
        for place in 0..3 {
            let mut list = [good; 3];
            list[place] = bad;
            for kind in 0..3 {
                let (a, b) = connect(&left, &right);
                let mut post = a.post();
                match kind {
                    0 => drop(post.send(&list).wr_id(1)),
                    1 => drop(post.write(&list, target.remote()).wr_id(1)),
                    _ => drop(post.read(&list, target.remote()).wr_id(1)),
                }
                let posted = post.ring().map_err(|refused| refused.error);
                // Too long for any message.
                if bad.len == u32::MAX {
                    assert_eq!(posted, Err(PostError::TooLong));
                    continue;
                }
                posted.unwrap();
                let wc = left.completions(&right, 1)[0];
                let found = (wc.wr_id, wc.status);
                assert_eq!(found, (1, WcStatus::LocalProtection), "{case} {place} {kind}");
                assert_eq!(a.state(), QpState::Error);
                drop(b);
            }
        }
    }
}

/// Objects that need each other are dropped in any order, by several threads, while they are used;
/// all that they took is free again.
#[test]
fn objects_are_dropped_in_any_order() {
    const THREADS: usize = 3;
    let (left, right) = endpoints(DriveMode::Helper);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..40 {
        let channel = left.context.create_comp_channel().unwrap();
        let options = CqOptions::new(64).channel(&channel).timestamps(round % 2 == 0);
        let (pd, cq) = (left.context.alloc_pd(), left.context.create_cq_with(&options).unwrap());
        let srq = pd.create_srq_with(&SrqOptions::new(8).max_sge(2)).unwrap();
        let a = pd.create_qp(&QpOptions::new(&cq).srq(&srq)).unwrap();
        let b = right.qp();
        let mr = pd.register(left.context.allocate(4096).unwrap(), Access::ALL).unwrap();
        let mw = pd.allocate_window().unwrap();
        let listener = right.context.listen(PORT, 4).unwrap();
        a.connect(server(), ConnParam::new()).unwrap();
        let request = listener.accept_timeout(TIMEOUT).unwrap();
        request.accept(&b, ConnParam::new()).unwrap();
        a.wait_established(TIMEOUT).unwrap();
        srq.post_recvs((0..8).map(|id| (id, mr.sge(0, 8)))).unwrap();
        for wr_id in 0..8 {
            write(&a, wr_id, mr.sge(0, 4096), &right.mr(4096, Access::ALL), 0).unwrap();
        }
        let mut objects: Vec<Box<dyn Any + Send>> = vec![
            Box::new(channel),
            Box::new(pd),
            Box::new(cq),
            Box::new(srq),
            Box::new(a),
            Box::new(b),
            Box::new(mr),
            Box::new(mw),
            Box::new(listener),
        ];
        // Fisher and Yates.
        for last in (1..objects.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            objects.swap(last, usize::try_from(state >> 40).unwrap() % (last + 1));
        }
        let start = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let part = objects.split_off(objects.len() - 3);
                scope.spawn(|| {
                    start.wait();
                    part.into_iter().for_each(drop);
                });
            }
        });
    }
    assert!(!left.context.has_failed() && !right.context.has_failed());
    // Nothing is held: there is room for all but the queue of the endpoint itself.
    let all = usize::try_from(left.context.config().limits.cq_entries_max).unwrap();
    assert!(left.context.create_cq(all - left.cq.capacity()).is_ok());
}
