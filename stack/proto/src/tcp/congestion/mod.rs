//! Congestion control: limits the bytes in the network. The congestion window, the slow-start
//! threshold and slow start are common to all algorithms; the rest is dispatched statically.

mod ack_sample;
mod control;
mod cubic;
mod dctcp;
mod hystart;
mod new_reno;
mod window;

pub(super) use ack_sample::AckSample;
pub(super) use control::Congestion;
pub(super) use window::CongestionWindow;

#[cfg(test)]
mod tests;
