//! Notification of completions through completion channels.

use std::collections::HashSet;
use std::io::Read;
use std::os::fd::AsFd;
use std::time::Duration;

use ferrowarp::{
    Access, CompChannel, Context, Cq, CreateError, DriveMode, Ended, Mr, Notify, Qp, QpOptions,
    QpState, ReqNotifyError, SendFlags, WcStatus,
};

use crate::support::*;

/// A connection whose right end has a receive completion queue on a completion channel.
struct Fixture {
    left: Endpoint,
    right: Endpoint,
    channel: CompChannel,
    cq: Cq,
    a: Qp,
    b: Qp,
    recv_mr: Mr,
}

impl Fixture {
    fn new(drive: DriveMode) -> Self {
        let (left, right) = endpoints(drive);
        let channel = right.context.create_comp_channel().unwrap();
        let cq = right.context.create_cq_on(&channel, 64).unwrap();
        let options = QpOptions::new(&right.cq).recv_cq(&cq).max_send_wr(16).max_recv_wr(16);
        let b = right.pd.create_qp(&options).unwrap();
        let (a, b) = connect_qps(&right, left.qp(), b).0;
        let recv_mr = right.mr(64, Access::LOCAL_WRITE);
        for wr_id in 0..16 {
            b.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap();
        }
        Self { left, right, channel, cq, a, b, recv_mr }
    }

    /// Sends a message to the right end, and drives until its receive completes.
    fn send(&mut self, solicited: bool) {
        let before = self.right.context.counters().engine.completions;
        let flags = SendFlags::SIGNALED.and(SendFlags::SOLICITED.when(solicited));
        self.a.post().send_inline(b"x").wr_id(1).with(flags).ring().unwrap();
        let right = self.right.context.clone();
        drive_until(&self.left.context, &self.right.context, || {
            right.counters().engine.completions > before
        });
    }

    /// Polls all completions, reposts their receives, and returns how many there were.
    fn drain(&mut self) -> u64 {
        let mut found = Vec::new();
        while self.cq.poll_with(32, |wc| found.push(wc)) > 0 {}
        for wc in &found {
            self.b.post_recv(wc.wr_id, self.recv_mr.sge(0, 64)).unwrap();
        }
        found.len() as u64
    }
}

// req-test: RDMAP-017, RDMAP-174
#[test]
fn solicited_request_skips_unsolicited_completions() {
    let mut fx = Fixture::new(DriveMode::Inline);
    fx.cq.req_notify(Notify::Solicited).unwrap();
    for _ in 0..3 {
        fx.send(false);
    }
    assert_eq!(fx.channel.next_event(), None);
    assert_eq!(fx.channel.wait(Duration::from_millis(20)), None);
    fx.send(true);
    assert_eq!(fx.channel.next_event(), Some(fx.cq.id()));
    assert_eq!(fx.drain(), 4);
    // One event for each request.
    fx.send(true);
    assert_eq!(fx.channel.next_event(), None);
    assert_eq!(fx.drain(), 1);
    // Completions from before the request cause no event; a failed completion does.
    fx.send(true);
    fx.cq.req_notify(Notify::Solicited).unwrap();
    assert_eq!((fx.channel.next_event(), fx.drain()), (None, 1));
    fx.b.disconnect().unwrap();
    assert_eq!(fx.channel.wait(TIMEOUT), Some(fx.cq.id()));
}

#[test]
fn next_comp_request_notifies_once() {
    let mut fx = Fixture::new(DriveMode::Inline);
    fx.cq.req_notify(Notify::Next).unwrap();
    fx.cq.req_notify(Notify::Solicited).unwrap();
    fx.send(false);
    fx.send(false);
    assert_eq!(fx.channel.next_event(), Some(fx.cq.id()));
    assert_eq!(fx.channel.next_event(), None);
    assert_eq!(fx.drain(), 2);
}

#[test]
fn cqs_share_one_comp_channel_and_its_fd() {
    let (left, right) = endpoints(DriveMode::Inline);
    let channel = right.context.create_comp_channel().unwrap();
    let cqs = [0, 1].map(|_| right.context.create_cq_on(&channel, 16).unwrap());
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    let pairs = cqs.each_ref().map(|cq| {
        let options = QpOptions::new(cq).max_send_wr(4).max_recv_wr(4);
        let b = right.pd.create_qp(&options).unwrap();
        let pair = connect_qps(&right, left.qp(), b).0;
        pair.1.post_recv(1, recv_mr.sge(0, 64)).unwrap();
        cq.req_notify(Notify::Next).unwrap();
        pair
    });
    for (a, _) in &pairs {
        send(a, 1, b"x").unwrap();
    }
    drive_for(&left.context, &right.context, Duration::from_millis(50));
    // The descriptor is readable although it was requested after the events.
    let mut pipe = std::fs::File::from(channel.as_fd().try_clone_to_owned().unwrap());
    pipe.read_exact(&mut [0]).unwrap();
    let mut notified = [channel.next_event().unwrap(), channel.next_event().unwrap()];
    notified.sort_unstable_by_key(|cq| cq.0);
    assert_eq!(notified, cqs.each_ref().map(Cq::id));
    assert_eq!(channel.next_event(), None);
    // One byte however many events; the next event makes it readable again.
    assert_eq!(pipe.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    pairs[0].1.post_recv(2, recv_mr.sge(0, 64)).unwrap();
    cqs[0].req_notify(Notify::Next).unwrap();
    pairs[0].1.disconnect().unwrap();
    pipe.read_exact(&mut [0]).unwrap();
}

#[test]
fn fd_is_readable_only_while_events_are_pending() {
    let mut fx = Fixture::new(DriveMode::Inline);
    let mut pipe = std::fs::File::from(fx.channel.as_fd().try_clone_to_owned().unwrap());
    let mut is_readable = || pipe.read(&mut [0]).is_ok();
    assert!(!is_readable());
    fx.cq.req_notify(Notify::Next).unwrap();
    fx.send(false);
    assert_eq!(fx.channel.next_event(), Some(fx.cq.id()));
    assert!(!is_readable(), "the event was read");
    fx.drain();
    fx.cq.req_notify(Notify::Next).unwrap();
    fx.send(false);
    let Fixture { left, right, channel, cq, a, b, .. } = fx;
    drop((a, b));
    drive_for(&left.context, &right.context, Duration::from_millis(20));
    drop(cq);
    assert!(!is_readable(), "the queue was destroyed, and its event with it");
    assert_eq!(channel.next_event(), None);
}

#[test]
fn req_notify_without_a_channel_is_refused() {
    let (left, right) = contexts(DriveMode::Inline);
    let channel = right.create_comp_channel().unwrap();
    assert_eq!(left.create_cq(4).unwrap().req_notify(Notify::Next), Err(ReqNotifyError::NoChannel));
    assert_eq!(
        left.create_cq_on(&channel, 4).err(),
        Some(CreateError::OtherContext),
        "channel of another context"
    );
    let cq = right.create_cq_on(&channel, 4).unwrap();
    assert_eq!(cq.req_notify(Notify::Next), Ok(()));
    Context::close(right);
    assert_eq!(cq.req_notify(Notify::Next), Err(ReqNotifyError::Ended(Ended::Closed)));
}

/// The queue fills with unsolicited completions, for which no event was requested, and overruns.
#[test]
fn overrun_notifies_a_cq_armed_for_solicited() {
    let (left, right) = endpoints(DriveMode::Inline);
    let channel = right.context.create_comp_channel().unwrap();
    let cq = right.context.create_cq_on(&channel, 4).unwrap();
    let options = QpOptions::new(&right.cq).recv_cq(&cq).max_send_wr(1).max_recv_wr(16);
    let b = right.pd.create_qp(&options).unwrap();
    let (a, b) = connect_qps(&right, left.qp(), b).0;
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    for wr_id in 0..16 {
        b.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap();
    }
    cq.req_notify(Notify::Solicited).unwrap();
    for wr_id in 0..4 {
        send(&a, wr_id, b"x").unwrap();
    }
    assert!(left.completions(&right, 4).iter().all(|wc| wc.status == WcStatus::Success));
    drive_for(&left.context, &right.context, Duration::from_millis(5));
    assert_eq!((channel.next_event(), cq.overrun()), (None, false));
    send(&a, 4, b"x").unwrap();
    drive_until(&left.context, &right.context, || cq.overrun());
    assert_eq!(channel.next_event(), Some(cq.id()));
    assert_eq!((channel.next_event(), b.state()), (None, QpState::Error));
    // Four completed receives, and those flushed when the queue pair enters the Error state.
    let mut found = Vec::new();
    drive_until(&left.context, &right.context, || {
        cq.poll_with(16, |wc| found.push(wc));
        found.len() == 16
    });
    assert!(found[..4].iter().all(|wc| wc.status == WcStatus::Success));
}

/// A pending event of a destroyed queue is dropped, and the next queue has another ID.
#[test]
fn next_cq_inherits_neither_event_nor_id() {
    let mut fx = Fixture::new(DriveMode::Inline);
    let other = fx.right.context.create_cq_on(&fx.channel, 4).unwrap();
    fx.cq.req_notify(Notify::Next).unwrap();
    fx.send(false);
    let id = fx.cq.id();
    // Destroy the queue pair and the queue while the queue's event is pending.
    let Fixture { right, channel, cq, b, .. } = fx;
    drop((b, cq));
    let next = right.context.create_cq_on(&channel, 4).unwrap();
    assert_ne!(next.id(), id);
    assert_eq!(channel.next_event(), None);
    drop((next, other));
}

/// An ID that the application took from an event may be that of a queue that is gone.
#[test]
fn stale_cq_ids_name_no_later_queue() {
    let (left, right) = contexts(DriveMode::Inline);
    let kept: Vec<Cq> = (0..4).map(|_| left.create_cq(1).unwrap()).collect();
    let mut seen: HashSet<_> = kept.iter().map(Cq::id).collect();
    for _ in 0..10_000 {
        let id = left.create_cq(1).unwrap().id();
        assert!(seen.insert(id), "{id:?} was that of another queue");
    }
    drop((kept, right));
}

#[test]
fn wait_without_timeout_returns_the_event() {
    for drive in [DriveMode::Inline, DriveMode::Helper] {
        let mut fx = Fixture::new(drive);
        fx.cq.req_notify(Notify::Next).unwrap();
        fx.send(false);
        assert_eq!(fx.channel.wait(Duration::MAX), Some(fx.cq.id()));
    }
}

/// One thread sleeps on the channel, the other until it is answered: no event is lost.
#[test]
fn sleeping_threads_lose_no_completion_event() {
    let fx = Fixture::new(DriveMode::Helper);
    let rounds = 200;
    std::thread::scope(|scope| {
        let a = &fx.a;
        let (seen_tx, seen_rx) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            for wr_id in 0..rounds {
                send(a, wr_id, b"x").unwrap();
                seen_rx.recv().unwrap();
            }
        });
        let mut seen = 0;
        while seen < rounds {
            fx.cq.req_notify(Notify::Next).unwrap();
            let mut found = poll_once(&fx.cq);
            if found.is_empty() {
                let event = fx.channel.wait(TIMEOUT);
                assert_eq!(event, Some(fx.cq.id()), "an event was lost after {seen}");
                found = poll_once(&fx.cq);
            }
            for wc in found {
                fx.b.post_recv(wc.wr_id, fx.recv_mr.sge(0, 64)).unwrap();
                seen += 1;
                seen_tx.send(()).unwrap();
            }
        }
    });
}
