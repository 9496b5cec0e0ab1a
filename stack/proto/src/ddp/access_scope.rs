//! Access scope: the protection domain and the stream on whose behalf memory is accessed.

/// Identifies a stream to the table: one queue pair of one of the engines that share it. Allocated
/// by [`RegionTable::new_stream_id`](crate::ddp::regions::RegionTable::new_stream_id).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId(pub u64);

impl StreamId {
    /// No stream: its accesses match only STags that are valid for the whole protection domain.
    pub const NONE: Self = Self(u64::MAX);
}

/// Scope of an access: a protection domain and a stream in it. Both are local values that no peer
/// can set.
// req: DDP-189
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessScope {
    /// Protection domain.
    pub pd: u32,
    /// Stream.
    pub stream: StreamId,
}

/// The protection domain without a stream.
impl From<u32> for AccessScope {
    fn from(pd: u32) -> Self {
        Self { pd, stream: StreamId::NONE }
    }
}
