//! Interface of a system under test, and the addresses of a trace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrowarp_proto::time::Instant;

use super::settings::Settings;

/// MAC addresses: ours and the peer's.
pub const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// Our port, unless the engine chooses one.
pub const OUR_PORT: u16 = 4420;
/// The peer's port.
pub const PEER_PORT: u16 = 40_000;
/// Time at the start of a trace.
pub const START: Instant = Instant::from_nanos(10_000_000_000);

/// System under test: receives and sends frames.
pub trait SystemUnderTest {
    /// Receives a burst of frames.
    ///
    /// # Errors
    /// Describes a violation.
    fn receive(&mut self, now: Instant, burst: &[Vec<u8>]) -> Result<(), String>;

    /// Returns the time of its next timer.
    fn deadline(&self) -> Option<Instant>;

    /// Fires timers that are due, and returns the frames to send.
    ///
    /// # Errors
    /// Describes a violation.
    fn poll_transmit(&mut self, now: Instant) -> Result<Vec<Vec<u8>>, String>;

    /// Executes a call of the application.
    ///
    /// # Errors
    /// If there is no such call, or it fails.
    fn call(&mut self, now: Instant, words: &[&str]) -> Result<(), String>;

    /// Returns the state of the connection.
    fn state(&self) -> String;

    /// Returns a counter by name.
    fn counter(&self, name: &str) -> Option<u64>;

    /// Removes and returns the events since the last call.
    fn take_events(&mut self) -> Vec<String>;
}

/// Address of an end: 0 is ours.
#[must_use]
pub fn address(settings: &Settings, end: u8) -> IpAddr {
    if settings.ipv6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(end) + 1))
    } else {
        IpAddr::V4(Ipv4Addr::new(198, 18, 0, end + 1))
    }
}
