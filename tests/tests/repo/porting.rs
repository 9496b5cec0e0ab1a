//! The table for porting from verbs shows code that compiles.

use crate::tidy::{report, text};

/// Each piece of code in the right column of a table occurs in the examples of its module, which
/// the documentation tests compile.
#[test]
fn counterparts_of_verbs_occur_in_the_examples() {
    let module = text("stack/runtime/src/porting.rs");
    let documentation = || module.lines().filter_map(|line| line.strip_prefix("//!"));
    let mut is_code = false;
    let mut examples = String::new();
    for line in documentation() {
        if line.starts_with(" ```") {
            is_code = !is_code;
        } else if is_code {
            examples.push_str(line);
        }
    }
    let rows = documentation().filter(|line| line.starts_with(" |"));
    let cells = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    let codes = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    // A name in a link is checked by rustdoc.
    let codes: Vec<_> = codes.filter(|code| !module.contains(&format!("[`{code}`]"))).collect();
    assert!(codes.len() > 80, "{} pieces of code", codes.len());
    let missing = codes.iter().filter(|code| !examples.contains(**code));
    report(&missing.map(|code| format!("porting.rs: no example has {code}")).collect::<Vec<_>>());
}
