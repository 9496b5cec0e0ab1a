//! Verbs: the vocabulary an application speaks (work requests, completions, queue pairs,
//! connection management), with the names of the verbs world.

pub mod cm;
pub mod notify;
pub mod qp;
pub mod wc;
pub mod wr;
