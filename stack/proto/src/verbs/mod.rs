//! Verbs: work requests, completions, queue pairs and connection management, with the names of
//! libibverbs and librdmacm where they fit.

pub mod cm;
mod completed;
mod flush_lists;
pub mod qp;
pub mod qp_attrs;
pub(crate) mod qp_table;
pub(crate) mod queue_pair;
pub(crate) mod receive;
pub(crate) mod resources;
pub mod srq;
pub mod wc;
pub mod work_queues;
pub mod wr;
