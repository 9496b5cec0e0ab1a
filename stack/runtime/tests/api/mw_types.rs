//! Memory windows of both types, and keys that the program chooses.

use ferrowarp::{Access, Bind, ConnEvent, DriveMode, EndReason, MwType, Qp, RemoteAddr, WcStatus};

use crate::support::*;

const RIGHTS: Access = Access::REMOTE_WRITE;

/// Executes a bind request.
fn execute((left, right): (&Endpoint, &Endpoint), qp: &Qp, bind: Bind) -> WcStatus {
    qp.post().bind(bind).signaled().ring().unwrap();
    right.completions(left, 1)[0].status
}

/// The connection ends because of what its peer asked for.
fn expect_refusal(qp: &Qp) {
    let ConnEvent::Disconnected { reason, .. } = expect_event(qp) else { panic!() };
    assert!(matches!(reason, EndReason::TerminateSent(_)), "{reason:?}");
}

#[test]
fn window_of_type_1_serves_all_queue_pairs_of_its_domain() {
    let (left, right) = endpoints(DriveMode::Inline);
    let ends = (&left, &right);
    let source = left.mr(64, Access::ALL);
    source.write(0, b"type 1");
    let region = right.mr(4096, Access::ALL);
    let mut window = right.pd.allocate_window_of(MwType::Type1).unwrap();
    let [(a, b), (c, d)] = [(); 2].map(|()| connect(&left, &right));
    let write_at = |qp: &Qp, addr, rkey| {
        let remote = RemoteAddr { addr, rkey };
        qp.post().write(source.sge(0, 6), remote).signaled().ring().unwrap();
        left.completions(&right, 1)[0].status
    };
    let bind = window.bind(&region, 100, 6, RIGHTS, true);
    assert_eq!(execute(ends, &b, bind), WcStatus::Success);
    let first = window.rkey();
    // By the queue pair that has bound it, and by the other.
    for qp in [&a, &c] {
        region.fill(0, 4096, 0);
        assert_eq!(write_at(qp, 0, first), WcStatus::Success);
        drive_until(&left.context, &right.context, || region.load_last(105) == b'1');
    }
    // The other queue pair binds it again, to other bytes.
    let bind = window.bind(&region, 200, 6, RIGHTS, true);
    assert_eq!(execute(ends, &d, bind), WcStatus::Success);
    assert_eq!(region.window_count(), 1);
    assert_eq!(write_at(&a, 0, window.rkey()), WcStatus::Success);
    drive_until(&left.context, &right.context, || region.load_last(205) == b'1');
    // The previous STag is invalid.
    write_at(&a, 0, first);
    expect_refusal(&b);
    // The end of a queue pair does not end the binding; nor does one that has bound it.
    drop((a, b));
    assert_eq!(write_at(&c, 0, window.rkey()), WcStatus::Success);
    drop((c, d));
    let (a, b) = connect(&left, &right);
    assert_eq!(write_at(&a, 0, window.rkey()), WcStatus::Success);
    // A bind of no bytes does.
    let bound = window.rkey();
    let bind = window.bind(&region, 0, 0, Access::default(), false);
    assert_eq!(execute(ends, &b, bind), WcStatus::Success);
    assert_eq!(region.window_count(), 0);
    write_at(&a, 0, bound);
    expect_refusal(&b);
}

#[test]
fn window_of_type_1_is_invalidated_by_calls_only() {
    let (left, right) = endpoints(DriveMode::Inline);
    let region = right.mr(4096, Access::ALL);
    let mut window = right.pd.allocate_window_of(MwType::Type1).unwrap();
    for by_peer in [false, true] {
        let (a, b) = connect(&left, &right);
        let bind = window.bind(&region, 0, 64, RIGHTS, false);
        assert_eq!(execute((&left, &right), &b, bind), WcStatus::Success);
        if by_peer {
            b.post_recv(1, []).unwrap();
            let stag = window.rkey();
            a.post().send_inline(b"").with_invalidate(stag).signaled().ring().unwrap();
        } else {
            b.post().invalidate(window.rkey()).signaled().ring().unwrap();
        }
        assert_ne!(right.completions(&left, 1)[0].status, WcStatus::Success);
        let ConnEvent::Disconnected { .. } = expect_event(&b) else { panic!() };
        assert_eq!(region.window_count(), 1, "by the peer: {by_peer}");
        poll_once(&left.cq);
    }
    assert!(window.revoke());
    assert_eq!(region.window_count(), 0);
}

#[test]
fn region_of_one_queue_pair_is_bound_by_type_2_only() {
    let (left, right) = endpoints(DriveMode::Inline);
    for mw_type in [MwType::Type2, MwType::Type1] {
        let (_a, b) = connect(&left, &right);
        let buffer = right.context.allocate(64).unwrap();
        let region = right.pd.register_for(&b, buffer, Access::ALL).unwrap();
        let mut window = right.pd.allocate_window_of(mw_type).unwrap();
        assert_eq!(window.mw_type(), mw_type);
        let status = execute((&left, &right), &b, window.bind(&region, 0, 64, RIGHTS, false));
        let is_bound = mw_type == MwType::Type2;
        assert_eq!(status, if is_bound { WcStatus::Success } else { WcStatus::Bind });
        assert_eq!(region.window_count(), u32::from(is_bound));
    }
}

#[test]
fn consumer_chooses_the_key_of_a_binding() {
    let (left, right) = endpoints(DriveMode::Inline);
    let ends = (&left, &right);
    let (a, b) = connect(&left, &right);
    let source = left.mr(64, Access::ALL);
    let region = right.mr(4096, Access::ALL);
    for mw_type in [MwType::Type1, MwType::Type2] {
        let mut window = right.pd.allocate_window_of(mw_type).unwrap();
        let index = window.rkey() >> 8;
        // As with `ibv_inc_rkey`, more than once around.
        for round in 0..300_u32 {
            let key = window.rkey().wrapping_add(1).to_le_bytes()[0];
            let bind = window.bind_with_key(key, &region, 0, 64, RIGHTS, true);
            assert_eq!((window.rkey(), bind.rkey), (index << 8 | u32::from(key), window.rkey()));
            assert_eq!(execute(ends, &b, bind), WcStatus::Success, "{round}");
            source.fill(0, 8, key);
            let remote = RemoteAddr { addr: 0, rkey: window.rkey() };
            a.post().write(source.sge(0, 8), remote).signaled().ring().unwrap();
            assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
            drive_until(&left.context, &right.context, || region.load_last(7) == key);
            if mw_type == MwType::Type2 {
                b.post().invalidate(window.rkey()).signaled().ring().unwrap();
                assert_eq!(right.completions(&left, 1)[0].status, WcStatus::Success);
            }
        }
        // Random keys have another tag, since all of this one were used.
        let bind = window.bind(&region, 0, 64, RIGHTS, true);
        assert_ne!(bind.rkey >> 8, index);
        assert_eq!(execute(ends, &b, bind), WcStatus::Success);
    }
    // Type 2: the window has to be invalid before it is bound again, with whatever key.
    let mut window = right.pd.allocate_window().unwrap();
    for (key, expected) in [(7, WcStatus::Success), (8, WcStatus::Bind)] {
        let bind = window.bind_with_key(key, &region, 0, 64, RIGHTS, true);
        assert_eq!(execute(ends, &b, bind), expected);
    }
}
