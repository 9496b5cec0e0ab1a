//! Lock-free parts that the threads of an application share with the shards of ferrowarp.
//!
//! | Module | Shared by | Purpose |
//! |---|---|---|
//! | [`spsc`] | shard and application | Completions from a shard to a completion queue |
//! | [`doorbell`] | posting threads and shard | Finds the queue pairs with posted work |
//! | [`binding`] | posting threads and shard | Gives a queue pair to its shard |
//! | [`arm`] | application and shards | Requests one completion event |
//! | [`helper_wakeup`] | application and helper thread | Decides who polls, and wakes the helper |
//! | [`spin_lock`] | all | Lock of a shard, of work queues and of completion rings |
//! | [`qsbr`], [`invalidation`] | owner of memory and shards | Frees memory once no poll uses it |
//! | [`latch`] | polling threads | Reads some words that change together |
//!
//! [`sync`] swaps the standard library's primitives for loom's under `cfg(loom)`. The proofs are
//! next to the code. Each one runs every order of its threads unless it states a bound. Nothing
//! here needs DPDK, so loom, ThreadSanitizer and miri check it on any machine.

pub mod arm;
pub mod binding;
pub mod doorbell;
pub mod helper_wakeup;
pub mod invalidation;
pub mod latch;
#[cfg(not(loom))]
mod membarrier;
pub mod qsbr;
pub mod spin_lock;
pub mod spsc;
pub mod sync;
#[cfg(all(test, loom))]
mod work_queue_proofs;
