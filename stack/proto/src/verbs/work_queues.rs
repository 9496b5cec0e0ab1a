//! The two work queues of a queue pair in one memory.

use crate::ddp::recv_queue::{self, RqProducer};
use crate::ddp::untagged::BufferQueue;
use crate::rdmap::requester::Requester;
use crate::rdmap::send_queue::{self, SqProducer};
use crate::verbs::qp::QpCap;
use crate::work_queue::{Tails, work_queues};

/// The two sides of a queue pair's work queues.
#[derive(Debug)]
pub struct WorkQueues {
    /// Engine's side of the send queue.
    pub requester: Requester,
    /// Engine's side of the receive queue.
    pub recv_queue: BufferQueue,
    /// Application's side of the send queue.
    pub sends: SqProducer,
    /// Application's side of the receive queue.
    pub recvs: RqProducer,
    /// Tails of the send queue and of the receive queue.
    pub tails: Tails<2>,
}

impl WorkQueues {
    /// Creates queues of these capacities. Zeroes 64 to 128 bytes for each slot: the rings are
    /// powers of two.
    ///
    /// # Panics
    /// If one is to have more than [`WORK_REQUESTS_MAX`](crate::work_queue::WORK_REQUESTS_MAX)
    /// requests, or one of these more elements or inline bytes than any may.
    #[must_use]
    pub fn new(cap: QpCap) -> Self {
        let ([sq, rq], tails) = work_queues([cap.sends.shape(), cap.recvs.shape()]);
        let (sends, sq) = send_queue::from_work_queue(sq);
        let (recvs, rq) = recv_queue::from_work_queue(rq);
        let requester = Requester::of(sq);
        Self { requester, recv_queue: BufferQueue::of(rq), sends, recvs, tails }
    }
}
