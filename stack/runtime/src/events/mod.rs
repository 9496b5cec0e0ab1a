//! Events of a context, other than completions: sources and queue.

mod async_event;
mod notify_fd;
mod queue;
mod source;
mod ticket_queue;

pub use async_event::AsyncEvent;
pub(crate) use notify_fd::NotifyFd;
pub(crate) use queue::{AsyncEventQueue, ChannelId, EventPublisher};
pub(crate) use source::EventSource;
pub(crate) use ticket_queue::TicketQueue;

#[cfg(test)]
mod tests;
