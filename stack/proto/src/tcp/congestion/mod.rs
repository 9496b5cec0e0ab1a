//! Congestion control: limits the bytes in the network. The congestion window, the slow-start
//! threshold and slow start are common to all algorithms; the rest is dispatched statically.

mod control;
mod cubic;
mod dctcp;
mod hystart;

pub(super) use control::{AckSample, Congestion, CongestionWindow};

#[cfg(test)]
mod tests;
