//! Link of a port: whether its state can change, and what to log when it does.

use dpdk_sys::PortLink;

/// What a port's link consists of, by its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkKind {
    /// Memory of this process, or something whose state the driver does not tell: always up.
    Constant,
    /// A cable, or an interface of the kernel. Its end is a fault, and is logged as a warning.
    Line,
    /// A connection to another process, which may end, and be followed by another one.
    Connection,
    /// As `Connection`, but the only one. It is not read again once it has ended: at each reading
    /// the driver would set an alarm to end it.
    OnlyConnection,
}

/// Link of a port that may go down and come up.
#[derive(Debug)]
pub struct DpdkLink {
    port: PortLink,
    kind: LinkKind,
    name: String,
    /// The link was down at the last reading.
    is_down: bool,
    /// A warning says that the link is down.
    has_warned: bool,
}

impl DpdkLink {
    /// `None` if its state does not change. `name` is the port's, for reports.
    pub(super) fn new(port: PortLink, kind: LinkKind, name: &str) -> Option<Self> {
        let name = name.to_owned();
        let link = Self { port, kind, name, is_down: false, has_warned: false };
        (kind != LinkKind::Constant).then_some(link)
    }

    /// Reads the state. May take 0.1 s, as [`DpdkDevice::link_is_up`].
    ///
    /// [`DpdkDevice::link_is_up`]: crate::device::DpdkDevice::link_is_up
    #[must_use]
    pub fn is_up(&mut self) -> bool {
        let is_over = self.is_down && self.kind == LinkKind::OnlyConnection;
        self.is_down = is_over || !self.port.is_up();
        !self.is_down
    }

    /// True if the link is a connection to one other process.
    #[must_use]
    pub const fn is_to_process(&self) -> bool {
        matches!(self.kind, LinkKind::Connection | LinkKind::OnlyConnection)
    }

    /// Logs a change of the state.
    pub fn log_change(&mut self, is_up: bool) {
        let (name, state) = (&self.name, if is_up { "up" } else { "down" });
        if self.kind == LinkKind::Line && (!is_up || self.has_warned) {
            tracing::warn!("{name}: the link is {state}");
            self.has_warned = !is_up;
        } else {
            // Peers come and go, and a NIC's link comes up some seconds after its start.
            tracing::info!("{name}: the link is {state}");
        }
    }
}
