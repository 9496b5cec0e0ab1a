//! Traceability: each rule of the catalogues, the lines that obey it and the tests that guard it.
//!
//! - [`catalogue`]: the rules.
//! - [`scan`]: tags in the sources.
//! - [`report`]: rules, tags, exceptions and what is open, joined and judged.
//! - [`cargo`]: running the tests that guard a rule.
//! - [`mutate`]: ways to break a tagged line.
//! - [`schemata`]: many mutants in one build.
//! - [`golden`]: headers and exchanges written down byte by byte.
//! - [`fixture`]: the stack and a peer that sends arbitrary FPDUs.
//! - [`replay`]: the stack against such an exchange.

use std::path::Path;

pub mod cargo;
pub mod catalogue;
pub mod fixture;
pub mod golden;
pub mod messages;
pub mod mutate;
pub mod replay;
pub mod report;
pub mod scan;
pub mod schemata;

/// The root of the workspace.
///
/// # Panics
/// If the package does not lie in a folder of it.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}
