//! The thread that takes the events of the stack and passes them on.

use std::os::fd::AsFd as _;
use std::time::Duration;

use ferrowarp::{AsyncEvent, DriveMode, EventChannel};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::abi::{IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR};
use crate::cm;
use crate::engine::Engine;
use crate::errno::Outcome;
use crate::object::async_event::AsyncEvent as Event;
use crate::object::qp::Qp;

/// Starts it.
///
/// # Errors
/// `EAGAIN`, `EMFILE`: the operating system has no thread or descriptor left.
pub(crate) fn start(engine: &'static Engine) -> Outcome {
    let events = engine.context.event_channel()?;
    let thread = std::thread::Builder::new().name("ferrowarp-events".to_owned());
    thread.spawn(move || run(engine, &events))?;
    Ok(())
}

fn run(engine: &'static Engine, events: &EventChannel) {
    let polls = engine.context.drive_mode() == DriveMode::Inline;
    loop {
        let timeout = cm::report_timewait_exits();
        let event = if polls { events.wait(timeout) } else { events.next_event() };
        match event {
            Some(event) => dispatch(engine, event),
            // The context is closed.
            None if polls && timeout == Duration::MAX => return,
            None if !polls && !sleep(events, timeout) => break,
            None => {}
        }
    }
    while let Some(event) = events.next_event() {
        dispatch(engine, event);
    }
}

/// Sleeps until there are events, for `timeout` at most; false at the end of the context. Other
/// threads poll: for the poller this thread is none that waits, which would make it look for work
/// more often for good.
fn sleep(events: &EventChannel, timeout: Duration) -> bool {
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::NONE);
    let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut fds, timeout);
    !fds[0].revents().is_some_and(|found| found.contains(PollFlags::POLLHUP))
}

fn dispatch(engine: &'static Engine, event: AsyncEvent) {
    match event {
        AsyncEvent::Connection { qp } => {
            if let Some(qp) = engine.objects.qps.get(qp) {
                Qp::on_events(qp);
            }
        }
        AsyncEvent::ConnectRequest { listener } => cm::on_connect_requests(listener),
        AsyncEvent::CqOverrun { cq } => {
            if let Some(handle) = engine.objects.cqs.get(cq)
                && let Ok(cq) = handle.get()
            {
                Event::CqError(handle).report(cq.context);
            }
        }
        AsyncEvent::SrqLimit { srq } => {
            if let Some(handle) = engine.objects.srqs.get(srq)
                && let Ok(srq) = handle.get()
            {
                srq.on_limit(handle);
            }
        }
        AsyncEvent::PortError => Event::Port(IBV_EVENT_PORT_ERR).report_to_all(),
        AsyncEvent::PortActive => Event::Port(IBV_EVENT_PORT_ACTIVE).report_to_all(),
        AsyncEvent::Failed => {
            Event::Port(IBV_EVENT_DEVICE_FATAL).report_to_all();
            cm::on_device_removal();
        }
        _ => {}
    }
}
