//! Streaming mode: data of the application before the first FPDU.

use ferrowarp::cm::Start;
use ferrowarp::{Access, CmError, ConnEvent, ConnParam, DriveMode};

use crate::support::*;

#[test]
fn streaming_data_precedes_fpdus() {
    for drive in [DriveMode::Inline, DriveMode::Helper] {
        exchange_stream(drive);
    }
}

fn exchange_stream(drive: DriveMode) {
    let (left, right) = endpoints(drive);
    let (a, b) = (left.qp(), right.qp());
    let listener = right.context.listen_unframed(PORT, 4).unwrap();
    let mut param = ConnParam::default();
    param.start = Start::Streaming;
    a.connect(server(), param.clone()).unwrap();
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    assert_eq!(request.offer().revision, 0);
    request.accept(&b, param.clone()).unwrap();
    assert_eq!(expect_event(&a), ConnEvent::Streaming { qp: a.id() });
    assert_eq!(expect_event(&b), ConnEvent::Streaming { qp: b.id() });
    let hello = pattern(3000, 5);
    assert_eq!(a.stream_send(&hello), Ok(3000));
    let mut received = Vec::new();
    drive_until(&left.context, &right.context, || {
        let mut out = [0; 700];
        let len = b.stream_receive(&mut out).unwrap();
        received.extend_from_slice(&out[..len]);
        received.len() >= 3000
    });
    assert_eq!(received, hello);
    a.start_fpdus(param.clone()).unwrap();
    b.start_fpdus(param).unwrap();
    for qp in [&a, &b] {
        let info = qp.wait_established(TIMEOUT).unwrap();
        assert!(info.markers_in && info.markers_out && info.crc);
    }
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    b.post_recv(9, recv_mr.sge(0, 64)).unwrap();
    send(&a, 3, b"done").unwrap();
    assert_eq!(right.completions(&left, 1)[0].byte_len, 4);
    assert_eq!(a.stream_send(b"late"), Err(CmError::WrongState));
}

/// Without MPA startup frames the initiator sends FPDUs at once: its first message may arrive
/// before the responder accepts, and takes a receive that was posted before that.
#[test]
fn recv_posted_before_accept_serves_early_fpdus() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = (left.qp(), right.qp());
    let listener = right.context.listen_unframed(PORT, 4).unwrap();
    let mut param = ConnParam::default();
    param.start = Start::Immediate;
    a.connect(server(), param.clone()).unwrap();
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    a.wait_established(TIMEOUT).unwrap();
    send(&a, 3, b"early").unwrap();
    assert_eq!(left.completions(&right, 1)[0].wr_id, 3);
    for _ in 0..100 {
        left.context.drive();
        right.context.drive();
    }
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    b.post_recv(9, recv_mr.sge(0, 64)).unwrap();
    request.accept(&b, param).unwrap();
    assert_eq!(right.completions(&left, 1)[0].byte_len, 5);
}
