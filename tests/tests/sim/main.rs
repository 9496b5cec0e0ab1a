//! The simulation over seeds, and its tables of goodput.

mod goodput;
mod sharded_ends;
mod short_way;
mod simulation;
mod smoltcp;
