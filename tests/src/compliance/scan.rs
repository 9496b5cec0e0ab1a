//! Tags in the sources, which connect code and tests to rules.
//!
//! A tag is a comment line of its own, directly above its line or item, with nothing in between but
//! other comments and attributes. The sources are formatted, so items are recognized by their
//! indentation.

use std::path::Path;
use std::{fs, io};

use crate::workspace;

/// Folders with sources.
const FOLDERS: [&str; 5] = ["stack", "apps", "bindings", "bench", "tests"];

/// Kind of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Code: without this line the rule would be violated.
    Code,
    /// Test: it fails when the rule is violated.
    Test,
}

/// A tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Code or test.
    pub kind: Kind,
    /// IDs of the rules.
    pub ids: Vec<String>,
    /// Path of the source, from the root.
    pub file: String,
    /// Index of the tagged line, from zero.
    pub line: usize,
    /// Item with that line, such as `Header::parse` or `tests::round_trip`.
    pub item: String,
}

impl Tag {
    /// Returns file and item, as in the coverage table.
    #[must_use]
    pub fn location(&self) -> String {
        format!("{}:{}", self.file, self.item)
    }
}

/// All tags, and errors in tags.
#[derive(Debug, Default)]
pub struct Tags {
    /// Tags in order of files and lines.
    pub tags: Vec<Tag>,
    /// Malformed tags.
    pub errors: Vec<String>,
}

impl Tags {
    /// Reads every Rust source of the project.
    ///
    /// # Errors
    /// I/O errors.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        for folder in FOLDERS {
            files.extend(workspace::files(&root.join(folder), Some("rs"))?);
        }
        files.sort();
        let mut tags = Self::default();
        for path in files {
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            tags.scan_file(&name, &fs::read_to_string(&path)?);
        }
        Ok(tags)
    }

    /// Scans one source.
    pub fn scan_file(&mut self, file: &str, text: &str) {
        let lines: Vec<_> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let complain = |what: &str| format!("{file}:{}: {what}", index + 1);
            let Some((kind, list)) = parse(line) else {
                if is_misplaced(line) {
                    let what = "a tag is a comment line of its own: // req: ID[, ID]";
                    self.errors.push(complain(what));
                }
                continue;
            };
            let ids: Vec<_> = list.split(", ").map(str::to_owned).collect();
            if !ids.iter().all(|id| is_id(id)) {
                self.errors.push(complain("a tag names rules, ID[, ID], and nothing else"));
                continue;
            }
            let Some(target) = tagged_line(&lines, index + 1) else {
                self.errors.push(complain("a tag stands directly above what it is about"));
                continue;
            };
            if kind == Kind::Test && !item_head(lines[target]).is_some_and(|item| item.is_function)
            {
                self.errors.push(complain("a test's tag stands directly above the test"));
                continue;
            }
            let item = item_at(&lines, target);
            self.tags.push(Tag { kind, ids, file: file.to_owned(), line: target, item });
        }
    }
}

/// Parses a tag: its kind, and the list of IDs.
fn parse(line: &str) -> Option<(Kind, &str)> {
    let comment = line.trim_start().strip_prefix("// req")?;
    comment
        .strip_prefix(": ")
        .map(|list| (Kind::Code, list))
        .or_else(|| comment.strip_prefix("-test: ").map(|list| (Kind::Test, list)))
}

/// True for the form of an ID, such as `MPA-001`.
fn is_id(text: &str) -> bool {
    text.split_once('-').is_some_and(|(document, number)| {
        !document.is_empty()
            && document.bytes().all(|byte| byte.is_ascii_uppercase())
            && number.len() == 3
            && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// True for a comment that resembles a tag but is none: after code, or malformed.
fn is_misplaced(line: &str) -> bool {
    ["req:", "req-test:"].iter().any(|word| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].trim_end_matches([' ', '!', '/']);
            let in_comment = before.len() + 2 <= at && line[before.len()..at].contains("//");
            let rest = line[at + word.len()..].trim_start();
            in_comment && is_id(rest.split([',', ' ']).next().unwrap_or_default())
        })
    })
}

/// Index of the first line of code from `start` on, after comments and attributes.
fn tagged_line(lines: &[&str], start: usize) -> Option<usize> {
    let mut open_brackets = 0;
    for (index, line) in lines.iter().enumerate().skip(start) {
        let code = line.trim_start();
        if open_brackets > 0 || code.starts_with("#[") {
            let count = |bracket| code.matches(bracket).count();
            open_brackets += count('[');
            open_brackets -= count(']').min(open_brackets);
        } else if !code.starts_with("//") {
            return (!code.is_empty()).then_some(index);
        }
    }
    None
}

/// Head of an item.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ItemHead<'a> {
    /// Name of the item.
    pub(super) name: &'a str,
    /// True for a function.
    pub(super) is_function: bool,
}

/// Parses the head of an item from `line`, if an item begins there.
pub(super) fn item_head(line: &str) -> Option<ItemHead<'_>> {
    let mut rest = line.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(scope) => scope.split_once(") ")?.1,
            None => after.strip_prefix(' ')?,
        };
    }
    let mut word;
    loop {
        let (first, after) = rest.split_once([' ', '<'])?;
        word = first;
        // Generic parameters of an `impl` are not its name.
        rest = if word == "impl" && rest[word.len()..].starts_with('<') {
            after.split_once("> ")?.1
        } else {
            after
        };
        let is_qualifier = ["async", "unsafe", "extern", "\"C\""].contains(&word)
            || (word == "const" && rest.starts_with("fn "));
        if !is_qualifier {
            break;
        }
    }
    let items = ["fn", "struct", "enum", "union", "trait", "mod", "const", "static", "type"];
    let name = match word {
        "impl" => rest.split_once(" for ").map_or(rest, |(_, name)| name),
        "macro_rules!" => rest,
        _ if items.contains(&word) => rest,
        _ => return None,
    };
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    (end > 0).then(|| ItemHead { name: &name[..end], is_function: word == "fn" })
}

/// Path of the item that line `target` belongs to or begins, with the enclosing items.
fn item_at(lines: &[&str], target: usize) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut names = Vec::new();
    let mut depth = indent(lines[target]);
    if let Some(own) = item_head(lines[target]) {
        names.push(own.name);
    }
    for line in lines[..target].iter().rev() {
        if depth == 0 {
            break;
        }
        // An item that ends on its line encloses nothing.
        let is_whole = line.ends_with([';', '}']) || line.trim_start().starts_with("//");
        if indent(line) < depth && line.ends_with("! {") {
            // The items in a macro's braces belong to what the macro stands in.
            depth = indent(line);
        } else if indent(line) < depth
            && !is_whole
            && let Some(outer) = item_head(line)
        {
            names.push(outer.name);
            depth = indent(line);
        }
    }
    names.reverse();
    if names.is_empty() { "file".to_owned() } else { names.join("::") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scans a source in which `@` stands for the start of a tag, so that this file contains no
    /// tag.
    fn scan(source: &str) -> Tags {
        let mut tags = Tags::default();
        tags.scan_file("a.rs", &source.replace('@', "// req"));
        tags
    }

    #[test]
    fn tags_name_the_item_they_are_in() {
        let source = "\
@: MPA-001
const X: u8 = 1;

impl<T: Copy> Pair<T> {
    /// Says.
    @: DDP-002, DDP-003
    #[must_use]
    pub const fn say(
        &self,
    ) -> u8 {
        if self.a {
            @: RDMAP-004
            return 1;
        }
    }
}

impl Clone for Other {
    fn clone(&self) {
        @: MPA-005
        x(
    }
}

mod tests {
    fn helper() {
    }

    proptest! {
        @-test: MPA-006
        #[test]
        fn holds(a: u8) {}
    }
}
";
        let tags = scan(source);
        assert_eq!(tags.errors, [""; 0]);
        let seen: Vec<_> =
            tags.tags.iter().map(|tag| (tag.ids.join(" "), tag.item.as_str())).collect();
        let expected = [
            ("MPA-001", "X"),
            ("DDP-002 DDP-003", "Pair::say"),
            ("RDMAP-004", "Pair::say"),
            ("MPA-005", "Other::clone"),
            ("MPA-006", "tests::holds"),
        ];
        assert_eq!(seen, expected.map(|(ids, item)| (ids.to_owned(), item)));
        assert_eq!((tags.tags[4].kind, tags.tags[1].line), (Kind::Test, 7));
    }

    #[test]
    fn malformed_tags_are_reported() {
        for source in [
            "let x = 1; @: MPA-001\n",
            "@: MPA-001 (in part)\nlet x = 1;\n",
            "@: MPA-001,MPA-002\nlet x = 1;\n",
            "@: MPA-1\nlet x = 1;\n",
            "@: MPA-001\n\nlet x = 1;\n",
            "@: MPA-001\n",
            "@-test: MPA-001\nlet x = 1;\n",
            "/@: MPA-001\nlet x = 1;\n",
        ] {
            let tags = scan(source);
            assert_eq!((tags.tags.len(), tags.errors.len()), (0, 1), "{source}");
        }
        assert_eq!(scan("let prereq: u8 = 1; // the req: none\n").errors, [""; 0]);
    }
}
