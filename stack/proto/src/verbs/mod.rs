//! Verbs: work requests, completions, queue pairs and connection management, with the names of
//! libibverbs and librdmacm where they fit.

pub mod cm;
pub(crate) mod context;
mod flush_lists;
pub mod notify;
pub mod qp;
pub(crate) mod queue_pair;
pub(crate) mod queue_pairs;
pub(crate) mod receive;
pub mod srq;
pub mod wc;
pub mod work_queues;
pub mod wr;
