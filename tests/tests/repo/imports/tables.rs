//! The tables in ARCHITECTURE.md that say what each module of a crate uses, against the code.

use std::collections::{BTreeMap, BTreeSet};

use ferrowarp_tests::workspace::root;

use super::read_folder;
use super::source::{Module, Modules};
use crate::tidy::text;

/// What each module of a crate uses: other modules of it, and those crates that are of interest.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// True if the module imports something of `other`, or writes out a path to it.
fn uses(module: &Module, prefix: &[&str], other: &str) -> bool {
    let path = [prefix, &[other]].concat();
    let tokens = path.join(" :: ");
    module.imports.iter().any(|import| import.path.iter().take(path.len()).eq(&path))
        || module.body.join(" ").contains(&format!(" {tokens} :: "))
}

fn uses_in_code(folder: &str, crates: &[&str]) -> Uses {
    let modules = Modules::read(&read_folder(&root().join(folder)));
    let top = |module: &Module| module.file.split(['/', '.']).next().unwrap().to_owned();
    let names: BTreeSet<_> = modules.all.iter().map(top).filter(|name| name != "lib").collect();
    let mut found: Uses = names.iter().map(|name| (name.clone(), BTreeSet::new())).collect();
    for module in &modules.all {
        let Some(found) = found.get_mut(&top(module)) else { continue };
        let others = names.iter().filter(|name| **name != top(module));
        found.extend(others.filter(|name| uses(module, &["crate"], name)).cloned());
        let crates = crates.iter().filter(|name| uses(module, &[], name));
        found.extend(crates.map(ToString::to_string));
    }
    found
}

/// Names in backticks, crates spelled as in code.
fn words(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(|word| word.replace('-', "_"))
}

/// Reads the table of a crate. Its second column may also say, in parentheses, what is used.
fn uses_in_document(name: &str, code: &Uses, crates: &[&str]) -> Uses {
    let document = text("ARCHITECTURE.md");
    let title = format!("| Module of `{name}` | Uses |");
    let rows = document.lines().skip_while(|line| *line != title).skip(2);
    let mut found = Uses::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.split('|').collect();
        let is_known = |word: &String| code.contains_key(word) || crates.contains(&word.as_str());
        let used: BTreeSet<_> = words(cells[2]).filter(is_known).collect();
        found.extend(words(cells[1]).map(|module| (module, used.clone())));
    }
    found
}

#[test]
fn module_tables_agree_with_the_code() {
    let mut complaints = Vec::new();
    let proto = ("ferrowarp-proto", "stack/proto/src", &["smoltcp"][..]);
    let runtime = ("ferrowarp", "stack/runtime/src", &["dpdk_sys", "ferrowarp_proto"][..]);
    for (name, folder, crates) in [proto, runtime] {
        let code = uses_in_code(folder, crates);
        let document = uses_in_document(name, &code, crates);
        for module in code.keys().chain(document.keys()).collect::<BTreeSet<_>>() {
            let (code, document) = (code.get(module), document.get(module));
            if code != document {
                complaints.push(format!("{name}: {module}: uses {code:?}, table: {document:?}"));
            }
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}
