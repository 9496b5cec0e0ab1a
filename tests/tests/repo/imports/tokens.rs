//! Tokens of Rust source.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// Splits source text into names, `::` and single characters; without comments, literals (each a
/// `0`) and lifetimes.
pub(super) fn tokens(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    flatten(text.parse().expect("Rust source"), &mut out);
    out
}

fn flatten(stream: TokenStream, out: &mut Vec<String>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Ident(name) => {
                let name = name.to_string();
                out.push(name.trim_start_matches("r#").to_owned());
            }
            TokenTree::Literal(_) => out.push("0".to_owned()),
            TokenTree::Punct(mark) if mark.as_char() == '\'' => drop(trees.next()),
            TokenTree::Punct(mark) => {
                let is_path = (mark.as_char(), mark.spacing()) == (':', Spacing::Joint)
                    && trees.next_if(|next| next.to_string() == ":").is_some();
                out.push(if is_path { "::".to_owned() } else { mark.to_string() });
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                out.push(open.to_owned());
                flatten(group.stream(), out);
                out.push(close.to_owned());
            }
        }
    }
}
