//! Loss detection and recovery, and the records and frames kept for it.

pub(super) mod ack;
pub(super) mod prr;
pub(super) mod rack;
pub(super) mod scoreboard;
pub(super) mod sent_frame;
pub(super) mod state;
pub(super) mod tlp;
pub(super) mod undo;
