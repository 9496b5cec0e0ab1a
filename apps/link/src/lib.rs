//! One direction of a bad wire: what it loses, repeats, delays, reorders, damages and marks, how
//! fast it is and how much waits in front of it.
//!
//! A [`LinkEmulator`] takes frames and gives them back when they are due. It knows no clock and no
//! device: time is an argument in nanoseconds, virtual or real, and a frame is anything that
//! shows its bytes ([`Frame`]). A frame passes, in this order:
//!
//! 1. the MTU of the wire: what is longer is dropped;
//! 2. the queue in front of it: bounded, with congestion marks above a threshold;
//! 3. the wire itself, one frame after the other at its rate, Ethernet's overhead included;
//! 4. chance: loss alone or in bursts, damage, repetition;
//! 5. delay, jitter, and for some frames a hold that lets others overtake.
//!
//! All chance comes from one seed, and each frame draws the same number of times whatever becomes
//! of it. So the fate that chance has for the n-th frame depends on the seed and the settings
//! alone, not on when it came; with more loss, the frames that were lost before are lost again.
#![forbid(unsafe_code)]

mod emulator;
mod faults;
mod packet;

pub use emulator::{Frame, LinkCounters, LinkEmulator};
pub use faults::{Faults, GilbertElliott};
pub use packet::wire_bytes;
