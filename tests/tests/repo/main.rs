//! Checks of the repository: style, traceability of rules, scripts.

mod coverage;
mod dependencies;
mod imports;
mod scripts;
mod tidy;
