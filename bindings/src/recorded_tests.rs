//! Compares the bindings that documentation is built with, where there is no DPDK, with generated
//! ones.
//!
//! They belong to the release in their constants; with another one nothing is compared here, and
//! that documentation can be built with them is a check of its own (`scripts/ci.sh doc`).
//! `FERROWARP_UPDATE=1` records the bindings again.

use std::fs;

/// The generated bindings as they are recorded: without checks of layouts, in several lines.
fn recordable(generated: &str) -> String {
    const CHECK: &str = "# [allow (clippy :: unnecessary_operation , clippy :: identity_op)] \
                         const _ : () = {";
    let (_, generated) = generated.split_once("*/").expect("a comment with bindgen's version");
    let mut parts = generated.split(CHECK);
    let mut text = parts.next().unwrap().trim_start().to_owned();
    for part in parts {
        text.push_str(part.split_once("} ; ").expect("a check has an end").1);
    }
    for item in ["# [repr", "impl ", "pub const ", "pub type ", "pub use ", "unsafe extern"] {
        for end in ["}", ";"] {
            text = text.replace(&format!("{end} {item}"), &format!("{end}\n{item}"));
        }
    }
    text + "\n"
}

/// Year and month, as the constants have them.
fn release(bindings: &str) -> [&str; 2] {
    ["RTE_VER_YEAR : u32 = ", "RTE_VER_MONTH : u32 = "].map(|name| {
        let (_, rest) = bindings.split_once(name).expect("the constants of the release");
        rest.split_once(' ').unwrap().0
    })
}

#[test]
#[cfg(target_arch = "x86_64")]
fn recorded_bindings_are_the_generated_ones() {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/recorded-bindings.txt");
    let generated = recordable(include_str!(concat!(env!("OUT_DIR"), "/bindings.rs")));
    let recorded = fs::read_to_string(FILE).unwrap();
    if release(&recorded) != release(&generated) {
        return;
    }
    if std::env::var_os("FERROWARP_UPDATE").is_some_and(|value| value == "1") {
        fs::write(FILE, generated).unwrap();
    } else if recorded != generated {
        let differs = recorded.lines().zip(generated.lines()).find(|(old, new)| old != new);
        panic!("recorded-bindings.txt is stale: FERROWARP_UPDATE=1 rewrites it: {differs:#?}");
    }
}
