//! The API of the stack over `ring`: two contexts in one process.

#[path = "../../../../tests/src/longest_poll.rs"]
#[expect(unreachable_pub, reason = "the file is of a library")]
mod longest_poll;
mod support;

mod async_events;
#[cfg(feature = "tokio")]
mod asynchronous;
mod backlog;
mod bad_input;
mod close;
mod comp_channel;
mod completions;
mod connect;
mod control_calls;
mod cq_resize;
mod descriptors;
mod device_removal;
mod direct_io;
mod drive_modes;
mod during_poll;
mod end_to_end;
mod ended;
mod event_channels;
mod extensions;
mod fork;
mod fork_calls;
mod hairpin;
mod host_port;
mod idle_threads;
mod lifecycle;
mod link_local;
mod link_state;
mod listeners;
mod memory;
mod misdelivery;
mod mw_types;
mod page_faults;
mod poll_cost;
mod poll_panic;
mod posting;
mod posting_in_signals;
mod qp_attrs;
mod raw_memory;
mod registration;
mod request_sizes;
mod reregistration;
mod settings;
mod shard_overrun;
mod shard_panic;
mod shard_srq;
mod shards;
mod shared_port;
mod streaming;
mod wakeup;
