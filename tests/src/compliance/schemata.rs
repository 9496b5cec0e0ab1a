//! Mutant schemata: many mutants in one build. Each mutated function gets one body for each mutant;
//! an environment variable selects the active mutant when the process starts.
//!
//! Building takes the time, not running a test. So all mutants of a function become arms of a
//! `match`; the last arm is the original function. Mutants outside of functions, or in code
//! evaluated by the compiler, cannot be selected at run time: they are built one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::mutate::{Mutant, mask};
use super::scan;

/// Environment variable with the number of the active mutant.
pub const ACTIVE_MUTANT_ENV: &str = "FERROWARP_MUTANT";

/// Code to append to a crate with inactive mutants.
pub const PRELUDE: &str = "
/// Selection of the mutant that is awake.
pub mod mutants {
    /// Its number; 0 for none.
    #[inline(never)]
    pub fn awake() -> u32 {
        static NUMBER: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
        *NUMBER.get_or_init(|| {
            let selected = std::env::var(\"FERROWARP_MUTANT\").ok();
            selected.and_then(|text| text.parse().ok()).unwrap_or(0)
        })
    }
}
";

/// A source with inactive mutants.
#[derive(Debug, Default)]
pub struct MetaMutant {
    /// The source.
    pub text: String,
    /// Line ranges of the mutants.
    line_ranges: Vec<(Range<usize>, u32)>,
    /// Mutants that cannot be selected at run time.
    pub standalone: Vec<u32>,
}

impl MetaMutant {
    /// Embeds numbered mutants of `source` into it.
    #[must_use]
    pub fn new(source: &str, mutants: &[(u32, &Mutant)]) -> Self {
        let lines: Vec<_> = source.lines().collect();
        let masked: Vec<_> = lines.iter().map(|line| mask(line)).collect();
        let mut switched = Self::default();
        let mut bodies: BTreeMap<(usize, usize), Vec<(u32, &Mutant)>> = BTreeMap::new();
        for &(number, mutant) in mutants {
            match enclosing_body(&lines, &masked, mutant) {
                Some(body) if is_balanced(mutant, &masked) => {
                    bodies.entry((body.start, body.end)).or_default().push((number, mutant));
                }
                _ => switched.standalone.push(number),
            }
        }
        let mut out: Vec<&str> = Vec::new();
        let mut heads = Vec::new();
        for mutants in bodies.values() {
            heads.extend(mutants.iter().map(|(number, _)| format!("{number} => {{")));
        }
        let mut heads = heads.iter();
        let mut at = 0;
        for (&(start, end), mutants) in &bodies {
            out.extend(&lines[at..start]);
            out.push("match crate::mutants::awake() {");
            for (number, mutant) in mutants {
                let first = out.len();
                out.extend(heads.next().map(String::as_str));
                out.extend(&lines[start..mutant.start]);
                out.extend(mutant.replacement.lines());
                out.extend(&lines[mutant.end..end]);
                out.push("}");
                switched.line_ranges.push((first..out.len(), *number));
            }
            out.push("_ => {");
            out.extend(&lines[start..end]);
            out.extend(["}", "}"]);
            at = end;
        }
        out.extend(&lines[at..]);
        switched.text = out.join("\n") + "\n";
        switched
    }

    /// Returns the mutant that a line belongs to; lines count from zero.
    #[must_use]
    pub fn mutant_at(&self, line: usize) -> Option<u32> {
        self.line_ranges.iter().find(|(lines, _)| lines.contains(&line)).map(|&(_, number)| number)
    }
}

/// Removes `const` from all functions of `source` except those `kept`, so that they are evaluated
/// at run time.
#[must_use]
pub fn without_const(source: &str, kept: &BTreeSet<String>) -> String {
    let mut text = String::with_capacity(source.len());
    for line in source.lines() {
        let keeps = scan::item_head(line)
            .is_none_or(|heading| !heading.is_function || kept.contains(heading.name));
        let line = if keeps { line.to_owned() } else { line.replacen("const fn ", "fn ", 1) };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Lines of the body of the outermost function around a mutant; `None` if that function cannot have
/// several bodies.
fn enclosing_body(lines: &[&str], masked: &[String], mutant: &Mutant) -> Option<Range<usize>> {
    let indent = |index: usize| lines[index].len() - lines[index].trim_start().len();
    let mut found = None;
    let mut depth = usize::MAX;
    for index in (0..mutant.start).rev() {
        if lines[index].is_empty() || indent(index) >= depth {
            continue;
        }
        let Some(heading) = scan::item_head(&masked[index]) else { continue };
        if heading.is_function {
            let head_end = (index..lines.len()).find(|&end| masked[end].ends_with('{'))? + 1;
            let end = (head_end..lines.len())
                .find(|&end| indent(end) == indent(index) && masked[end].trim() == "}")?;
            let head = masked[index..head_end].join(" ");
            let is_plain = !head.contains("const fn ") && !head.contains("-> impl ");
            if head_end <= mutant.start && mutant.end <= end {
                found = is_plain.then_some(head_end..end);
            }
        }
        depth = indent(index);
        if depth == 0 {
            break;
        }
    }
    found
}

/// True if the mutant leaves the bracket depths as they were, so that the code around it still
/// parses.
fn is_balanced(mutant: &Mutant, masked: &[String]) -> bool {
    let depths = |lines: &mut dyn Iterator<Item = String>| {
        let mut depths = [0i32; 3];
        for line in lines {
            for byte in line.bytes() {
                match byte {
                    b'(' => depths[0] += 1,
                    b')' => depths[0] -= 1,
                    b'[' => depths[1] += 1,
                    b']' => depths[1] -= 1,
                    b'{' => depths[2] += 1,
                    b'}' => depths[2] -= 1,
                    _ => {}
                }
            }
        }
        depths
    };
    let before = depths(&mut masked[mutant.start..mutant.end].iter().cloned());
    before == depths(&mut mutant.replacement.lines().map(mask))
}

#[cfg(test)]
mod tests {
    use super::super::mutate::mutants;
    use super::*;

    const SOURCE: &str = "\
const A: u8 = 1;
impl X {
    pub const fn f(
        &self,
    ) -> bool {
        if self.a < 2 {
            self.b()
        } else {
            false
        }
    }

    fn g(&self) {}
}
";

    #[test]
    fn mutants_become_match_arms() {
        let source = without_const(SOURCE, &BTreeSet::new());
        assert!(source.contains("    pub fn f(\n") && source.starts_with("const A: u8 = 1;\n"));
        let made = mutants(&source, 5);
        let outside = mutants(&source, 0);
        let numbered = [(7, &made[0]), (8, &made[3]), (9, &outside[0])];
        let switched = MetaMutant::new(&source, &numbered);
        assert_eq!(switched.standalone, [9]);
        let lines: Vec<_> = switched.text.lines().collect();
        assert_eq!(
            lines[5..8],
            ["match crate::mutants::awake() {", "7 => {", "        if !(self.a < 2) {"]
        );
        assert_eq!(lines[14], "        if self.a <= 2 {");
        let whose = [5, 6, 12, 13, 19, 20].map(|line| switched.mutant_at(line));
        assert_eq!(whose, [None, Some(7), Some(7), Some(8), Some(8), None]);
        // The original function comes last.
        assert_eq!(lines[20..22], ["_ => {", "        if self.a < 2 {"]);
        assert!(switched.text.ends_with("}\n}\n    }\n\n    fn g(&self) {}\n}\n"));
    }

    #[test]
    fn const_mutants_are_built_standalone() {
        let made = mutants(SOURCE, 5);
        assert_eq!(MetaMutant::new(SOURCE, &[(1, &made[0])]).standalone, [1]);
        let kept = BTreeSet::from(["f".to_owned()]);
        assert_eq!(without_const(SOURCE, &kept), SOURCE);
    }
}
