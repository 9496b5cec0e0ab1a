//! Two engines on a bad wire in virtual time, all of it decided by one seed.
//!
//! - [`closing`]: what has to be at the end.
//! - [`exchange`]: requests and responses over a wire that loses, measured.
//! - [`extensions`]: atomic operations and Immediate Data on connections that end in mid-flight.
//! - [`frames`]: heap frames and pools that run dry.
//! - [`link`]: the wire and its faults, a package of its own.
//! - [`incident`]: what happens for a while: a cut, a drained pool, an end that stands still.
//! - [`goodput`]: bulk transfers and lost tails, measured.
//! - [`mutate`]: segments forged on their way.
//! - [`pairs`]: connected queue pairs for tests that tell a story.
//! - [`rough`]: work on connections that may end at any time.
//! - [`world`]: both ends, the clock, and how time moves on.
//! - [`watch`]: looks at every segment on the wire, and objects.
//! - [`seeds`]: many seeds over all cores; a failing one is named and captured.
//! - `words`: atomic operations and their oracle; `history`: its part for words that many use.
//! - [`workload`]: random work on random connections, and the oracles that watch it.

pub mod closing;
pub mod cut;
pub mod exchange;
pub mod extensions;
pub mod frames;
pub mod goodput;
mod history;
pub mod incident;
pub mod mutate;
pub mod pairs;
mod pane;
pub mod rough;
pub mod router;
pub mod seeds;
pub mod watch;
mod words;
pub mod workload;
pub mod world;

pub use ferrowarp_link as link;
