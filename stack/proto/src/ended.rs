//! Reasons why a context does nothing any more, as the errors of all calls name them.

/// Why a context does nothing any more, or the part of it that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The context is closed, or closes.
    #[error("the context is closed: open another")]
    Closed,
    /// A panic inside the stack, or the removal of the device, has ended the shards that the call
    /// needs: those of the queue pair or of the queue, or all of the context.
    #[error(
        "a defect of the stack, or the removal of the device, has ended the shards that this \
         needs: use others, or open another context"
    )]
    Failed,
    /// This process is a child made by `fork`: the context is the parent's.
    #[error(
        "the context belongs to the process that this one was forked from: open contexts after \
         `fork`, or in a program started by `exec`"
    )]
    Forked,
}
