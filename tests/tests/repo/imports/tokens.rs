//! Tokens of Rust source.

/// Splits source text into names, `::` and single characters; without comments, literals (each a
/// `0`) and lifetimes.
pub(super) fn tokens(text: &str) -> Vec<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word_len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(word_len);
        let is_raw = ["r", "br", "cr"].contains(&word);
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if rest.starts_with("/*") {
            rest = behind_comment(rest);
        } else if is_raw && behind.trim_start_matches('#').starts_with('"') {
            let marks = behind.len() - behind.trim_start_matches('#').len();
            let close = format!("\"{}", "#".repeat(marks));
            let inside = &behind[marks + 1..];
            rest = inside.find(&close).map_or("", |end| &inside[end + close.len()..]);
            out.push("0".to_owned());
        } else if word == "r" && behind.starts_with('#') {
            // A raw name.
            rest = &behind[1..];
        } else if word.is_empty() && first == '"'
            || ["b", "c"].contains(&word) && behind.starts_with('"')
        {
            rest = behind_quoted(&behind[1..], '"');
            out.push("0".to_owned());
        } else if first == '\'' || word == "b" && behind.starts_with('\'') {
            let inside = &behind[1..];
            let mut chars = inside.chars();
            let is_char = chars.next() == Some('\\') || chars.next() == Some('\'');
            if is_char {
                rest = behind_quoted(inside, '\'');
                out.push("0".to_owned());
            } else {
                rest = inside.trim_start_matches(is_word);
            }
        } else if first.is_ascii_digit() {
            rest = behind;
            out.push("0".to_owned());
        } else if !word.is_empty() {
            rest = behind;
            out.push(word.to_owned());
        } else if rest.starts_with("::") {
            rest = &rest[2..];
            out.push("::".to_owned());
        } else {
            rest = &rest[first.len_utf8()..];
            if !first.is_whitespace() {
                out.push(first.to_string());
            }
        }
    }
    out
}

/// Text behind the quotation mark that ends a literal.
fn behind_quoted(inside: &str, mark: char) -> &str {
    let mut chars = inside.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == mark {
            return &inside[at + 1..];
        }
    }
    ""
}

/// Text behind a block comment, which may hold others.
fn behind_comment(text: &str) -> &str {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
        if depth == 0 {
            return &text[at..];
        }
    }
    ""
}
