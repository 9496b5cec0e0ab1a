//! Connection requests in the backlog of a listener.

use std::time::Duration;

use ferrowarp::DriveMode;

use crate::support::*;

#[test]
fn stale_requests_do_not_fill_the_backlog() {
    let (left, right) = endpoints(DriveMode::Inline);
    let listener = right.context.listen(PORT, 2).unwrap();
    // More than the backlog holds.
    for _ in 0..5 {
        let qp = left.qp();
        qp.connect(server(), param(b"in vain")).unwrap();
        drive_for(&left.context, &right.context, Duration::from_millis(20));
        // Fails if the peer has rejected the request.
        let _ = qp.disconnect();
        drive_until(&left.context, &right.context, || right.context.connection_count() == 0);
    }
    let (a, b) = (left.qp(), right.qp());
    a.connect(server(), param(b"in earnest")).unwrap();
    drive_until(&left.context, &right.context, || {
        // Accepting a request whose connection has ended fails.
        listener.poll().is_some_and(|request| request.accept(&b, param(b"")).is_ok())
    });
    a.wait_established(TIMEOUT).unwrap();
    b.wait_established(TIMEOUT).unwrap();
}
