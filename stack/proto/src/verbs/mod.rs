//! Verbs: work requests, completions, queue pairs and connection management, with the names of
//! libibverbs and librdmacm where they fit.

pub mod cm;
pub mod notify;
pub mod qp;
pub mod wc;
pub mod wr;
