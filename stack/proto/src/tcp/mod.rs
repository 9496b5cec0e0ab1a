//! A TCP connection for MPA: the send side carries records, the receive side delivers frames.
//!
//! [`Tcb`] does no input or output, reads no clock and draws no random number. The engine drives
//! each connection, per pass, in this order:
//!
//! 1. [`Tcb::handle_segment`] for each received segment; after [`Delivered::InOrder`],
//!    [`Tcb::next_contiguous`] until `None`; after [`Delivered::OutOfOrder`], its offer; then
//!    [`Tcb::release_ooo`], and [`Tcb::poll_event`] until `None`.
//! 2. [`Tcb::handle_timeout`], if [`Tcb::deadline`] has passed and the receive queue is drained.
//! 3. [`Tcb::next_transmit`] until [`Transmit::Idle`] (or the end of a budget); each plan is
//!    carried out before the next call. Called after a whole burst was processed, it requests one
//!    ACK however long the burst was.
//!
//! Modules. Each may use those of the layers below its own: `connection_state`, `lazy`, `settings`,
//! `timestamps`, `upper_layer`; then `congestion`, `rtt`; `recovery`; `challenge`, `ecn`, `pmtu`,
//! `rare_counts`; `timer`; `tx`; `close`; `rx`; `header_prediction`; `control_block`; `open`. `Tcb`
//! is common to all: each layer has methods of it. Calls of them run downwards too, except those
//! that raise an event, change the state or end the connection, and those of the fast path.
//!
//! - `control_block`: state of a connection (RFC 9293 section 3.3.1), with its read-only accessors.
//! - `connection_state`: connection states and their transition table (RFC 9293 section 3.3.2).
//! - `open`, `close`: active and passive open, SYN cookies, reuse of a connection in TIME-WAIT (RFC
//!   6191); close, abort, TIME-WAIT (RFC 9293 section 3.10).
//! - `header_prediction`: entries for received segments, of which a run in order counts as one;
//!   header prediction for connections without loss (RFC 7323 section 5.6).
//! - `rx::input`: checks of received segments in the order of RFC 9293 section 3.10.7; PAWS
//!   (RFC 7323), blind attacks (RFC 5961).
//! - `rx::deliver`: delivery of in-order and out-of-order data, FIN of the peer.
//! - `rx::assembler`, `rx::ooo_queue`: ranges received out of order, SACK blocks (RFC 2018); the
//!   memory that holds their segments.
//! - `rx::window`: receive window, delayed ACKs, D-SACK reports (RFC 9293 section 3.8.6, RFC 2883).
//! - `rx::autotune`: receive window autotuning (dynamic right-sizing).
//! - `rx::ack`: ACK processing, without loss and with it; RTT samples (RFC 9293 section 3.10.7.4,
//!   RFC 6298).
//! - `challenge`: rate limit of challenge ACKs and other replies (RFC 5961 section 7).
//! - `recovery::fast_recovery`, `recovery::ca_state`: fast recovery and its state (RFC 6675, RFC
//!   6582).
//! - `recovery::undo`: detection of spurious recovery, and its undo (RFC 3522, RFC 5682, RFC 3708).
//! - `recovery::scoreboard`, `recovery::sent_frame`: SACK scoreboard of the records sent (RFC
//!   6675); frames, or copies of them, kept for retransmission.
//! - `recovery::rack`, `recovery::tlp`: RACK loss detection and tail loss probe (RFC 8985).
//! - `recovery::prr`: proportional rate reduction (RFC 9937).
//! - `tx::transmit_plan`, `tx::output`: selection of the next segment to send (RFC 9293
//!   section 3.8.6.2.1); construction of its frame.
//! - `tx::train`: runs of full segments, whose headers differ in the sequence number.
//! - `tx::pacing`: pacing of the congestion window over the round trip.
//! - `tx::send`: send sequence variables (RFC 9293 section 3.3.1), pending control segments.
//! - `congestion`: NewReno, CUBIC, DCTCP, HyStart++ (RFC 5681, RFC 9438, RFC 8257, RFC 9406).
//! - `ecn`: Explicit Congestion Notification (RFC 3168).
//! - `rtt`: RTT estimator, RTO and probe timeout (RFC 6298).
//! - `timer`: timers, and the actions on their expiry.
//! - `pmtu`: path MTU discovery (RFC 8899, RFC 1191, RFC 8201).
//! - `lazy`: memory that is allocated only while it is needed.
//! - `timestamps`: timestamps option (RFC 7323), coarse time.
//! - `upper_layer`, `settings`, `rare_counts`: events, settings, counters.
//!
//! Read before changing anything: RFC 9293, 5681, 6298, 6675, 7323, 2018, 2883, 3522, 5961, 8985,
//! 9937, 9438, 9406, 3168, 8257.

mod challenge;
mod close;
mod congestion;
mod connection_state;
mod control_block;
mod ecn;
mod header_prediction;
mod lazy;
mod open;
mod pmtu;
mod rare_counts;
mod recovery;
mod rtt;
mod rx;
mod settings;
mod timer;
mod timestamps;
mod tx;
mod upper_layer;

#[cfg(test)]
mod tests;

pub(crate) use challenge::AckRateLimit;
pub use connection_state::State;
pub use control_block::{HOT_LEN, Tcb};
pub use header_prediction::TrainPayload;
pub(crate) use open::default_mss;
pub use pmtu::TooBig;
pub use recovery::sent_frame::CopyPool;
pub use rx::deliver::Delivered;
pub use rx::ooo_queue::{Contiguous, OooCopy, OooOffer, OooPool, OooSegment};
pub use settings::{Algorithm, Config, EcnMode, Keepalive, PathMtuConfig, Probing, Stats};
pub use tx::train::DataTrain;
pub use tx::transmit_plan::{ControlPlan, NewDataPlan, RetransmitPlan, Transmit, TxDemand};
pub use upper_layer::{Event, IssAndTsOffset};
