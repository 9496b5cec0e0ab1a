//! The stack over tap and memif, against the kernel, peers that break rules, and the programs.

mod attacks;
mod iwlink;
mod kernel_tcp;
mod memif;
mod programs;
mod tap;
mod violations;
