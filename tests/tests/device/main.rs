//! The stack over tap, memif and vhost, against the kernel, misbehaving peers, and the programs.

mod attacks;
mod examples;
mod host_program;
mod interface_gone;
mod iwlink;
mod kernel_tcp;
mod killed_process;
mod open_vswitch;
mod own_address;
mod programs;
mod sharded_ports;
mod soak;
mod stalled_clients;
mod tap;
mod two_processes;
mod violations;
