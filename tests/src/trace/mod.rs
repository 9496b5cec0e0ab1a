//! Packet traces: small scripts of segments in and segments expected out, in virtual time.
//!
//! The files lie in `tests/traces`; `tests/traces/README.md` describes their form.

pub mod endpoint;
pub mod flow;
pub mod host;
pub mod packet;
pub mod runner;
pub mod script;
pub mod settings;

use std::net::SocketAddr;

use ferrowarp_proto::wire::tcp::FourTuple;

use endpoint::Endpoint;
use host::Host;
use runner::{OUR_PORT, PEER_PORT, Subject, address};
use settings::Settings;

/// Runs the text of a trace.
///
/// # Errors
/// `LINE: what was expected and what was seen`.
pub fn run(text: &str) -> Result<(), String> {
    runner::run(&script::parse(text)?)
}

/// What the settings ask to test.
fn subject(settings: &Settings) -> Box<dyn Subject> {
    if settings.engine {
        return Box::new(Host::new(settings));
    }
    let tuple = FourTuple {
        local: SocketAddr::new(address(settings, 0), OUR_PORT),
        remote: SocketAddr::new(address(settings, 1), PEER_PORT),
    };
    Box::new(Endpoint::new(settings, tuple))
}
