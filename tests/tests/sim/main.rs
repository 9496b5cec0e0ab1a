//! The simulation over seeds, and its tables of goodput.

mod goodput;
mod simulation;
mod smoltcp;
