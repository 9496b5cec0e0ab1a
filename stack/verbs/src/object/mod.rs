//! The objects of verbs: each is a struct of rdma-core's headers that the program sees, followed by
//! what only this library knows.

pub(crate) mod acks;
pub(crate) mod async_event;
pub(crate) mod comp_channel;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod exposed;
pub(crate) mod mr;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod qp_cell;
pub(crate) mod query;
pub(crate) mod srq;
pub(crate) mod users;
