//! Event channels.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{rdma_cm_event, rdma_event_channel};
use crate::cm::event::{Event, Pending};
use crate::engine::engine;
use crate::errno::{Errno, MinusOne, Outcome, Pointer, run};
use crate::event_queue::EventQueue;
use crate::object::exposed::{Exposed, Handle, Registry, expose};
use crate::object::users::Users;
use crate::program;
use crate::wait::{Taken, take_event};

/// An event channel. Its IDs keep it alive: a program may destroy it before them.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) events: EventQueue<Pending>,
    /// Who looked last has found no event, and perhaps waits for one.
    is_awaited: AtomicBool,
    users: Users,
}

/// Destroyed channels that threads perhaps wait at: they go on waiting, as in the kernel. Programs
/// end with such threads, for which an error would be news.
static RETIRED: Mutex<VecDeque<Arc<Channel>>> = Mutex::new(VecDeque::new());

/// Channels that are kept so.
const RETIRED_MAX: usize = 16;

impl Exposed for Channel {
    type Public = rdma_event_channel;
    type Pointee = rdma_event_channel;

    fn registry() -> &'static Registry<Self> {
        static CHANNELS: Registry<Channel> = Registry::new();
        &CHANNELS
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Channel {
    pub(super) fn create() -> Outcome<Handle<Self>> {
        let events = EventQueue::new()?;
        let public = rdma_event_channel { fd: events.fd() };
        let is_awaited = AtomicBool::new(false);
        Ok(expose(Self { events, is_awaited, users: Users::default() }, public))
    }

    pub(super) fn destroy(handle: Handle<Self>) -> Outcome {
        let channel = handle.remove()?;
        if channel.is_awaited.load(Ordering::Acquire) && channel.events.blocks() {
            let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
            retired.push_back(channel);
            if retired.len() > RETIRED_MAX {
                retired.pop_front();
            }
        }
        Ok(())
    }

    /// Takes an event for the program, if there is one.
    pub(super) fn take(&self) -> Outcome<Option<Handle<Event>>> {
        let event = self.events.pop(Pending::on_taken);
        self.is_awaited.store(event.is_none(), Ordering::Release);
        event.map(Pending::show).transpose()
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> Pointer<rdma_event_channel> {
    Pointer::of(|| {
        engine()?;
        Ok(Channel::create()?.as_ptr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_event_channel(channel: Handle<Channel>) {
    let _ = run(|| Channel::destroy(channel));
}

#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_get_cm_event(
    channel: Handle<Channel>,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    take_event(|| {
        // As when its descriptor is closed.
        let channel = channel.get().map_err(|_| Errno(libc::EBADF))?;
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        let Some(taken) = channel.take()? else {
            return Ok(Taken::Wait(channel.events.fd()));
        };
        program::write(event, taken.as_ptr())?;
        Ok(Taken::Event)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rdma_ack_cm_event(event: Handle<Event>) -> MinusOne {
    MinusOne::of(|| Event::acknowledge(event))
}
