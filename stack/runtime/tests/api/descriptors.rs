//! Descriptors of the channels, as the application uses them.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Barrier;

use ferrowarp::{Access, CompChannel, Cq, DriveMode, EventChannel, Notify, Qp, QpOptions};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::support::*;

/// A connection whose right end has both channels.
struct Fixture {
    left: Endpoint,
    right: Endpoint,
    channel: CompChannel,
    events: EventChannel,
    cq: Cq,
    a: Qp,
    b: Qp,
}

impl Fixture {
    fn new(drive: DriveMode) -> Self {
        let (left, right) = endpoints(drive);
        let channel = right.context.create_comp_channel().unwrap();
        let events = right.context.event_channel().unwrap();
        let cq = right.context.create_cq_on(&channel, 64).unwrap();
        let b = right.pd.create_qp(&QpOptions::new(&cq).max_recv_wr(16)).unwrap();
        let (a, b) = connect_qps(&right, left.qp(), b).0;
        while events.next_event().is_some() {}
        Self { left, right, channel, events, cq, a, b }
    }

    /// Has an event pending on both channels.
    fn raise_both(&self) {
        let buffer = self.right.mr(64, Access::LOCAL_WRITE);
        self.b.post_recv(1, buffer.sge(0, 64)).unwrap();
        self.cq.req_notify(Notify::Next).unwrap();
        send(&self.a, 1, b"x").unwrap();
        self.a.close().unwrap();
        let is_raised = || readable(&self.channel) && readable(&self.events);
        drive_until(&self.left.context, &self.right.context, is_raised);
    }
}

fn readable(channel: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
}

#[test]
fn raw_descriptors_serve_epoll() {
    let fixture = Fixture::new(DriveMode::Inline);
    let Fixture { channel, events, .. } = &fixture;
    assert_eq!(channel.as_raw_fd(), channel.as_fd().as_raw_fd());
    assert_eq!(events.as_raw_fd(), events.as_fd().as_raw_fd());
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    epoll.add(channel, EpollEvent::new(EpollFlags::EPOLLIN, 1)).unwrap();
    epoll.add(events, EpollEvent::new(EpollFlags::EPOLLIN, 2)).unwrap();
    let ready = || {
        let mut found = [EpollEvent::empty(); 4];
        let count = epoll.wait(&mut found, EpollTimeout::ZERO).unwrap();
        found[..count].iter().map(EpollEvent::data).sum::<u64>()
    };
    assert_eq!(ready(), 0);
    fixture.raise_both();
    assert_eq!(ready(), 3);
    assert!(channel.next_event().is_some());
    assert_eq!(ready(), 2);
    while events.next_event().is_some() {}
    assert_eq!(ready(), 0);
}

/// The application sets the flag as it likes, and may even read what is not for it: no call of
/// either side blocks.
#[test]
fn flags_of_descriptors_block_nobody() {
    for (is_nonblocking, reads) in [(false, false), (true, false), (false, true), (true, true)] {
        let fixture = Fixture::new(DriveMode::Inline);
        let Fixture { channel, events, .. } = &fixture;
        let own = [channel.as_fd(), events.as_fd()].map(|fd| {
            let stream = UnixStream::from(fd.try_clone_to_owned().unwrap());
            // Of the open file, so of the channel's own descriptor as well.
            stream.set_nonblocking(is_nonblocking).unwrap();
            stream
        });
        fixture.raise_both();
        for mut stream in own.iter().filter(|_| reads) {
            assert_eq!(stream.read(&mut [0]).unwrap(), 1);
        }
        assert!(channel.next_event().is_some());
        while events.next_event().is_some() {}
        assert!(!readable(channel) && !readable(events));
    }
}

/// Ends of the right context while threads sleep on its descriptors.
#[test]
fn close_wakes_threads_that_sleep_on_descriptors() {
    for drive in [DriveMode::Inline, DriveMode::Helper] {
        let Fixture { left, right, channel, events, a, b, .. } = Fixture::new(drive);
        let sleeping = Barrier::new(3);
        let sleep = |fd: BorrowedFd<'_>| {
            let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
            sleeping.wait();
            poll(&mut fds, PollTimeout::try_from(TIMEOUT).unwrap()).unwrap();
            fds[0].revents().unwrap()
        };
        std::thread::scope(|scope| {
            let woken = [channel.as_fd(), events.as_fd()].map(|fd| scope.spawn(move || sleep(fd)));
            sleeping.wait();
            drop((a, b));
            left.context.clone().close();
            right.context.clone().close();
            for thread in woken {
                let found = thread.join().unwrap();
                assert!(found.contains(PollFlags::POLLIN), "{found:?}");
            }
        });
        while events.next_event().is_some() {}
        for fd in [channel.as_fd(), events.as_fd(), right.context.event_channel().unwrap().as_fd()]
        {
            let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
            assert_eq!(poll(&mut fds, PollTimeout::ZERO).unwrap(), 1, "for ever");
            let found = fds[0].revents().unwrap();
            assert!(found.contains(PollFlags::POLLIN | PollFlags::POLLHUP), "{found:?}");
        }
    }
}
