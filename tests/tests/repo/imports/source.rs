//! Modules of a crate, read from its source: what each defines, imports and names.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::tokens;

/// A `use` of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    /// Name in the importing module; `None`: all names of the path.
    pub(super) name: Option<String>,
    /// Visible outside the module.
    pub(super) is_reexport: bool,
}

/// A module; several may lie in one file.
#[derive(Debug, Default)]
pub(super) struct Module {
    pub(super) file: String,
    pub(super) parent: Option<usize>,
    pub(super) children: BTreeMap<String, usize>,
    /// Names defined here.
    pub(super) defined: BTreeSet<String>,
    pub(super) imports: Vec<Import>,
    /// Tokens outside `use` items and child modules.
    pub(super) body: Vec<String>,
}

/// All modules of a crate but those of tests, as a tree: parents come before their children.
#[derive(Debug, Default)]
pub(super) struct Modules {
    pub(super) all: Vec<Module>,
    /// Modules without a parent; the library's, if there is one, is the first.
    pub(super) roots: Vec<usize>,
    /// Macros that the crate exports, and the files that define them.
    pub(super) macros: BTreeMap<String, String>,
}

impl Modules {
    /// Reads the files of a source folder, by path from there. `lib.rs`, `main.rs` and the programs
    /// in `bin` are roots; a file that no module declares outside tests is left out.
    pub(super) fn read(files: &BTreeMap<String, String>) -> Self {
        let mut modules = Self::default();
        let is_bin = |file: &str| {
            file.strip_prefix("bin/").is_some_and(|rest| {
                !rest.contains('/')
                    || (rest.ends_with("/main.rs") && rest.matches('/').count() == 1)
            })
        };
        let roots = ["lib.rs", "main.rs"].into_iter().filter(|root| files.contains_key(*root));
        let bins = files.keys().map(String::as_str).filter(|file| is_bin(file));
        for root in roots.chain(bins).map(str::to_owned).collect::<Vec<_>>() {
            let folder = root.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.into());
            let index = modules.read_file(files, &root, &folder, None);
            modules.roots.push(index);
        }
        modules
    }

    /// Reads one file; the files of its child modules lie in `folder`.
    fn read_file(
        &mut self,
        files: &BTreeMap<String, String>,
        file: &str,
        folder: &str,
        parent: Option<usize>,
    ) -> usize {
        let tokens = tokens(&files[file]);
        self.read_module(files, &tokens, file, folder, parent)
    }

    fn read_module(
        &mut self,
        files: &BTreeMap<String, String>,
        tokens: &[String],
        file: &str,
        folder: &str,
        parent: Option<usize>,
    ) -> usize {
        let index = self.all.len();
        self.all.push(Module { file: file.to_owned(), parent, ..Module::default() });
        let mut depth = 0_usize;
        let mut at = 0;
        let mut is_exported = false;
        while at < tokens.len() {
            match tokens[at].as_str() {
                "#" => {
                    let (end, kind) = attribute(tokens, at);
                    is_exported |= kind == Attribute::MacroExport;
                    at = if kind == Attribute::TestOnly { end_of_item(tokens, end) } else { end };
                    continue;
                }
                "use" if tokens.get(at + 1).is_some_and(|token| token != "<") => {
                    let end = at + tokens[at..].iter().position(|token| token == ";").unwrap_or(0);
                    let is_reexport = is_public(&tokens[..at]);
                    import_tree(
                        &tokens[at + 1..end],
                        &[],
                        is_reexport,
                        &mut self.all[index].imports,
                    );
                    at = end + 1;
                    continue;
                }
                "mod" if is_name(tokens.get(at + 1)) => {
                    let name = &tokens[at + 1];
                    let inner =
                        if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
                    let child;
                    if tokens.get(at + 2).is_some_and(|token| token == "{") {
                        let end = matching(tokens, at + 2);
                        let body = &tokens[at + 3..end];
                        child = Some(self.read_module(files, body, file, &inner, Some(index)));
                        at = end + 1;
                    } else {
                        let places = [format!("{inner}.rs"), format!("{inner}/mod.rs")];
                        let place = places.iter().find(|place| files.contains_key(*place));
                        child =
                            place.map(|place| self.read_file(files, place, &inner, Some(index)));
                        at += 3;
                    }
                    if let Some(child) = child {
                        self.all[index].children.insert(name.clone(), child);
                    }
                    continue;
                }
                "macro_rules" if is_name(tokens.get(at + 2)) => {
                    let name = tokens[at + 2].clone();
                    if std::mem::take(&mut is_exported) {
                        self.macros.insert(name.clone(), file.to_owned());
                    }
                    self.all[index].defined.insert(name);
                }
                "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static"
                    if depth == 0 =>
                {
                    let name = tokens[at + 1..].iter().find(|token| *token != "mut");
                    if is_name(name) {
                        self.all[index].defined.extend(name.cloned());
                    }
                }
                "{" => depth += 1,
                "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.all[index].body.push(tokens[at].clone());
            at += 1;
        }
        index
    }
}

fn is_name(token: Option<&String>) -> bool {
    let is_start = |c: char| c.is_alphabetic() || c == '_';
    token.is_some_and(|token| {
        token.starts_with(is_start)
            && !["fn", "unsafe", "extern", "async"].contains(&token.as_str())
    })
}

/// True if the item that begins behind these tokens is visible outside its module.
fn is_public(before: &[String]) -> bool {
    match before.last().map(String::as_str) {
        Some("pub") => true,
        Some(")") => {
            let open = before.iter().rposition(|token| token == "(");
            let scope = open.map(|open| &before[open + 1..before.len() - 1]);
            open.is_some_and(|open| open > 0 && before[open - 1] == "pub")
                && scope != Some(&["self".to_owned()])
        }
        _ => false,
    }
}

/// Splits a use tree into its names.
fn import_tree(tree: &[String], prefix: &[String], is_reexport: bool, out: &mut Vec<Import>) {
    let mut path = prefix.to_vec();
    let mut at = 0;
    while at < tree.len() {
        match tree[at].as_str() {
            "::" => {}
            "*" => return out.push(Import { path, name: None, is_reexport }),
            "{" => {
                let end = matching(tree, at);
                let mut depth = 0;
                for part in tree[at + 1..end].split(|token| {
                    depth += usize::from(token == "{");
                    depth -= usize::from(token == "}");
                    depth == 0 && token == ","
                }) {
                    import_tree(part, &path, is_reexport, out);
                }
                return;
            }
            "as" => {
                let name = tree.get(at + 1).cloned();
                return out.push(Import { path, name, is_reexport });
            }
            "self" if !path.is_empty() => {}
            segment => path.push(segment.to_owned()),
        }
        at += 1;
    }
    if at > 0 {
        let name = path.last().cloned();
        out.push(Import { path, name, is_reexport });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attribute {
    /// The item exists in tests only.
    TestOnly,
    MacroExport,
    Other,
}

/// Returns the place behind an attribute, and what it says of its item.
fn attribute(tokens: &[String], at: usize) -> (usize, Attribute) {
    let Some(open) = (at..tokens.len().min(at + 3)).find(|&at| tokens[at] == "[") else {
        return (at + 1, Attribute::Other);
    };
    let end = matching(tokens, open);
    let inside = &tokens[open + 1..end];
    let kind = match inside.first().map(String::as_str) {
        Some("test") => Attribute::TestOnly,
        Some("macro_export") => Attribute::MacroExport,
        Some("cfg") if !outside_tests(&inside[2..inside.len() - 1]).0 => Attribute::TestOnly,
        _ => Attribute::Other,
    };
    (end + 1, kind)
}

/// Whether a condition can hold, and whether it can fail, if `test` is not set.
fn outside_tests(condition: &[String]) -> (bool, bool) {
    let parts = |list: &[String]| {
        let mut depth = 0;
        list.split(|token| {
            depth += usize::from(token == "(");
            depth -= usize::from(token == ")");
            depth == 0 && token == ","
        })
        .filter(|part| !part.is_empty())
        .map(outside_tests)
        .collect::<Vec<_>>()
    };
    match condition.first().map(String::as_str) {
        Some("test" | "doc") => (false, true),
        Some(kind @ ("not" | "all" | "any")) => {
            let parts = parts(&condition[2..condition.len() - 1]);
            let (mut holds, mut fails) = (parts.iter().map(|it| it.0), parts.iter().map(|it| it.1));
            match kind {
                "not" => parts.first().map_or((true, true), |&(holds, fails)| (fails, holds)),
                "all" => (holds.all(|it| it), fails.any(|it| it)),
                _ => (holds.any(|it| it), fails.all(|it| it)),
            }
        }
        _ => (true, true),
    }
}

/// Returns the place behind the item, field, variant or statement at `at`.
fn end_of_item(tokens: &[String], mut at: usize) -> usize {
    const ITEMS: [&str; 16] = [
        "fn",
        "mod",
        "impl",
        "struct",
        "enum",
        "trait",
        "use",
        "const",
        "static",
        "type",
        "unsafe",
        "extern",
        "async",
        "let",
        "macro_rules",
        "union",
    ];
    while tokens.get(at).is_some_and(|token| token == "#") {
        at = attribute(tokens, at).0;
    }
    if tokens.get(at).is_some_and(|token| token == "pub") {
        at += 1;
        if tokens.get(at).is_some_and(|token| token == "(") {
            at = matching(tokens, at) + 1;
        }
    }
    let first = tokens.get(at).map_or("", String::as_str);
    let is_item = ITEMS.contains(&first);
    // An item with a block ends with it; others with a semicolon.
    let has_block = !["use", "const", "static", "type", "let"].contains(&first)
        || tokens.get(at + 1).is_some_and(|token| token == "fn");
    while at < tokens.len() {
        match tokens[at].as_str() {
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            "}" => return at,
            open @ ("{" | "(" | "[") => {
                at = matching(tokens, at);
                if open == "{" && has_block {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    at
}

/// Returns the place of the bracket that closes the one at `open`.
fn matching(tokens: &[String], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    tokens.len() - 1
}
