//! Files of a crate that import each other: none may do so in a cycle.
//!
//! An edge goes from a file to the file that defines a name it uses, through re-exports; a file
//! that only hands a name on is on neither end. Modules and items of tests are left out.

mod source;
mod tables;
mod tests;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use ferrowarp_tests::workspace::{self, root};
use source::{Import, Modules};

/// Source folders, and the names under which the crates' programs import the libraries.
const CRATES: [(&str, &str); 8] = [
    ("bindings/src", "dpdk_sys"),
    ("stack/crc32c/src", "ferrowarp_crc32c"),
    ("stack/proto/src", "ferrowarp_proto"),
    ("stack/runtime/src", "ferrowarp"),
    ("apps/src", "ferrowarp_apps"),
    ("apps/link/src", "ferrowarp_link"),
    ("bench/src", "ferrowarp_bench"),
    ("tests/src", "ferrowarp_tests"),
];

/// Names that a file uses of another one, by both files.
type Edges = BTreeMap<(String, String), BTreeSet<String>>;

#[test]
fn no_import_cycles() {
    let mut complaints = Vec::new();
    for (folder, library) in CRATES {
        let edges = edges(&read_folder(&root().join(folder)), library);
        assert!(!edges.is_empty(), "{folder}: its files import each other's names");
        complaints.extend(cycles(&edges).into_iter().map(|cycle| format!("{folder}: {cycle}")));
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// Reads the Rust files below a folder, by path from there.
fn read_folder(folder: &Path) -> BTreeMap<String, String> {
    let read = |path: PathBuf| {
        let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    };
    workspace::files(folder, Some("rs")).unwrap().into_iter().map(read).collect()
}

/// Definition that a name refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Module(usize),
    /// An item, the file that defines it, and its name.
    Item(String, String),
    /// Something of another crate.
    External,
}

/// Imports being resolved, by module and place in it: they may refer to each other.
type Seen = BTreeSet<(usize, usize)>;

struct Resolver<'a> {
    modules: Modules,
    library: &'a str,
}

impl Resolver<'_> {
    fn root(&self, mut module: usize) -> usize {
        while let Some(parent) = self.modules.all[module].parent {
            module = parent;
        }
        module
    }

    /// Returns the definitions of a path in a module; several if it names both a module and an
    /// item.
    fn resolve(&self, module: usize, path: &[String], seen: &mut Seen) -> Vec<Target> {
        let Some((head, mut rest)) = path.split_first() else { return Vec::new() };
        let mut targets = match head.as_str() {
            "crate" => vec![Target::Module(self.root(module))],
            "self" => vec![Target::Module(module)],
            "super" => {
                let mut at = self.modules.all[module].parent;
                while let Some(("super", behind)) =
                    rest.split_first().map(|(next, behind)| (next.as_str(), behind))
                {
                    at = at.and_then(|at| self.modules.all[at].parent);
                    rest = behind;
                }
                at.map(Target::Module).into_iter().collect()
            }
            name => {
                let found = self.lookup(module, name, seen);
                let library = self.modules.roots.first().filter(|_| name == self.library);
                match library {
                    Some(&library) if found.is_empty() => vec![Target::Module(library)],
                    _ => found,
                }
            }
        };
        for name in rest {
            let inner = targets.iter().find_map(|target| match target {
                Target::Module(inner) => Some(*inner),
                _ => None,
            });
            let Some(inner) = inner else { break };
            let found = self.lookup(inner, name, seen);
            // What a macro defines is not found by name.
            let unknown = || Target::Item(self.modules.all[inner].file.clone(), name.clone());
            targets = if found.is_empty() { vec![unknown()] } else { found };
        }
        targets
    }

    /// Returns the definitions of a name of a module.
    fn lookup(&self, module: usize, name: &str, seen: &mut Seen) -> Vec<Target> {
        let here = &self.modules.all[module];
        let mut found: Vec<_> =
            here.children.get(name).map(|&child| Target::Module(child)).into_iter().collect();
        if here.defined.contains(name) {
            found.push(Target::Item(here.file.clone(), name.to_owned()));
        }
        for (index, import) in here.imports.iter().enumerate() {
            if import.name.as_deref() == Some(name) && seen.insert((module, index)) {
                let targets = self.resolve(module, &import.path, seen);
                found.extend(if targets.is_empty() { vec![Target::External] } else { targets });
                seen.remove(&(module, index));
            }
        }
        for (index, import) in here.imports.iter().enumerate() {
            if found.is_empty() && import.name.is_none() && seen.insert((module, index)) {
                for target in self.resolve(module, &import.path, seen) {
                    if let Target::Module(inner) = target {
                        found.extend(self.lookup(inner, name, seen));
                    }
                }
                seen.remove(&(module, index));
            }
        }
        if found.is_empty() && here.parent.is_none() {
            let defined = self.modules.macros.get(name);
            found.extend(defined.map(|file| Target::Item(file.clone(), name.to_owned())));
        }
        found
    }

    /// Names that the module uses of other files, with these.
    fn uses(&self, module: usize) -> Vec<(String, String)> {
        let here = &self.modules.all[module];
        let mut targets = Vec::new();
        for Import { path, name, is_reexport } in &here.imports {
            let is_used =
                !is_reexport || name.as_ref().is_some_and(|name| here.body.contains(name));
            if is_used && name.is_some() {
                targets.extend(self.resolve(module, path, &mut Seen::new()));
            }
        }
        let has_globs = here.imports.iter().any(|import| import.name.is_none());
        let token = |at: usize| here.body.get(at).map_or("", String::as_str);
        let mut at = 0;
        while at < here.body.len() {
            let start = at;
            let mut path = vec![token(at).to_owned()];
            while token(at + 1) == "::" && token(at + 2).starts_with(is_name_start) {
                path.push(token(at + 2).to_owned());
                at += 2;
            }
            at += 1;
            let is_member = start > 0 && [".", "::"].contains(&token(start - 1));
            if is_member || !path[0].starts_with(is_name_start) {
                continue;
            }
            // A name of its own may come from an import of all names of a module.
            let is_item =
                path[0].starts_with(char::is_uppercase) || ["(", "!"].contains(&token(at));
            if path.len() > 1 || has_globs && is_item {
                targets.extend(self.resolve(module, &path, &mut Seen::new()));
            }
        }
        let other = |target| match target {
            Target::Item(file, name) if file != here.file => Some((file, name)),
            _ => None,
        };
        targets.into_iter().filter_map(other).collect()
    }
}

fn is_name_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

/// Returns which file of a crate uses which names of which other.
fn edges(files: &BTreeMap<String, String>, library: &str) -> Edges {
    let resolver = Resolver { modules: Modules::read(files), library };
    let mut edges = Edges::new();
    for (module, here) in resolver.modules.all.iter().enumerate() {
        for (file, name) in resolver.uses(module) {
            edges.entry((here.file.clone(), file)).or_default().insert(name);
        }
    }
    edges
}

/// Returns each group of files that import each other, with the names that tie them.
fn cycles(edges: &Edges) -> Vec<String> {
    let reached = |from: &String| {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(file) = next.pop() {
            for (_, to) in edges.keys().filter(|(from, _)| from == file) {
                if reached.insert(to) {
                    next.push(to);
                }
            }
        }
        reached
    };
    let reach: BTreeMap<_, _> = edges.keys().map(|(from, _)| (from, reached(from))).collect();
    let mut groups = BTreeSet::new();
    for (file, reached) in &reach {
        let group: BTreeSet<_> = reached
            .iter()
            .filter(|other| reach.get(*other).is_some_and(|back| back.contains(file)))
            .collect();
        if !group.is_empty() {
            groups.insert(group);
        }
    }
    let describe = |group: BTreeSet<&&String>| {
        let mut text = format!("{} files import each other\n", group.len());
        for ((from, to), names) in edges {
            if group.contains(&from) && group.contains(&to) {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                text += &format!("  {from} -> {to}: {}\n", names.join(", "));
            }
        }
        text
    };
    groups.into_iter().map(describe).collect()
}
