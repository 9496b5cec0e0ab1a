//! librdmacm.

use ferrowarp::ConnEvent;

/// A connection: what an `rdma_cm_id` becomes.
#[derive(Debug)]
pub(crate) struct Connection;

impl Connection {
    /// An event of its queue pair.
    pub(crate) fn on_event(&self, _event: ConnEvent) {}

    /// Its queue pair is about to be destroyed.
    pub(crate) fn on_destroy_qp(&self) {}
}

/// Listeners have requests.
pub(crate) fn on_connect_requests() {}
