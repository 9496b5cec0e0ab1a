//! Network emulator for one direction of a link, comparable to Linux netem.
//!
//! A [`LinkEmulator`] accepts frames and returns them when they are due. It has no clock and no
//! device. Time is an argument in nanoseconds and may be virtual. A frame is anything that exposes
//! its bytes ([`Frame`]). A frame passes these stages in this order:
//!
//! | Stage | Effect |
//! |---|---|
//! | path MTU | Drops longer packets |
//! | queue | Bounded (tail drop); marks CE above a threshold |
//! | serialization | One frame at a time at the link rate, Ethernet overhead included |
//! | random faults | Loss (independent or in bursts), corruption, duplication |
//! | delay | Delay and jitter; holds some frames longer so that later ones overtake them |
//!
//! All random numbers come from one seed. Each frame draws the same number of them in every case.
//! So the random faults of the n-th frame depend only on the seed and the settings and not on its
//! arrival time. A higher loss rate loses the same frames and more. orbid(unsafe_code)]

mod emulator;
mod faults;
mod packet;

pub use emulator::{Frame, LinkCounters, LinkEmulator};
pub use faults::{Faults, GilbertElliott};
pub use packet::wire_bytes;
