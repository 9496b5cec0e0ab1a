//! Packet traces: short scripts of incoming and expected outgoing segments, in virtual time.
//!
//! The files are in `tests/traces`; `tests/traces/README.md` describes their syntax.

mod actions;
pub mod engine_under_test;
pub mod flow;
pub mod packet;
pub mod runner;
pub mod script;
pub mod settings;
pub mod tcb_under_test;

use std::net::SocketAddr;

use ferrowarp_proto::wire::tcp::FourTuple;

use engine_under_test::EngineUnderTest;
use runner::{OUR_PORT, PEER_PORT, SystemUnderTest, address};
use settings::Settings;
use tcb_under_test::TcbUnderTest;

/// Runs a trace given as text.
///
/// # Errors
/// `LINE: expected and actual result`.
pub fn run(text: &str) -> Result<(), String> {
    runner::run(&script::parse(text)?)
}

/// Creates the system under test that the settings select.
fn system_under_test(settings: &Settings) -> Box<dyn SystemUnderTest> {
    if settings.engine {
        return Box::new(EngineUnderTest::new(settings));
    }
    let tuple = FourTuple {
        local: SocketAddr::new(address(settings, 0), OUR_PORT),
        remote: SocketAddr::new(address(settings, 1), PEER_PORT),
    };
    Box::new(TcbUnderTest::new(settings, tuple))
}
