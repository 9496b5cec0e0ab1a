//! What `bench/instructions` measures: instructions of the protocol core and from post to polled
//! completion, and the cache lines of state that a train touches.

pub mod cases;
pub mod measure;
pub mod places;
pub mod report;
pub mod table;
