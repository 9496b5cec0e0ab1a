//! The types that an application chooses for an engine.

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::verbs::wc::Completions;

/// See the [module's documentation](self).
pub(crate) trait Env {
    /// Port queue.
    type Device: Device;
    /// Registered memory.
    type Memory: Memory;
    /// Completion queues.
    type Completions: Completions;
}

/// Received frame of the device.
pub(crate) type Rx<E> = <<E as Env>::Device as Device>::Rx;
/// Sent frame kept for retransmission.
pub(crate) type Retained<E> = <<E as Env>::Device as Device>::Retained;
