//! Files, functions and types that documents name exist.

use ferrowarp_tests::workspace::root;

use crate::tidy::{files, report, text};

/// Folders from which paths in documents begin, besides the document's own.
const BASES: [&str; 4] = ["", "stack/lockfree/src/", "stack/proto/src/", "stack/runtime/src/"];
/// Keywords that define a name.
const KEYWORDS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod"];

fn is_word_of(word: &str, others: &[char]) -> bool {
    word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || others.contains(&c))
}

fn has_word(text: &str, word: &str) -> bool {
    let is_end = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        is_end(text[..at].chars().next_back()) && is_end(text[at + word.len()..].chars().next())
    })
}

/// True if `source` defines `name`: `function`, `Type`, or `Type::function`.
fn defines(source: &str, name: &str) -> bool {
    let mut parts = name.trim_end_matches("()").rsplit("::");
    let last = parts.next().unwrap();
    KEYWORDS.iter().any(|keyword| has_word(source, &format!("{keyword} {last}")))
        && parts.all(|part| has_word(source, part))
}

/// The contents of the files that `document` may mean by `file`.
fn sources(document: &str, file: &str) -> Vec<String> {
    let own = document.rfind('/').map_or("", |slash| &document[..=slash]);
    let exists = |path: &String| root().join(path).is_file();
    let bases = BASES.into_iter().chain([own]);
    bases.map(|base| format!("{base}{file}")).filter(exists).map(|path| text(&path)).collect()
}

/// Checks what stands in backticks: files, and the names behind them, as in "`file.rs`: `name`,
/// `Type::name`; `name`".
fn check_document(document: &str, complaints: &mut Vec<String>) {
    let text = text(document);
    let parts: Vec<&str> = text.split('`').collect();
    // The file named last, and what may separate the next name from it.
    let mut file = (Vec::new(), "");
    let mut separators: &[&str] = &[];
    for part in parts.chunks_exact(2) {
        let (gap, word) = (part[0].trim(), part[1]);
        if word.ends_with(".rs") && is_word_of(word, &['/', '.', '-']) {
            file = (sources(document, word), word);
            if file.0.is_empty() {
                complaints.push(format!("{document}: {word}: there is no such file"));
            }
            separators = &[":"];
        } else if separators.contains(&gap) && is_word_of(word, &[':', '(', ')']) {
            if !file.0.iter().any(|source| defines(source, word)) {
                complaints.push(format!("{document}: {}: does not define {word}", file.1));
            }
            separators = &[",", ";", "and"];
        } else {
            separators = &[];
        }
    }
}

#[test]
fn files_and_names_in_documents_exist() {
    let mut complaints = Vec::new();
    for document in files(Some("md")) {
        check_document(&document, &mut complaints);
    }
    report(&complaints);
}

/// A path in a table of the glossary whose first part is a module of the crate names a module.
#[test]
fn modules_of_the_glossary_exist() {
    let glossary = text("stack/proto/src/lib.rs");
    let source = root().join("stack/proto/src");
    let is_module = |path: &str| {
        let path = source.join(path.replace("::", "/"));
        path.with_extension("rs").is_file() || path.join("mod.rs").is_file()
    };
    let rows = glossary.lines().filter(|line| line.starts_with("//! |"));
    let named = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let paths: Vec<_> = named.filter(|path| is_module(path.split("::").next().unwrap())).collect();
    assert!(paths.len() > 70, "{} modules", paths.len());
    let missing: Vec<_> = paths.into_iter().filter(|path| !is_module(path)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// New pages go to `docs/`: readers meet the root first.
#[test]
fn root_documents_stay_short() {
    let root_documents = files(Some("md")).into_iter().filter(|file| !file.contains('/'));
    let texts: Vec<_> = root_documents.map(|file| (text(&file), file)).collect();
    let all: usize = texts.iter().map(|(text, _)| text.len()).sum();
    assert!(all <= 90_000, "{all} bytes in the root: move a part to docs/");
    let document = |name: &str| &texts.iter().find(|(_, file)| file == name).unwrap().0;
    let lines = document("CHANGELOG.md").lines().count();
    assert!(lines <= 60, "CHANGELOG.md has {lines} lines");
    let len = document("CONTRIBUTING.md").len();
    assert!(len <= 6_000, "CONTRIBUTING.md has {len} bytes");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut complaints = Vec::new();
    for document in files(Some("md")) {
        let folder = root().join(&document).parent().unwrap().to_owned();
        for link in text(&document).split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            if !target.contains("://") && !folder.join(target).exists() {
                complaints.push(format!("{document}: {target}: there is no such file"));
            }
        }
    }
    report(&complaints);
}
