//! Style rules that a program can check.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferrowarp_tests::workspace::{self, root};

/// Maximum columns of a line.
const LINE_LEN_MAX: usize = 100;
/// Maximum lines of a Rust file, and of one of the stack.
const FILE_LINES_MAX: usize = 700;
const STACK_FILE_LINES_MAX: usize = 500;
/// Maximum lines of an example, which a newcomer reads whole and copies.
const EXAMPLE_LINES_MAX: usize = 120;

/// Files outside `bindings/src` that may contain unsafe code. Each entry has to need it.
const UNSAFE_ALLOWED: &[&str] = &[
    "apps/run/src/system_calls.rs",
    "stack/crc32c/src/kernel.rs",
    "stack/lockfree/src/invalidation/proofs.rs",
    "stack/lockfree/src/membarrier.rs",
    "stack/lockfree/src/spin_lock.rs",
    "stack/lockfree/src/spsc.rs",
    "stack/runtime/src/clock.rs",
    "stack/runtime/src/handle/mr.rs",
    "stack/runtime/src/memory/arena.rs",
    "stack/runtime/src/memory/direct_io.rs",
    "stack/runtime/src/memory/mapped.rs",
    "stack/runtime/src/memory/mod.rs",
    "stack/runtime/src/memory/opaque/portable.rs",
    "stack/runtime/src/memory/opaque/routines.rs",
    "stack/runtime/src/memory/page_faults.rs",
    "stack/runtime/src/memory/owner.rs",
    "stack/runtime/src/threads/timer_slack.rs",
    "stack/verbs/src/object/exposed.rs",
    "stack/verbs/src/object/exposed/tests.rs",
    "stack/verbs/src/object/qp_cell.rs",
    "stack/verbs/src/poll.rs",
    "stack/verbs/src/post.rs",
    "stack/verbs/src/program.rs",
    "stack/verbs/src/wait.rs",
    "stack/verbs/src/cm/memory.rs",
    // Functions of other libraries.
    "stack/verbs/src/stock.rs",
    // Memory that vanishes, and handlers of signals.
    "stack/runtime/tests/api/page_faults.rs",
    "stack/runtime/tests/api/page_faults/handlers.rs",
    // A handler of a signal.
    "stack/runtime/tests/api/posting_in_signals.rs",
    // Memory of the program.
    "stack/runtime/tests/api/raw_memory.rs",
    // Programs that own the EAL and lend queues of their ports.
    "stack/runtime/tests/api/support/host_program.rs",
    "tests/tools/host_stack.rs",
];

/// Words banned from the main branch, split in two so that this file passes its own test.
const BANNED: [(&str, &str, &str); 7] = [
    ("to", "do!", "finish it"),
    ("unimple", "mented!", "finish it"),
    ("FIX", "ME", "mend it, or describe the limit in the documentation"),
    ("TO", "DO", "finish it, or describe the limit in the documentation"),
    ("X", "XX", "finish it"),
    ("db", "g!(", "use a counter or an assertion"),
    ("#[ign", "ore", "skip with a reason through ferrowarp_tests::skip"),
];

/// Private folders of a developer's machine, split likewise.
const PRIVATE_PATHS: [(&str, &str); 4] =
    [("/ho", "me/"), ("/wo", "rk/"), ("/ro", "ot/"), ("/Us", "ers/")];

/// The layers of the protocol crate; each may use itself and those with a smaller rank.
const LAYERS: [(&str, u8); 21] = [
    ("bounded_vec", 0),
    ("counters", 0),
    ("ended", 0),
    ("setters", 0),
    ("slab", 0),
    ("state_machine", 0),
    ("time", 0),
    ("device", 1),
    ("wheel", 1),
    ("work_queue", 1),
    ("wire", 2),
    ("net", 3),
    ("tcp", 3),
    ("mpa", 3),
    ("ddp", 3),
    ("config", 4),
    ("steering", 4),
    ("rdmap", 4),
    ("verbs", 5),
    ("connection", 6),
    ("engine", 7),
];

/// The layers inside `tcp/`, likewise. The type `Tcb` is common to them: each has methods of it,
/// which may be called from anywhere.
const TCP_LAYERS: [(&str, u8); 19] = [
    ("connection_state", 0),
    ("lazy", 0),
    ("settings", 0),
    ("timestamps", 0),
    ("upper_layer", 0),
    ("congestion", 1),
    ("rtt", 1),
    ("recovery", 2),
    ("challenge", 3),
    ("ecn", 3),
    ("pmtu", 3),
    ("rare_counts", 3),
    ("timer", 4),
    ("tx", 5),
    ("close", 6),
    ("rx", 7),
    ("header_prediction", 8),
    ("control_block", 9),
    ("open", 10),
];

/// The files with this extension, or all, as paths from the root, in order.
pub(crate) fn files(extension: Option<&str>) -> Vec<String> {
    let relative = |path: PathBuf| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    workspace::files(root(), extension).unwrap().into_iter().map(relative).collect()
}

pub(crate) fn rust_files() -> Vec<String> {
    files(Some("rs"))
}

pub(crate) fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// The code of a line: without comments, and without strings as far as a single line shows them.
fn code(line: &str) -> String {
    let mut out = String::new();
    let mut in_string = false;
    let mut bytes = line.chars().peekable();
    while let Some(c) = bytes.next() {
        match c {
            '\\' if in_string => drop(bytes.next()),
            '"' => in_string = !in_string,
            '/' if !in_string && bytes.peek() == Some(&'/') => break,
            _ if !in_string => out.push(c),
            _ => {}
        }
    }
    out
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

pub(crate) fn report(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn lines_and_files_are_short() {
    let mut complaints = Vec::new();
    for file in rust_files() {
        let text = text(&file);
        let lines = text.lines().count();
        let max = if file.starts_with("stack/") { STACK_FILE_LINES_MAX } else { FILE_LINES_MAX };
        if lines > max {
            complaints.push(format!("{file}: {lines} lines, at most {max}"));
        }
        for (index, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > LINE_LEN_MAX {
                complaints.push(format!("{file}:{}: {columns} columns", index + 1));
            }
        }
    }
    report(&complaints);
}

/// All but `loopback`, which measures.
#[test]
fn examples_are_short_and_listed() {
    let mut complaints = Vec::new();
    let lists = ["README.md", "stack/runtime/src/lib.rs"].map(|file| (file, text(file)));
    let mut examples = 0;
    for file in rust_files() {
        let Some(name) = file.strip_prefix("stack/runtime/examples/") else { continue };
        let name = name.trim_end_matches(".rs");
        if name == "loopback" {
            continue;
        }
        examples += 1;
        let lines = text(&file).lines().count();
        if lines > EXAMPLE_LINES_MAX {
            complaints.push(format!("{file}: {lines} lines, at most {EXAMPLE_LINES_MAX}"));
        }
        let row = format!("| `{name}` | ");
        for (list, _) in lists.iter().filter(|(_, text)| !text.contains(&row)) {
            complaints.push(format!("{list}: its table of examples lacks {name}"));
        }
    }
    assert!(examples >= 6, "{examples} examples");
    report(&complaints);
}

#[test]
fn no_leftovers() {
    let mut complaints = Vec::new();
    for file in rust_files() {
        for (index, line) in text(&file).lines().enumerate() {
            for (head, tail, instead) in BANNED {
                let word = format!("{head}{tail}");
                if line.contains(&word) {
                    complaints.push(format!("{file}:{}: {word}: {instead}", index + 1));
                }
            }
        }
    }
    report(&complaints);
}

#[test]
fn no_private_paths() {
    let mut complaints = Vec::new();
    for file in files(None) {
        let Ok(text) = fs::read_to_string(root().join(&file)) else { continue };
        for (index, line) in text.lines().enumerate() {
            for (head, tail) in PRIVATE_PATHS {
                if line.contains(&format!("{head}{tail}")) {
                    complaints.push(format!("{file}:{}: {}", index + 1, line.trim()));
                }
            }
        }
    }
    report(&complaints);
}

/// True for a line with unsafe code. A name that is exported as it is touches no memory: the object
/// of `stack/verbs` has the names of the functions that it replaces.
fn is_unsafe(line: &str) -> bool {
    line != "#[unsafe(no_mangle)]" && words(&code(line)).any(|word| word == "unsafe")
}

#[test]
fn unsafe_only_in_allowed_files() {
    let mut complaints = Vec::new();
    let mut needed = BTreeSet::new();
    for file in rust_files() {
        let lines = text(&file);
        let Some(index) = lines.lines().position(is_unsafe) else {
            continue;
        };
        if UNSAFE_ALLOWED.contains(&file.as_str()) {
            needed.insert(file);
        } else if !file.starts_with("bindings/src/") {
            complaints.push(format!("{file}:{}: unsafe is not allowed here", index + 1));
        }
    }
    for entry in UNSAFE_ALLOWED.iter().filter(|entry| !needed.contains(**entry)) {
        complaints.push(format!("{entry}: on the list, but has no unsafe code"));
    }
    report(&complaints);
    assert!(
        text("stack/proto/src/lib.rs").contains("#![forbid(unsafe_code)]"),
        "the protocol crate forbids unsafe code"
    );
}

#[test]
fn proto_does_not_depend_on_dpdk() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--prefix", "none", "-p", "ferrowarp-proto"])
        .args(["-e", "normal,build"])
        .current_dir(root())
        .output()
        .unwrap();
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(tree.contains("smoltcp"), "the tree is the right one:\n{tree}");
    for name in ["ferrowarp-dpdk-sys ", "ferrowarp ", "libc ", "tokio ", "loom "] {
        assert!(!tree.lines().any(|line| line.starts_with(name)), "{name}in:\n{tree}");
    }
}

/// The modules that `text` names through `prefix`, with the line of each.
fn imports(text: &str, prefix: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let code = code(line);
        for (at, _) in code.match_indices(prefix) {
            let rest = &code[at + prefix.len()..];
            let names: Vec<&str> = match rest.strip_prefix('{') {
                // `use crate::{a::x, b}`: the first word of each part, on this line.
                Some(list) => list.split(',').filter_map(|part| words(part).next()).collect(),
                None => words(rest).take(1).collect(),
            };
            found.extend(names.into_iter().map(|name| (index + 1, name.to_owned())));
        }
    }
    found
}

/// The modules of `tcp/` that a file of it names, but for its tests; `inside`: its path there.
fn tcp_imports(inside: &str, text: &str) -> Vec<(usize, String)> {
    let depth = inside.trim_end_matches("/mod.rs").split('/').count();
    let text = text.split("\nmod tests {").next().unwrap();
    let mut found = imports(text, "crate::tcp::");
    found.extend(imports(text, &"super::".repeat(depth)));
    found
}

/// Checks the imports of `file`, in this layer, against the ranks of `layers`; returns how many
/// there are.
fn check_layer(
    (file, layer): (&str, &str),
    imports: Vec<(usize, String)>,
    layers: &[(&str, u8)],
    complaints: &mut Vec<String>,
) -> usize {
    let rank = |name: &str| layers.iter().find(|(layer, _)| *layer == name).map(|(_, rank)| *rank);
    let Some(own) = rank(layer) else {
        complaints.push(format!("{file}: {layer} has no rank"));
        return 0;
    };
    let mut seen = 0;
    for (line, name) in imports {
        let Some(other) = rank(&name) else { continue };
        seen += 1;
        if other > own || (other == own && name != layer) {
            complaints.push(format!("{file}:{line}: {layer} may not use {name}"));
        }
    }
    seen
}

#[test]
fn layers_import_downwards() {
    let mut complaints = Vec::new();
    let (mut seen, mut seen_in_tcp) = (0, 0);
    for file in rust_files() {
        let Some(inside) = file.strip_prefix("stack/proto/src/") else { continue };
        let layer_of = |path: &str| path.split(['/', '.']).next().unwrap().to_owned();
        let (layer, text) = (layer_of(inside), text(&file));
        if layer == "lib" {
            continue;
        }
        seen += check_layer((&file, &layer), imports(&text, "crate::"), &LAYERS, &mut complaints);
        let Some(inside) = inside.strip_prefix("tcp/") else { continue };
        let layer = layer_of(inside);
        if layer != "mod" && !inside.split(['/', '.']).any(|part| part == "tests") {
            let found = tcp_imports(inside, &text);
            seen_in_tcp += check_layer((&file, &layer), found, &TCP_LAYERS, &mut complaints);
        }
    }
    assert!(seen > 0 && seen_in_tcp > 0, "the layers import something");
    report(&complaints);
}

/// Pairs of sibling folders, two sides of one thing: their files may have the same names.
const FOLDER_PAIRS: [(&str, &str); 5] = [
    ("connection", "engine"),
    ("handle", "shard"),
    ("interop", "verbs"),
    ("requester", "responder"),
    ("rx", "tx"),
];

/// True if the two folders are siblings, and a pair.
fn are_paired(one: &str, other: &str) -> bool {
    let split = |folder| str::rsplit_once(folder, '/').unwrap_or(("", folder));
    let ((parent, one), (other_parent, other)) = (split(one), split(other));
    parent == other_parent && FOLDER_PAIRS.contains(&(one, other))
}

/// A file is found by its name alone: ten files named `tcb.rs` were the reason for this test.
#[test]
fn file_names_are_unique_but_for_pairs_of_folders() {
    let mut folders: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for file in rust_files() {
        let Some((package, inside)) = file.split_once("/src/") else { continue };
        let (folder, name) = inside.rsplit_once('/').unwrap_or(("", inside));
        if !["mod.rs", "tests.rs", "main.rs"].contains(&name) {
            let key = (package.to_owned(), name.to_owned());
            folders.entry(key).or_default().push(folder.to_owned());
        }
    }
    let mut complaints = Vec::new();
    for ((package, name), folders) in folders {
        match folders.as_slice() {
            [_] => {}
            [one, other] if are_paired(one, other) => {}
            _ => complaints.push(format!("{package}: {name} is in {}", folders.join(", "))),
        }
    }
    report(&complaints);
}

#[test]
fn every_file_is_used() {
    let mut complaints = Vec::new();
    let all = rust_files();
    for file in &all {
        let path = PathBuf::from(file);
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let folder = path.parent().unwrap();
        let is_root = ["lib", "main", "build"].contains(&stem)
            || ["bin", "tests", "examples", "tools", "benches", "fuzz_targets"]
                .contains(&folder.file_name().unwrap_or_default().to_str().unwrap());
        if is_root && stem != "mod" {
            continue;
        }
        let (name, home) = if stem == "mod" {
            (folder.file_name().unwrap().to_str().unwrap(), folder.parent().unwrap())
        } else {
            (stem, folder)
        };
        // Any file of the folder: a test file may be included by its neighbor with a path
        // attribute.
        let (by_name, by_path) = (format!("mod {name};"), format!("#[path = \"{name}.rs\"]"));
        let declares = |line: &str| line.ends_with(&by_name) || line == by_path;
        let declared = all
            .iter()
            .filter(|other| Path::new(other).parent() == Some(home))
            .chain(all.iter().filter(|other| Path::new(other) == home.with_extension("rs")))
            .any(|other| text(other).lines().any(|line| declares(line.trim())));
        if !declared {
            complaints.push(format!("{file}: no module declares it"));
        }
    }
    report(&complaints);
}

#[test]
fn packages_share_lints_and_version() {
    let mut packages = 0;
    for file in files(None).into_iter().filter(|file| file.ends_with("/Cargo.toml")) {
        let text = text(&file);
        if text.contains("[workspace]") {
            continue;
        }
        packages += 1;
        for line in ["[lints]\nworkspace = true", "version.workspace", "license.workspace"] {
            assert!(text.contains(line), "{file}: no {line}");
        }
    }
    assert!(packages >= 6, "{packages} packages");
}

#[test]
fn code_is_separated_from_comments() {
    assert_eq!(code("let a = 1; // unsafe"), "let a = 1; ");
    assert_eq!(code("x(\"unsafe\") + 1"), "x(\"\") + 1".replace('"', ""));
    let text = "use crate::{a::B, c};\nfn x() -> crate::d::E // crate::f\n";
    let expected = [(1, "a"), (1, "c"), (2, "d")].map(|(line, name)| (line, name.to_owned()));
    assert_eq!(imports(text, "crate::"), expected);
    let text =
        "use super::super::a::B;\nuse super::c::D;\nmod tests {\n    use crate::tcp::e::F;\n}\n";
    assert_eq!(tcp_imports("rx/x.rs", text), [(1, "a".to_owned())]);
    assert_eq!(tcp_imports("rx/mod.rs", "use super::c::D;"), [(1, "c".to_owned())]);
}
