//! Asynchronous events: what is neither a completion nor an event of a connection.

use std::ffi::c_int;
use std::fmt;

use crate::abi::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event,
    ibv_event_type,
};
use crate::errno::{Errno, run};
use crate::object::acks::Acks;
use crate::object::context::Context;
use crate::object::cq::Cq;
use crate::object::exposed::Handle;
use crate::object::qp::Qp;
use crate::object::srq::Srq;
use crate::program;
use crate::wait::{Taken, take_event};

/// An event, and what it is about.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum AsyncEvent {
    CqError(Handle<Cq>),
    QpFatal(Handle<Qp>),
    SrqLimit(Handle<Srq>),
    /// Of the port, or of the device.
    Port(ibv_event_type),
}

impl AsyncEvent {
    /// What the program sees.
    fn public(self) -> ibv_async_event {
        let mut event = ibv_async_event::default();
        match self {
            Self::CqError(cq) => {
                (event.event_type, event.element.cq) = (IBV_EVENT_CQ_ERR, cq.as_ptr());
            }
            Self::QpFatal(qp) => {
                (event.event_type, event.element.qp) = (IBV_EVENT_QP_FATAL, qp.as_ptr());
            }
            Self::SrqLimit(srq) => {
                let kind = IBV_EVENT_SRQ_LIMIT_REACHED;
                (event.event_type, event.element.srq) = (kind, srq.as_ptr());
            }
            Self::Port(kind) => (event.event_type, event.element.port_num) = (kind, 1),
        }
        event
    }

    /// The event that the program returns.
    fn of(event: &ibv_async_event) -> Self {
        let element = program::event_element(event);
        match event.event_type {
            IBV_EVENT_CQ_ERR => Self::CqError(Handle::of(element.cast())),
            IBV_EVENT_QP_FATAL => Self::QpFatal(Handle::of(element.cast())),
            IBV_EVENT_SRQ_LIMIT_REACHED => Self::SrqLimit(Handle::of(element.cast())),
            kind => Self::Port(kind),
        }
    }

    /// Counts that the program gets it, or acknowledges it.
    fn count(self, count: impl FnOnce(&Acks)) {
        match self {
            Self::CqError(cq) => drop(cq.get().map(|cq| count(&cq.async_acks))),
            Self::QpFatal(qp) => drop(qp.get().map(|qp| count(&qp.acks))),
            Self::SrqLimit(srq) => drop(srq.get().map(|srq| count(&srq.acks))),
            Self::Port(_) => {}
        }
    }

    /// Reports it to a context.
    pub(crate) fn report(self, context: Handle<Context>) {
        if let Ok(context) = context.get() {
            context.events.push(self);
        }
    }

    /// Reports it to all contexts.
    pub(crate) fn report_to_all(self) {
        Context::all().iter().for_each(|context| context.events.push(self));
    }

    /// Forgets those that the program has not got, as their object is being destroyed.
    pub(crate) fn forget(self, context: Handle<Context>) {
        if let Ok(context) = context.get() {
            context.events.remove(|event| *event == self);
        }
    }
}

impl fmt::Debug for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncEvent({})", self.public().event_type)
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn ibv_get_async_event(
    context: Handle<Context>,
    event: *mut ibv_async_event,
) -> c_int {
    take_event(|| {
        let context = context.get()?;
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        let Some(taken) = context.events.pop(|event| event.count(Acks::report)) else {
            return Ok(Taken::Wait(context.events.fd()));
        };
        program::write(event, taken.public())?;
        Ok(Taken::Event)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_async_event(event: Option<&ibv_async_event>) {
    let _ = run(|| {
        AsyncEvent::of(event.ok_or(Errno::EINVAL)?).count(|acks| acks.acknowledge(1));
        Ok(())
    });
}
