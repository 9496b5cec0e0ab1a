//! What holds for the repository: style, traceability of rules, scripts.

mod coverage;
mod scripts;
mod tidy;
