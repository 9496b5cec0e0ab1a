//! Traceability: each rule of the catalogues, the code that implements it and the tests that guard
//! it.
//!
//! - [`cargo`]: runs the tests that guard a rule.
//! - [`catalogue`]: the rules.
//! - [`fixture`]: the stack and a peer that sends arbitrary FPDUs.
//! - [`golden_exchange`]: headers and exchanges written down byte by byte.
//! - [`messages`]: hand-made messages of the peer.
//! - [`mutate`]: mutants of a tagged line.
//! - [`mutation_results`]: results of mutants, in a file that a later run continues.
//! - [`replay`]: the stack against such an exchange.
//! - [`report`]: coverage report of rules, tags, exceptions and open rows.
//! - [`scan`]: tags in the sources.
//! - [`schemata`]: many mutants in one build.
//! - [`survivors`]: mutants by name, and those that no test of their rule noticed.

pub mod cargo;
pub mod catalogue;
pub mod fixture;
pub mod golden_exchange;
pub mod messages;
pub mod mutate;
pub mod mutation_results;
pub mod replay;
pub mod report;
pub mod scan;
pub mod schemata;
pub mod survivors;
