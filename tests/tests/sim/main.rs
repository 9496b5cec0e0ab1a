//! The simulation over seeds, and its tables of goodput.

mod goodput;
mod shards;
mod simulation;
mod smoltcp;
