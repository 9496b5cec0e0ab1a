//! Reasons of a peer for a failure: bounded, and escaped for a terminal.

/// Longest reason of a peer that is shown, in characters.
const SHOWN_MAX: usize = 200;

/// Returns a text with everything escaped that cannot be printed: control characters, and those
/// that change the direction or the width of others.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '\'' | '"' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out
}

/// Returns a peer's reason for a failure, for a terminal.
#[must_use]
pub fn shown_reason(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => escaped(&text[..end]) + "...",
        None => escaped(&text),
    }
}

/// Returns the beginning of a reason that fits into `most` bytes, to be sent to a peer.
#[must_use]
pub fn bounded(reason: &str, most: usize) -> &str {
    let mut end = reason.len().min(most);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_of_a_hostile_peer_is_escaped_and_bounded() {
        assert_eq!(shown_reason(b"busy\x1b[2J\n\xff"), "busy\\u{1b}[2J\\n\u{fffd}");
        // Right-to-left override, zero-width space, a C1 control character.
        assert_eq!(escaped("a\u{202e}b\u{200b}\u{9b}"), "a\\u{202e}b\\u{200b}\\u{9b}");
        assert_eq!(escaped(r#"it's "C:\" – ü"#), r#"it's "C:\" – ü"#);
        let long = shown_reason(&[b'x'; 512]);
        assert_eq!(long, "x".repeat(200) + "...");
        assert!(shown_reason(&[0; 512]).len() < 1000);
    }

    #[test]
    fn sent_reason_is_cut_between_characters() {
        assert_eq!(bounded("über", 1), "");
        assert_eq!(bounded("über", 2), "ü");
        assert_eq!(bounded("über", 99), "über");
    }
}
