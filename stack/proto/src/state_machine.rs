//! Snapshot and drawing of a state machine, from its transition function: a section of the page
//! `docs/state-machines.md`.

use core::fmt::{Debug, Write as _};
use std::sync::{Mutex, PoisonError};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/state-machines.md");

/// Writer of the page: tests of several machines run side by side.
static PAGE_LOCK: Mutex<()> = Mutex::new(());

/// State machine, or the part of one that begins in `states`.
pub(crate) struct Machine<'a, S, E> {
    /// Heading of its section.
    pub(crate) title: &'a str,
    /// States in which it is created.
    pub(crate) initial: &'a [S],
    pub(crate) states: &'a [S],
    pub(crate) events: &'a [E],
    /// Next state, or `None` if the event does not apply.
    pub(crate) after: fn(S, E) -> Option<S>,
}

impl<S: Copy + Debug + PartialEq, E: Copy + Debug> Machine<'_, S, E> {
    /// Checks that the section shows this machine; with `FERROWARP_UPDATE=1` rewrites it. Text
    /// between the heading and the drawing stays.
    ///
    /// # Panics
    /// If the page differs, or a state cannot be reached.
    #[track_caller]
    pub(crate) fn check(&self) {
        self.check_reachability();
        let _guard = PAGE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let page = std::fs::read_to_string(PAGE).unwrap();
        let heading = format!("\n## {}\n", self.title);
        let section = page.find(&heading).expect("the page has a section for each machine") + 1;
        let end = page[section..].find("\n## ").map_or(page.len(), |len| section + len);
        let start = page[section..end].find("```").map_or(end, |len| section + len);
        let expected = self.render();
        if std::env::var_os("FERROWARP_UPDATE").is_some_and(|value| value == "1") {
            let page = [&page[..start], &expected, &page[end..]].concat();
            std::fs::write(PAGE, page).unwrap();
        } else {
            let hint = "docs/state-machines.md is stale: FERROWARP_UPDATE=1 rewrites it";
            assert_eq!(&page[start..end], expected, "{}: {hint}", self.title);
        }
    }

    /// Renders a drawing for Mermaid, and the table of states by events.
    fn render(&self) -> String {
        let mut text = "```mermaid\nstateDiagram-v2\n".to_owned();
        for state in self.initial {
            writeln!(text, "    [*] --> {state:?}").unwrap();
        }
        for &from in self.states {
            let mut arrows: Vec<(S, String)> = Vec::new();
            for &event in self.events {
                let Some(next) = (self.after)(from, event) else { continue };
                match arrows.iter_mut().find(|(to, _)| *to == next) {
                    Some((_, label)) => write!(label, ", {event:?}").unwrap(),
                    None => arrows.push((next, format!("{event:?}"))),
                }
            }
            for (to, label) in arrows {
                writeln!(text, "    {from:?} --> {to:?}: {label}").unwrap();
            }
        }
        text += "```\n\n| State |";
        for event in self.events {
            write!(text, " {event:?} |").unwrap();
        }
        writeln!(text, "\n|---{}|", "|---".repeat(self.events.len())).unwrap();
        for &from in self.states {
            write!(text, "| {from:?} |").unwrap();
            for &event in self.events {
                match (self.after)(from, event) {
                    Some(next) => write!(text, " {next:?} |").unwrap(),
                    None => text += " |",
                }
            }
            text.push('\n');
        }
        text
    }

    #[track_caller]
    fn check_reachability(&self) {
        let mut reached = self.initial.to_vec();
        let mut next = 0;
        while let Some(&from) = reached.get(next) {
            next += 1;
            for &event in self.events {
                let to = (self.after)(from, event).filter(|to| !reached.contains(to));
                reached.extend(to);
            }
        }
        for state in self.states {
            assert!(reached.contains(state), "{}: {state:?} cannot be reached", self.title);
        }
    }
}
