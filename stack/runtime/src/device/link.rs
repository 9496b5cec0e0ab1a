//! Link of a port: kinds of links, and the log of their changes.

use std::sync::Arc;

use dpdk_sys::PortLink;
use dpdk_sys::netif::{Interface, InterfaceState};

/// Kind of a port's link, by its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkKind {
    /// Memory of this process, or something whose state the driver does not report: always up.
    Constant,
    /// A cable. Its end is a fault, and is logged as a warning.
    Line,
    /// An interface of the kernel, otherwise as `Line`. We read its state from the kernel: drivers
    /// do not report it, or read it by a name that another interface may have by now.
    Interface,
    /// A connection to another process, which may end, and be followed by another one.
    Connection,
    /// The only connection to another process. It is not read again once it has ended: at each
    /// reading the driver would set an alarm to end it.
    OnlyConnection,
}

/// Opens the kernel interface below a port, if its link is one, in the network namespace of the
/// calling thread: that in which the port was attached.
pub(super) fn interface_of(kind: LinkKind, index: u32, device: &str) -> Option<Arc<Interface>> {
    let opened = (kind == LinkKind::Interface).then(|| Interface::open(index))?;
    let report = |error| tracing::warn!("{device}: the link cannot be watched: {error}");
    opened.map_err(report).ok().map(Arc::new)
}

/// Link of a port that may go down and come up.
#[derive(Debug)]
pub struct DpdkLink {
    port: PortLink,
    kind: LinkKind,
    interface: Option<Arc<Interface>>,
    name: String,
    joins_process: bool,
    /// The link was down at the last reading.
    is_down: bool,
    /// The interface was gone.
    is_gone: bool,
    /// A warning that the link is down was logged.
    has_warned: bool,
}

impl DpdkLink {
    /// `None` if its state does not change.
    pub(super) fn new(
        port: PortLink,
        kind: LinkKind,
        interface: Option<&Arc<Interface>>,
        name: &str,
    ) -> Option<Self> {
        let is_told = match kind {
            LinkKind::Constant => false,
            LinkKind::Interface => interface.is_some(),
            LinkKind::Line | LinkKind::Connection | LinkKind::OnlyConnection => true,
        };
        is_told.then(|| Self {
            port,
            kind,
            interface: interface.cloned(),
            name: name.to_owned(),
            joins_process: false,
            is_down: false,
            is_gone: false,
            has_warned: false,
        })
    }

    /// The same with a process at the other end that was there before this one, or without.
    pub(super) fn joining(self, joins_process: bool) -> Self {
        Self { joins_process, ..self }
    }

    /// Reads the state. May take 0.1 s, as [`DpdkDevice::link_is_up`].
    ///
    /// [`DpdkDevice::link_is_up`]: crate::device::DpdkDevice::link_is_up
    #[must_use]
    pub fn is_up(&mut self) -> bool {
        let is_over = self.is_down && self.kind == LinkKind::OnlyConnection || self.is_gone;
        self.is_down = is_over || !self.read();
        !self.is_down
    }

    fn read(&mut self) -> bool {
        let Some(interface) = &self.interface else { return self.port.is_up() };
        match interface.state() {
            Ok(InterfaceState::Up | InterfaceState::Elsewhere) => true,
            Ok(InterfaceState::Down) => false,
            Ok(InterfaceState::Gone) => {
                self.is_gone = true;
                false
            }
            // As before.
            Err(_) => !self.is_down,
        }
    }

    /// True if the interface below the port was gone at the last reading: nothing will cross the
    /// link again.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// True if the link is a connection to one other process.
    #[must_use]
    pub const fn is_to_process(&self) -> bool {
        matches!(self.kind, LinkKind::Connection | LinkKind::OnlyConnection)
    }

    /// Number of times that the connection has ended, where the driver's events show that.
    #[must_use]
    pub fn down_count(&self) -> u64 {
        self.port.down_count()
    }

    /// True if the process at the other end was there before this one.
    #[must_use]
    pub const fn joins_process(&self) -> bool {
        self.joins_process
    }

    /// Reports that the interface below the port is gone, which is the removal of the device: see
    /// [`DpdkDevice::observe_removal`].
    ///
    /// [`DpdkDevice::observe_removal`]: crate::device::DpdkDevice::observe_removal
    pub fn report_removal(&self) {
        tracing::info!("{}: its interface is gone", self.name);
        self.port.report_removal();
    }

    /// Logs the state at the start: an interface that is down then may stay so for ever. A tap has
    /// just been created, and is set up next.
    pub fn log_start(&mut self, is_up: bool) {
        let Some(interface) = &self.interface else { return };
        if !is_up && !interface.is_tap() {
            let name = &self.name;
            tracing::warn!("{name}: the link is down: set up the interface and its other end");
            self.has_warned = true;
        }
    }

    /// Logs a change of the state, except the end of the interface.
    pub fn log_change(&mut self, is_up: bool) {
        let (name, state) = (&self.name, if is_up { "up" } else { "down" });
        let is_line = matches!(self.kind, LinkKind::Line | LinkKind::Interface);
        if self.is_gone {
            // Not to be taken for a failure that passes.
        } else if is_line && (!is_up || self.has_warned) {
            tracing::warn!("{name}: the link is {state}");
            self.has_warned = !is_up;
        } else {
            // Peers come and go, and a NIC's link comes up some seconds after its start.
            tracing::info!("{name}: the link is {state}");
        }
    }
}
