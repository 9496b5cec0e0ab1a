//! RDMAP: operations, RDMA Read Requests and Responses, Terminate (RFC 5040 and its drafts).

pub mod fault;
pub mod operation;
pub mod requester;
pub mod responder;
pub mod segment;
pub mod segment_train;
pub mod send_queue;
pub mod stream;
