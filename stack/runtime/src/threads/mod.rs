//! Threads of a context, and how threads that wait leave their core to others.

mod number;
mod spin;
mod thread;
mod timer_slack;

pub(crate) use number::thread_number;
pub(crate) use spin::PollBackoff;
pub use spin::Spinner;
pub(crate) use thread::ContextThread;
