//! Events for the program, with a descriptor that is readable while there are any.

use std::collections::VecDeque;
use std::os::fd::AsRawFd as _;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{MsgFlags, recv, send};

use crate::engine::is_exiting;
use crate::errno::Outcome;

/// A queue of events.
///
/// Its descriptor is a socket that holds one byte while there are events: whatever the program does
/// with its flags, each call here says itself that it does not block.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    reader: UnixStream,
    writer: UnixStream,
    events: Mutex<VecDeque<E>>,
}

impl<E> EventQueue<E> {
    /// # Errors
    /// `EMFILE` and the like.
    pub(crate) fn new() -> Outcome<Self> {
        let (reader, writer) = UnixStream::pair()?;
        Ok(Self { reader, writer, events: Mutex::default() })
    }

    /// The descriptor for the program.
    pub(crate) fn fd(&self) -> RawFd {
        self.reader.as_raw_fd()
    }

    /// True unless the program has set `O_NONBLOCK`.
    pub(crate) fn blocks(&self) -> bool {
        let flags = fcntl(&self.reader, FcntlArg::F_GETFL).unwrap_or(0);
        !OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<E>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: E) {
        if is_exiting() {
            return;
        }
        let mut events = self.lock();
        events.push_back(event);
        if events.len() == 1 {
            self.set_readable();
        }
    }

    /// The socket is empty, so it takes a byte.
    fn set_readable(&self) {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = send(self.writer.as_raw_fd(), &[0], flags);
    }

    fn set_unreadable(&self) {
        let _ = recv(self.reader.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT);
    }

    /// Removes the first event. `on_taken` is called before another thread finds that it is gone:
    /// who destroys what the event is about, then waits for the acknowledgment.
    pub(crate) fn pop(&self, on_taken: impl FnOnce(&E)) -> Option<E> {
        let mut events = self.lock();
        let event = events.pop_front()?;
        on_taken(&event);
        self.set_unreadable();
        if !events.is_empty() {
            // Anew, for a program that waits for edges (`EPOLLET`) and takes one event for each.
            self.set_readable();
        }
        Some(event)
    }

    /// Removes the events that `matches` accepts, and returns them.
    pub(crate) fn remove(&self, mut matches: impl FnMut(&E) -> bool) -> Vec<E> {
        let mut events = self.lock();
        if events.is_empty() {
            return Vec::new();
        }
        let (removed, kept): (Vec<E>, Vec<E>) = events.drain(..).partition(&mut matches);
        events.extend(kept);
        if events.is_empty() {
            self.set_unreadable();
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn is_readable(queue: &EventQueue<u32>) -> bool {
        let fd: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(&queue.reader);
        poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_there_are_events() {
        let queue = EventQueue::new().unwrap();
        assert!(!is_readable(&queue));
        queue.push(1);
        queue.push(2);
        assert!(is_readable(&queue));
        assert_eq!(queue.pop(|_| {}), Some(1));
        assert!(is_readable(&queue));
        assert_eq!((queue.pop(|_| {}), queue.pop(|_| {})), (Some(2), None));
        assert!(!is_readable(&queue));
    }

    #[test]
    fn removed_events_make_it_unreadable() {
        let queue = EventQueue::new().unwrap();
        (1..=4).for_each(|event| queue.push(event));
        assert_eq!(queue.remove(|event| event % 2 == 0), [2, 4]);
        assert!(is_readable(&queue));
        assert_eq!(queue.remove(|_| true), [1, 3]);
        assert!(!is_readable(&queue));
        queue.push(5);
        assert!(is_readable(&queue));
    }

    /// Whatever the program does with the flags, no call blocks.
    #[test]
    fn flags_of_the_program_change_nothing() {
        let queue = EventQueue::new().unwrap();
        queue.reader.set_nonblocking(false).unwrap();
        queue.push(1);
        assert_eq!((queue.pop(|_| {}), queue.pop(|_| {})), (Some(1), None));
        assert!(queue.remove(|_| true).is_empty());
    }
}
