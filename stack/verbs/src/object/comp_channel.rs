//! Completion channels.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd as _;
use std::sync::{Mutex, PoisonError};

use ferrowarp::CqId;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::abi::{ibv_comp_channel, ibv_cq};
use crate::engine::{Engine, is_exiting};
use crate::errno::{Code, Errno, Outcome, Pointer, run};
use crate::object::context::Context;
use crate::object::cq::Cq;
use crate::object::exposed::{Exposed, Handle, Registry, expose};
use crate::object::users::Users;
use crate::program;
use crate::wait::{Taken, take_event};

/// A completion channel.
#[derive(Debug)]
pub(crate) struct CompChannel {
    pub(crate) inner: ferrowarp::CompChannel,
    engine: &'static Engine,
    /// Its completion queues.
    cqs: Mutex<HashMap<CqId, Handle<Cq>>>,
    users: Users,
}

impl Exposed for CompChannel {
    type Public = ibv_comp_channel;
    type Pointee = ibv_comp_channel;

    fn registry() -> &'static Registry<Self> {
        static CHANNELS: Registry<CompChannel> = Registry::new();
        &CHANNELS
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

impl CompChannel {
    /// Creates a channel. Its descriptor blocks, as that of rdma-core does.
    pub(crate) fn create(context: Handle<Context>) -> Outcome<Handle<Self>> {
        let engine = context.get()?.engine;
        let inner = engine.context.create_comp_channel()?;
        let flags = OFlag::from_bits_retain(fcntl(&inner, FcntlArg::F_GETFL)?);
        fcntl(&inner, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
        let public =
            ibv_comp_channel { context: context.as_ptr(), fd: inner.as_raw_fd(), refcnt: 0 };
        Ok(expose(Self { inner, engine, cqs: Mutex::default(), users: Users::default() }, public))
    }

    /// A completion queue reports to the channel from now on.
    pub(crate) fn add(&self, id: CqId, cq: Handle<Cq>) {
        self.cqs.lock().unwrap_or_else(PoisonError::into_inner).insert(id, cq);
    }

    pub(crate) fn remove(&self, id: CqId) {
        self.cqs.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Takes events until there is one of a queue that still exists, which then waits for the
    /// acknowledgment before it is destroyed.
    fn next_event(&self) -> Option<(Handle<Cq>, *mut c_void)> {
        while let Some(id) = self.inner.next_event() {
            let cqs = self.cqs.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(handle) = cqs.get(&id)
                && let Ok(cq) = handle.get()
            {
                cq.comp_acks.report();
                return Some((*handle, cq.user_context()));
            }
        }
        None
    }

    /// What to wait for while there is no event. Once the process ends, its descriptor is readable
    /// for ever.
    fn wait(&self) -> Outcome<Taken> {
        if !is_exiting() {
            self.engine.check_running()?;
            return Ok(Taken::Wait(self.inner.as_raw_fd()));
        }
        let flags = OFlag::from_bits_retain(fcntl(&self.inner, FcntlArg::F_GETFL)?);
        if flags.contains(OFlag::O_NONBLOCK) { Err(Errno::EAGAIN) } else { Ok(Taken::Never) }
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(context: Handle<Context>) -> Pointer<ibv_comp_channel> {
    Pointer::of(|| Ok(CompChannel::create(context)?.as_ptr()))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_channel(channel: Handle<CompChannel>) -> Code {
    Code::of(|| channel.destroy())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn ibv_get_cq_event(
    channel: Handle<CompChannel>,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    take_event(|| {
        let channel = channel.get()?;
        if cq.is_null() || cq_context.is_null() {
            return Err(Errno::EINVAL);
        }
        if is_exiting() {
            return channel.wait();
        }
        let Some((handle, user_context)) = channel.next_event() else {
            return channel.wait();
        };
        program::write(cq, handle.as_ptr())?;
        program::write(cq_context, user_context)?;
        Ok(Taken::Event)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: Handle<Cq>, count: c_uint) {
    let _ = run(|| {
        cq.get()?.comp_acks.acknowledge(count.into());
        Ok(())
    });
}
