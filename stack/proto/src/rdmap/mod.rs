//! RDMAP: operations, RDMA Read Requests and Responses, Terminate (RFC 5040 and its drafts).

pub mod operation;
pub mod requester;
pub mod responder;
pub mod rtr;
mod segment;
pub mod send_queue;
pub mod stream;
pub mod terminate;
pub mod train;
