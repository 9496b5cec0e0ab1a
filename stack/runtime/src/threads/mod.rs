//! Threads of a context, and how threads that wait leave their core to others.

mod number;
mod preempted;
mod spin;
mod thread;
pub(crate) mod timer_slack;
mod yield_backoff;

pub(crate) use number::thread_number;
pub(crate) use preempted::{PreemptedThread, thread_id};
pub(crate) use spin::PollBackoff;
pub use spin::Spinner;
pub(crate) use thread::ContextThread;
pub(crate) use yield_backoff::YieldBackoff;
