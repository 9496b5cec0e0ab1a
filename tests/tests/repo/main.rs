//! Checks of the repository: style, traceability of rules, scripts.

mod coverage;
mod dependencies;
mod scripts;
mod tidy;
