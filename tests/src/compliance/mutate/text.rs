//! Text operations for mutants: lines without strings and comments, changed numbers.

/// Returns a number different from `word`, if `word` is a number.
pub(super) fn another_number(word: &str) -> Option<String> {
    let digits = word.replace('_', "");
    if let Some(hex) = digits.strip_prefix("0x") {
        let end = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
        let value = u128::from_str_radix(&hex[..end], 16).ok()?;
        return Some(format!("{:#x}{}", value ^ 1, &hex[end..]));
    }
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let value: u128 = digits[..end].parse().ok()?;
    Some(format!("{}{}", value + 1, &digits[end..]))
}

/// Blanks strings, characters and comments in a line; offsets in bytes stay the same.
pub(in super::super) fn mask(line: &str) -> String {
    let mut out = line.as_bytes().to_vec();
    let mut at = 0;
    let mut in_string = false;
    while at < out.len() {
        let next = out.get(at + 1).copied();
        match out[at] {
            b'\\' if in_string => {
                out[at] = b' ';
                if let Some(escaped) = out.get_mut(at + 1) {
                    *escaped = b' ';
                }
                at += 1;
            }
            b'"' => in_string = !in_string,
            b'/' if !in_string && next == Some(b'/') => {
                out[at..].fill(b' ');
                break;
            }
            b'\'' if !in_string && (next == Some(b'\\') || out.get(at + 2) == Some(&b'\'')) => {
                let end = out[at + 2..].iter().position(|&byte| byte == b'\'');
                let end = end.map_or(out.len(), |end| at + 2 + end + 1);
                out[at..end].fill(b' ');
                at = end - 1;
            }
            _ if in_string => out[at] = b' ',
            _ => {}
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).trim_end().to_owned()
}
