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
pub mod system_under_test;
pub mod tcb_under_test;

/// Runs a trace given as text.
///
/// # Errors
/// `LINE: expected and actual result`.
pub fn run(text: &str) -> Result<(), String> {
    runner::run(&script::parse(text)?)
}
