//! Checks of the repository: style, traceability of rules, scripts.

mod coverage;
mod dependencies;
mod documents;
mod packages;
mod porting;
mod scripts;
mod test_targets;
mod tidy;

use std::process::Command;

use ferrowarp_tests::workspace::root;
use serde_json::Value;

/// The output of `cargo metadata` with these arguments.
fn cargo_metadata(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--format-version", "1"])
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
