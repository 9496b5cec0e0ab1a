//! The stack over tap and memif, against the kernel, misbehaving peers, and the programs.

mod attacks;
mod iwlink;
mod kernel_tcp;
mod memif;
mod programs;
mod shards;
mod tap;
mod violations;
