//! Network emulator for one direction of a link, comparable to Linux netem: loss, duplication,
//! delay, reordering, corruption and ECN marking, a link rate and a queue.
//!
//! A [`LinkEmulator`] accepts frames and returns them when they are due. It has no clock and no
//! device: time is an argument in nanoseconds, virtual or real, and a frame is anything that
//! exposes its bytes ([`Frame`]). A frame passes these stages, in this order:
//!
//! 1. path MTU: longer packets are dropped;
//! 2. queue: bounded (tail drop), with CE marking above a threshold;
//! 3. serialization, one frame at a time at the link rate, Ethernet overhead included;
//! 4. random faults: loss (independent or in bursts), corruption, duplication;
//! 5. delay, jitter, and for some frames an additional hold, so that later frames overtake them.
//!
//! All random numbers come from one seed, and each frame draws the same number of them whatever
//! happens to it. So the random faults of the n-th frame depend only on the seed and the settings,
//! not on its arrival time; with a higher loss rate, the same frames are lost and others.
#![forbid(unsafe_code)]

mod emulator;
mod faults;
mod packet;

pub use emulator::{Frame, LinkCounters, LinkEmulator};
pub use faults::{Faults, GilbertElliott};
pub use packet::wire_bytes;
