//! Small made-up crates.

use std::collections::{BTreeMap, BTreeSet};

use super::{cycles, edges};

/// Edges of a crate with these files, as `from -> to: names`.
fn graph(files: &[(&str, &str)]) -> Vec<String> {
    let files: BTreeMap<_, _> =
        files.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
    let line = |((from, to), names): (&(String, String), &BTreeSet<String>)| {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        format!("{from} -> {to}: {}", names.join(" "))
    };
    edges(&files, "made_up").iter().map(line).collect()
}

fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
    let files: BTreeMap<_, _> =
        files.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
    cycles(&edges(&files, "made_up"))
}

#[test]
fn cycle_is_found_with_its_files_and_names() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "use crate::c::{C, c as d}; pub struct B(C); fn f() { d() }"),
        ("c.rs", "pub struct C; pub fn c() -> crate::a::A { loop {} }"),
        ("d.rs", "use crate::a::A; pub struct D(A);"),
    ];
    let expected = "3 files import each other\n  a.rs -> b.rs: B\n  b.rs -> c.rs: C, c\n  \
                    c.rs -> a.rs: A\n";
    assert_eq!(cycles_of(&files), [expected]);
    let files = files.map(|(name, text)| (name, text.replace("crate::a::A", "u8")));
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    assert_eq!(cycles_of(&files), [] as [&str; 0]);
}

#[test]
fn two_cycles_are_reported_apart() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::{b::B, c::C}; pub struct A;"),
        ("b.rs", "use crate::a::A; pub struct B;"),
        ("c.rs", "use crate::d::D; pub struct C;"),
        ("d.rs", "use crate::c::C; pub struct D;"),
    ];
    assert_eq!(cycles_of(&files).len(), 2);
}

#[test]
fn reexport_leads_to_the_defining_file() {
    let files = [
        ("lib.rs", "mod a; mod inner; pub use inner::{X as Y, *}; pub use a::A;"),
        ("a.rs", "use crate::{Y, inner::Deep, f}; pub struct A;"),
        ("inner/mod.rs", "mod x; mod deep; pub use self::deep::Deep; pub(crate) use x::*;"),
        ("inner/x.rs", "pub struct X; pub fn f() {}"),
        ("inner/deep.rs", "use super::X; pub enum Deep {}"),
    ];
    let expected = [
        "a.rs -> inner/deep.rs: Deep",
        "a.rs -> inner/x.rs: X f",
        "inner/deep.rs -> inner/x.rs: X",
    ];
    assert_eq!(graph(&files), expected);
}

#[test]
fn file_that_uses_what_it_hands_on_is_tied_to_it() {
    let files =
        [("lib.rs", "mod a; pub use a::A; pub struct Lib;"), ("a.rs", "pub struct A(crate::Lib);")];
    assert_eq!(graph(&files), ["a.rs -> lib.rs: Lib"]);
    let used = [("lib.rs", "mod a; pub use a::A; pub struct Lib(A);"), files[1]];
    assert_eq!(graph(&used), ["a.rs -> lib.rs: Lib", "lib.rs -> a.rs: A"]);
}

#[test]
fn test_modules_and_items_are_ignored() {
    let files = [
        ("lib.rs", "mod a; mod b; #[cfg(test)] mod helpers; #[cfg(any(test, fuzzing))] mod c;"),
        (
            "a.rs",
            "#[cfg(test)] use crate::b::B;\n\
             #[cfg(test)] mod tests { use crate::b::B; #[test] fn t() { B::new() } }\n\
             #[cfg(all(test, not(loom)))] fn f(x: crate::b::B, y: u8) { crate::b::g() }\n\
             #[test] fn t() { crate::b::g() }\n\
             pub struct A { #[cfg(test)] pub b: crate::b::B, pub c: u8 }",
        ),
        ("b.rs", "use crate::a::A; pub struct B; pub fn g() {}"),
        ("c.rs", "#[cfg(not(test))] use crate::b::B;"),
        ("helpers.rs", "use crate::a::A;"),
    ];
    assert_eq!(graph(&files), ["b.rs -> a.rs: A", "c.rs -> b.rs: B"]);
}

#[test]
fn paths_in_the_code_count_as_imports() {
    let files = [
        ("lib.rs", "mod a; mod b; mod both; #[macro_use] mod m; pub use both::both;"),
        (
            "a.rs",
            "use crate::b; use crate::both; fn f() { b::g(); both(); crate::mac!() }\n\
             mod inner { fn h(x: super::super::b::T) -> <u8 as super::b::Tr>::Out {} }",
        ),
        ("b.rs", "pub fn g() {} pub struct T; pub trait Tr {}"),
        ("both.rs", "pub fn both() {}"),
        ("m.rs", "#[macro_export] macro_rules! mac { () => {} }"),
    ];
    let expected = ["a.rs -> b.rs: T Tr g", "a.rs -> both.rs: both", "a.rs -> m.rs: mac"];
    assert_eq!(graph(&files), expected);
}

#[test]
fn all_names_of_a_module_are_those_used() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::*; fn f(x: &X) { x.g(); h(); let i = 0; }"),
        ("b.rs", "mod c; pub struct X; pub fn g() {} pub fn i() {} pub use c::h;"),
        ("b/c.rs", "pub fn h() {}"),
    ];
    assert_eq!(graph(&files), ["a.rs -> b.rs: X", "a.rs -> b/c.rs: h"]);
}

#[test]
fn comments_and_literals_name_nothing() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        (
            "a.rs",
            "// use crate::b::B;\n/* crate::b::B /* */ crate::b::B */\n/// [`crate::b::B`]\n\
             fn f<'a>(x: &'a str) {\n\
                 (\"crate::b::B \\\" \", r#\"crate::b::B\"#, b'\"', '\\'', '\"')\n\
             }",
        ),
        ("b.rs", "pub struct B;"),
    ];
    assert_eq!(graph(&files), [] as [&str; 0]);
}

#[test]
fn programs_import_the_library_by_its_name() {
    let files = [
        ("lib.rs", "pub mod a;"),
        ("a.rs", "pub fn run() {}"),
        ("bin/tool.rs", "mod options; fn main() { made_up::a::run(); std::a::run() }"),
        ("bin/options.rs", "use made_up::a; use clap::a::run as r; fn f() { a::run() }"),
    ];
    // `bin/options.rs` is taken for a program, too.
    assert_eq!(graph(&files), ["bin/options.rs -> a.rs: run", "bin/tool.rs -> a.rs: run"]);
}
