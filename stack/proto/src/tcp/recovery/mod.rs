//! Loss detection and recovery, and the records and frames kept for it.

pub(super) mod ca_state;
pub(super) mod fast_recovery;
pub(super) mod prr;
pub(super) mod rack;
pub(super) mod scoreboard;
pub(super) mod sent_frame;
pub(super) mod tlp;
pub(super) mod undo;
