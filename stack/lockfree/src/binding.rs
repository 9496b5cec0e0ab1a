//! Late binding of queue pairs to shards.
//!
//! A queue pair exists before it is known which shard gets its connection: that of the request it
//! accepts, for example. Until then its queues are memory that no shard looks at, and receives may
//! be posted to them. Binding hands them to a shard, once.
//!
//! A thread that posts publishes the request and then loads the binding; the thread that binds
//! stores the binding and then has the shard look at the queues. With a fence between the two steps
//! on both sides one of them sees the other: either the thread that posts finds the shard and rings
//! its doorbell, or the shard finds the request. Nearly always the queue pair is bound, and posting
//! pays the fence only while it is not.

use crate::sync::{AtomicU16, Ordering, fence};

const UNBOUND: u16 = u16::MAX;

/// Shard of a queue pair, once it has one.
#[derive(Debug)]
pub struct Binding(AtomicU16);

/// Not bound.
impl Default for Binding {
    fn default() -> Self {
        Self(AtomicU16::new(UNBOUND))
    }
}

impl Binding {
    /// Returns the shard, if the queue pair is bound. One load.
    #[inline]
    pub fn get(&self) -> Option<usize> {
        let shard = self.0.load(Ordering::Acquire);
        (shard != UNBOUND).then_some(shard as usize)
    }

    /// Called after a request was published: returns the shard whose doorbell is to be rung. `None`
    /// if there is none yet: whoever binds the queue pair will find the request.
    #[inline]
    pub fn after_post(&self) -> Option<usize> {
        self.get().or_else(|| self.get_after_fence())
    }

    #[cold]
    fn get_after_fence(&self) -> Option<usize> {
        fence(Ordering::SeqCst);
        self.get()
    }

    /// Binds to a shard that has the queues already, once. The caller then has the shard look at
    /// the queues.
    pub fn bind(&self, shard: usize) {
        let shard = u16::try_from(shard).expect("shards are few");
        debug_assert!(shard != UNBOUND && self.get().is_none(), "bound once");
        self.0.store(shard, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
mod proofs {
    use loom::thread;

    use super::*;
    use crate::sync::Arc;

    /// A queue, as its tail.
    struct Model {
        tail: AtomicU16,
        rung: AtomicU16,
        binding: Binding,
    }

    fn model(bind: fn(&Binding)) {
        loom::model(move || {
            let model = Arc::new(Model {
                tail: AtomicU16::new(0),
                rung: AtomicU16::new(0),
                binding: Binding::default(),
            });
            let posting = Arc::clone(&model);
            let thread = thread::spawn(move || {
                posting.tail.store(1, Ordering::Release);
                if posting.binding.after_post() == Some(3) {
                    posting.rung.store(1, Ordering::Release);
                }
            });
            bind(&model.binding);
            let found = model.tail.load(Ordering::Acquire) == 1;
            thread.join().unwrap();
            assert!(found || model.rung.load(Ordering::Acquire) == 1, "the request is lost");
        });
    }

    #[test]
    fn request_posted_while_binding_is_found() {
        model(|binding| binding.bind(3));
    }

    #[test]
    #[should_panic = "the request is lost"]
    fn without_the_fence_it_is_lost() {
        model(|binding| binding.0.store(3, Ordering::Release));
    }
}
