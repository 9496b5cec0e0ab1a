//! Mutants of tagged code, made by rules on the text of its lines.
//!
//! Sources are formatted: operators stand between spaces, and a statement ends where its brackets
//! do. Many mutants do not compile; the caller then tries the next one.

use std::ops::Range;

use super::scan;
use text::another_number;
pub(super) use text::mask;

mod text;

/// Operators and words, with their replacements.
const SWAPS: [(&str, &str); 38] = [
    (" == ", " != "),
    (" != ", " == "),
    (" < ", " <= "),
    (" <= ", " < "),
    (" > ", " >= "),
    (" >= ", " > "),
    (" < ", " > "),
    (" > ", " < "),
    (" && ", " || "),
    (" || ", " && "),
    (" + ", " - "),
    (" - ", " + "),
    (" += ", " -= "),
    (" -= ", " += "),
    (" * ", " + "),
    (" % ", " + "),
    (" & ", " | "),
    (" | ", " & "),
    (" ^ ", " & "),
    (" << ", " >> "),
    (" >> ", " << "),
    (" |= ", " &= "),
    ("..=", ".."),
    ("true", "false"),
    ("false", "true"),
    ("to_be_bytes", "to_le_bytes"),
    ("to_le_bytes", "to_be_bytes"),
    ("from_be_bytes", "from_le_bytes"),
    ("from_le_bytes", "from_be_bytes"),
    ("push_back", "push_front"),
    ("pop_front", "pop_back"),
    (".min(", ".max("),
    (".max(", ".min("),
    ("is_some()", "is_none()"),
    ("is_none()", "is_some()"),
    ("TAGGED_LEN", "0"),
    ("saturating_sub", "saturating_add"),
    ("wrapping_add", "wrapping_sub"),
];

/// Maximum body length in lines of a tagged function for which each line is mutated. A longer
/// function does more than implement one rule: it is mutated as a whole, and line by line only as a
/// fallback.
const BODY_LINES_MAX: usize = 4;
/// Body length in lines beyond which a tag is too far from the code that implements the rule.
const FALLBACK_LINES_MAX: usize = 30;

/// Default value of many types.
const DEFAULT: &str = "Default::default()";

/// One change of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutant {
    /// Index of the first line that is replaced, from zero.
    pub start: usize,
    /// Index of the first line after these.
    pub end: usize,
    /// The text that replaces them.
    pub replacement: String,
    /// Description: the original lines and the change.
    pub description: String,
    /// The mutant may be equivalent, or may not affect the tagged rule: to be tried only if no
    /// other mutant of the rule compiles.
    pub is_fallback: bool,
}

impl Mutant {
    /// Returns the whole mutated source.
    #[must_use]
    pub fn text(&self, source: &str) -> String {
        let lines: Vec<_> = source.lines().collect();
        let mut broken: Vec<&str> = lines[..self.start].to_vec();
        broken.extend(self.replacement.lines());
        broken.extend(&lines[self.end..]);
        broken.join("\n") + "\n"
    }
}

/// Returns all mutants of the item or statement at line `target` of `text`, in order of lines.
#[must_use]
pub fn mutants(text: &str, target: usize) -> Vec<Mutant> {
    let mut bench = MutantBuilder::new(text);
    if target >= bench.lines.len() {
        return Vec::new();
    }
    let region = bench.region(target);
    let first = bench.masked[target].trim_start().to_owned();
    let heading = scan::item_head(&first);
    if heading.is_some_and(|heading| heading.is_function) {
        let body = bench.body(&region);
        bench.replace_body(&region, &body);
        if body.len() <= FALLBACK_LINES_MAX {
            bench.is_fallback = body.len() > BODY_LINES_MAX;
            for line in body {
                bench.swap_words(line);
                bench.change_numbers(line);
                bench.negate_condition(&(line..line + 1));
            }
        }
    } else if first.contains("struct ") && first.ends_with('{') {
        // Only in wire formats does the order of fields matter.
        if bench.is_wire(target) {
            bench.swap_fields(&region);
        }
    } else {
        bench.negate_condition(&region);
        bench.delete_statement(&region);
        bench.invert_value(&region);
        for line in region {
            bench.swap_words(line);
            bench.change_numbers(line);
            bench.change_field(line);
            bench.disable_arm(line);
        }
    }
    bench.found
}

/// A source, and its mutants so far.
struct MutantBuilder<'a> {
    lines: Vec<&'a str>,
    /// The same lines without strings and comments, with equal byte offsets.
    masked: Vec<String>,
    found: Vec<Mutant>,
    /// Mutants added now are fallbacks.
    is_fallback: bool,
}

impl<'a> MutantBuilder<'a> {
    fn new(text: &'a str) -> Self {
        let lines: Vec<_> = text.lines().collect();
        let masked = lines.iter().map(|line| mask(line)).collect();
        Self { lines, masked, found: Vec::new(), is_fallback: false }
    }

    /// Lines of the item or statement at `target`: the head of a block, else up to the last
    /// bracket.
    fn region(&self, target: usize) -> Range<usize> {
        let first = self.masked[target].trim_start();
        let is_block = ["if ", "} else if ", "match ", "while ", "for ", "loop "]
            .iter()
            .any(|word| first.starts_with(word))
            || scan::item_head(first).is_some_and(|heading| heading.is_function);
        let mut depth = 0i32;
        for (index, line) in self.masked.iter().enumerate().skip(target) {
            for byte in line.bytes() {
                depth += match byte {
                    b'(' | b'[' | b'{' => 1,
                    b')' | b']' | b'}' => -1,
                    _ => 0,
                };
            }
            let ends_head = is_block && line.ends_with('{');
            if ends_head || (!is_block && depth <= 0 && !self.continues_after(index)) {
                return target..index + 1;
            }
        }
        target..target + 1
    }

    /// True if the line after `index` continues the same statement.
    fn continues_after(&self, index: usize) -> bool {
        let next = self.masked.get(index + 1).map_or("", |line| line.trim_start());
        let line = self.masked[index].trim_end();
        let ends = line.ends_with([';', ',', '}', '{']);
        line.ends_with(" =") || !ends && (next.starts_with(['.', '?', '+', '-', '&', '|', '=']))
    }

    /// Lines of the body of a function whose head is `head`.
    fn body(&self, head: &Range<usize>) -> Range<usize> {
        let indent = |line: &str| line.len() - line.trim_start().len();
        let depth = indent(self.lines[head.start]);
        let end = (head.end..self.lines.len())
            .find(|&index| {
                indent(self.lines[index]) == depth && self.lines[index].trim_start() == "}"
            })
            .unwrap_or(head.end);
        head.end..end
    }

    fn add(&mut self, range: Range<usize>, with: &str, what: &str) {
        let before = self.lines[range.clone()].iter().map(|line| line.trim());
        let before = before.collect::<Vec<_>>().join(" ");
        let is_known = |mutant: &Mutant| {
            (mutant.start..mutant.end) == range && mutant.replacement.lines().eq(with.lines())
        };
        if self.lines[range.clone()].iter().copied().eq(with.lines())
            || self.found.iter().any(is_known)
        {
            return;
        }
        let what = format!("{before}  =>  {what}");
        let Range { start, end } = range;
        let (with, spare) = (with.to_owned(), self.is_fallback);
        self.found.push(Mutant {
            start,
            end,
            replacement: with,
            description: what,
            is_fallback: spare,
        });
    }

    fn replace_line(&mut self, line: usize, with: &str) {
        self.add(line..line + 1, with, with.trim());
    }

    fn swap_words(&mut self, line: usize) {
        for (word, other) in SWAPS {
            let places: Vec<_> = self.masked[line].match_indices(word).map(|(at, _)| at).collect();
            for at in places {
                let (before, after) = (&self.lines[line][..at], &self.lines[line][at..]);
                let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                let is_part = word.starts_with(char::is_alphabetic)
                    && (inside(before.chars().last())
                        || inside(after[word.len()..].chars().next()));
                if !is_part {
                    let with = format!("{before}{other}{}", &after[word.len()..]);
                    self.replace_line(line, &with);
                }
            }
        }
    }

    /// Increments each decimal number, and flips the lowest bit of each hexadecimal one.
    fn change_numbers(&mut self, line: usize) {
        let masked = self.masked[line].clone();
        let bytes = masked.as_bytes();
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let mut at = 0;
        while at < bytes.len() {
            let start = at;
            while at < bytes.len() && is_word(bytes[at]) {
                at += 1;
            }
            let word = &masked[start..at];
            // A fallback for a value that is always present.
            let is_spare = masked[..start].ends_with("unwrap_or(");
            let is_field =
                start > 0 && bytes[start - 1] == b'.' && !masked[..start].ends_with("..");
            if let Some(with) = (!is_field && !is_spare).then(|| another_number(word)).flatten() {
                let text = self.lines[line];
                let with = format!("{}{with}{}", &text[..start], &text[at..]);
                self.replace_line(line, &with);
            }
            at = at.max(start + 1);
        }
    }

    /// Negates a condition, or makes it constant.
    fn negate_condition(&mut self, head: &Range<usize>) {
        let first = self.masked[head.start].clone();
        let last = self.masked[head.end - 1].clone();
        let Some(at) = first.find("if ").filter(|_| last.ends_with('{')) else { return };
        let is_head =
            ["if ", "} else if ", "let "].iter().any(|w| first.trim_start().starts_with(w));
        if !is_head || first[at..].starts_with("if let ") {
            return;
        }
        for (open, close) in [("!(", ")"), ("false && (", ")"), ("true || (", ")")] {
            let mut lines: Vec<_> =
                self.lines[head.clone()].iter().map(|line| (*line).to_owned()).collect();
            lines[0].insert_str(at + "if ".len(), open);
            let end = lines.len() - 1;
            let brace = lines[end].rfind('{').unwrap_or(lines[end].len());
            let brace =
                if lines[end][..brace].ends_with(' ') && end == 0 { brace - 1 } else { brace };
            lines[end].insert_str(brace, close);
            let what = format!("{open}condition{close}");
            self.add(head.clone(), &lines.join("\n"), &what);
        }
    }

    /// Deletes a statement.
    fn delete_statement(&mut self, region: &Range<usize>) {
        let first = self.masked[region.start].trim_start().to_owned();
        let last = self.masked[region.end - 1].trim_end();
        let binds = ["let ", "use ", "const ", "static ", "pub ", "type "];
        if last.ends_with(';') && !binds.iter().any(|word| first.starts_with(word)) {
            self.add(region.clone(), "", "left out");
        }
    }

    /// Inverts the value of a binding or of a final expression bit by bit.
    fn invert_value(&mut self, region: &Range<usize>) {
        let first = &self.masked[region.start];
        let last = self.masked[region.end - 1].trim_end();
        let (at, is_binding) = if first.trim_start().starts_with("let ") {
            let Some(at) = first.find(" = ") else { return };
            (at + " = ".len(), true)
        } else {
            (first.len() - first.trim_start().len(), false)
        };
        let end =
            if is_binding { last.len() - usize::from(last.ends_with(';')) } else { last.len() };
        let is_whole =
            if is_binding { last.ends_with(';') } else { !last.ends_with([';', ',', '{']) };
        if !is_whole {
            return;
        }
        let mut lines: Vec<_> =
            self.lines[region.clone()].iter().map(|line| (*line).to_owned()).collect();
        let index = lines.len() - 1;
        lines[index].insert(end, ')');
        lines[0].insert_str(at, "!(");
        self.add(region.clone(), &lines.join("\n"), "!(value)");
    }

    /// Changes the value of a field.
    fn change_field(&mut self, line: usize) {
        let masked = self.masked[line].clone();
        let indent = &self.lines[line][..masked.len() - masked.trim_start().len()];
        let Some(content) = self.lines[line].trim_start().strip_suffix(',') else { return };
        let is_name = |name: &str| {
            !name.starts_with(|c: char| c.is_ascii_digit())
                && !name.is_empty()
                && name.bytes().all(|o| o.is_ascii_lowercase() || o == b'_' || o.is_ascii_digit())
        };
        let (name, value) = content.split_once(": ").unwrap_or((content, content));
        if !is_name(name) || masked.contains(" => ") {
            return;
        }
        let spare = self.is_fallback;
        for (with, may_be_the_same) in [(format!("!({value})"), false), (DEFAULT.to_owned(), true)]
        {
            self.is_fallback = spare || may_be_the_same;
            self.replace_line(line, &format!("{indent}{name}: {with},"));
        }
        self.is_fallback = spare;
    }

    /// Disables a match arm.
    fn disable_arm(&mut self, line: usize) {
        let masked = self.masked[line].clone();
        if let Some(at) = masked.find(" => ").filter(|&at| !masked[..at].contains(" if ")) {
            let text = self.lines[line];
            self.replace_line(line, &format!("{} if false{}", &text[..at], &text[at..]));
        }
    }

    /// True if the structure at line `target` has the layout of the wire format.
    fn is_wire(&self, target: usize) -> bool {
        let above = self.lines[..target].iter().rev().map(|line| line.trim_start());
        above.take_while(|line| line.starts_with(['#', '/'])).any(|line| line.contains("repr(C"))
    }

    /// Swaps adjacent fields of the same type.
    fn swap_fields(&mut self, region: &Range<usize>) {
        let fields: Vec<_> = region
            .clone()
            .filter(|&line| self.masked[line].trim_end().ends_with(','))
            .filter(|&line| self.masked[line].contains(": "))
            .collect();
        let kinds: Vec<_> = fields
            .iter()
            .map(|&line| self.masked[line].split_once(": ").map(|(_, kind)| kind.to_owned()))
            .collect();
        for (pair, kinds) in fields.windows(2).zip(kinds.windows(2)) {
            let (a, b) = (pair[0], pair[1]);
            if kinds[0] == kinds[1] {
                let mut lines = self.lines[a..=b].to_vec();
                let last = lines.len() - 1;
                lines.swap(0, last);
                let with = lines.join("\n");
                self.add(a..b + 1, &with, "changed places");
            }
        }
    }

    /// Replaces the body of a function by a constant.
    fn replace_body(&mut self, head: &Range<usize>, body: &Range<usize>) {
        let signature = self.masked[head.clone()].join(" ");
        let kind = signature.rsplit_once(" -> ").map_or("", |(_, kind)| kind);
        let kind = kind.trim_end_matches('{').split(" where").next().unwrap_or_default().trim();
        let values: &[&str] = match kind {
            "" => &[""],
            "bool" => &["true", "false"],
            _ if kind.starts_with("Option<") => &["None"],
            _ if kind.starts_with("Result<Option<") => &["Ok(None)"],
            _ if kind.starts_with("Result<") => &["Ok(Default::default())"],
            _ if kind.starts_with(['u', 'i']) => &["0", "1"],
            _ => &["Default::default()"],
        };
        for value in values {
            let at = body.start..body.end;
            self.add(at, value, &format!("nothing but {{ {value} }}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptions(text: &str, target: usize) -> Vec<String> {
        let made = mutants(text, target);
        for mutant in &made {
            assert_ne!(mutant.text(text), text);
            assert!(mutant.text(text).ends_with('\n'));
        }
        made.into_iter()
            .map(|mutant| mutant.description.split_once("  =>  ").unwrap().1.to_owned())
            .collect()
    }

    #[test]
    fn conditions_are_negated() {
        let text = "fn f() {\n    if a < 2 {\n        g(\"<\"); // <\n    }\n}\n";
        let expected = [
            "!(condition)",
            "false && (condition)",
            "true || (condition)",
            "if a <= 2 {",
            "if a > 2 {",
            "if a < 3 {",
        ];
        assert_eq!(descriptions(text, 1), expected);
        assert!(mutants(text, 1)[0].text(text).contains("    if !(a < 2) {\n"));
    }

    #[test]
    fn statements_are_deleted_or_changed() {
        let text = "fn f() {\n    self.x(\n        0x80,\n    );\n    h();\n}\n";
        let found = descriptions(text, 1);
        assert_eq!(found, ["left out", "0x81,"]);
        assert_eq!(mutants(text, 1)[0].text(text), "fn f() {\n    h();\n}\n");
        let text = "fn f() {\n    let x = a\n        .b();\n    x\n}\n";
        assert_eq!(descriptions(text, 1), ["!(value)"]);
        assert!(mutants(text, 1)[0].text(text).contains("let x = !(a\n        .b());"));
    }

    #[test]
    fn functions_and_structs_are_mutated_whole() {
        let text = "impl A {\n    fn f(&self) -> bool {\n        self.a\n    }\n}\n";
        assert_eq!(descriptions(text, 1), ["nothing but { true }", "nothing but { false }"]);
        let text = "#[repr(C)]\nstruct A {\n    a: u32,\n    b: u32,\n    c: u8,\n}\n";
        assert_eq!(descriptions(text, 1), ["changed places"]);
        assert!(mutants(text, 1)[0].text(text).contains("struct A {\n    b: u32,\n    a: u32,\n"));
        assert_eq!(mutants(&text[11..], 0), []);
        assert_eq!(descriptions("const A: u8 = 7;\n", 0), ["const A: u8 = 8;"]);
    }

    #[test]
    fn fields_and_match_arms_are_mutated() {
        let text = "f(\n    A {\n        msn: self.msn.0,\n        last,\n    }\n)\n";
        let found = descriptions(text, 2);
        assert_eq!(found, ["msn: !(self.msn.0),", "msn: Default::default(),"]);
        let found = descriptions(text, 3);
        assert_eq!(found, ["last: !(last),", "last: Default::default(),"]);
        let text = "match a {\n    A::B => 3,\n    _ => 4,\n}\n";
        assert_eq!(descriptions(text, 1), ["A::B => 4,", "A::B if false => 3,"]);
    }
}
