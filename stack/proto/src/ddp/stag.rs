//! Steering tags.

/// Steering tag (STag): identifies a region or a window, locally and at the peer. The low 8 bits
/// are the key; the others are the slot index and random tag bits. 0 is never issued. iWARP has one
/// STag where verbs has an lkey and an rkey.
pub type Stag = u32;
