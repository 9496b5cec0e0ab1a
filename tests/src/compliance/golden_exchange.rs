//! Hand-written exchanges and headers, byte by byte, in `tests/compliance/golden`.
//!
//! In `headers.txt` each header has its name in brackets, and its bytes below. Every other file is
//! an exchange: bytes that the peer sends (`peer`), bytes that the stack has to send (`answer`),
//! and calls and results of the application (`stack ...`, see [`replay`](super::replay)). Bytes are
//! hexadecimal, on indented lines; `00*24` repeats a byte. Values known only at run time have
//! placeholders: `S1` is the STag of the region of that name, and `CRC` the CRC32c of all bytes
//! since the last `CRC` or the start of the block, least significant byte first.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::peer::invalid_data;

/// A step of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A call or result of the application: the words after `stack`.
    Stack(Vec<String>),
    /// Bytes that the peer sends in one segment.
    Peer(BytesTemplate),
    /// Bytes that the stack must have sent, and no others.
    Expect(BytesTemplate),
}

/// Part of a block of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Plain(Vec<u8>),
    Stag(String),
    Crc,
}

/// A block of bytes with placeholders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BytesTemplate(Vec<TemplatePart>);

impl BytesTemplate {
    fn extend(&mut self, line: &str) -> io::Result<()> {
        for word in line.split_whitespace() {
            self.0.push(match word {
                "CRC" => TemplatePart::Crc,
                _ if word.starts_with('S') => TemplatePart::Stag(word.to_owned()),
                _ => TemplatePart::Plain(parse_hex_word(word)?),
            });
        }
        Ok(())
    }

    /// Replaces the placeholders; STags are given by name.
    ///
    /// # Errors
    /// `InvalidData` if a name is unknown.
    pub fn resolve(&self, stags: &BTreeMap<String, u32>) -> io::Result<Vec<u8>> {
        let (mut out, mut covered) = (Vec::new(), 0);
        for piece in &self.0 {
            match piece {
                TemplatePart::Plain(bytes) => out.extend_from_slice(bytes),
                TemplatePart::Stag(name) => {
                    let stag =
                        stags.get(name).ok_or_else(|| invalid_data(format!("no region {name}")))?;
                    out.extend_from_slice(&stag.to_be_bytes());
                }
                TemplatePart::Crc => {
                    let sum = crc32c::crc32c(&out[covered..]);
                    out.extend_from_slice(&sum.to_le_bytes());
                    covered = out.len();
                }
            }
        }
        Ok(out)
    }
}

/// Parses hexadecimal digits, or a repeated byte: `00*24`.
///
/// # Errors
/// `InvalidData` if the word is malformed.
pub fn parse_hex_word(word: &str) -> io::Result<Vec<u8>> {
    let Some((byte, count)) = word.split_once('*') else { return hex(word) };
    let count = count.parse().map_err(|_| invalid_data(format!("{word}: no count")))?;
    Ok(hex(byte)?.repeat(count))
}

fn hex(digits: &str) -> io::Result<Vec<u8>> {
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).ok().filter(|digits| digits.len() == 2)?;
        u8::from_str_radix(digits, 16).ok()
    };
    let bytes: Option<Vec<_>> = digits.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| invalid_data(format!("{digits}: not hexadecimal")))
}

fn folder(root: &Path) -> PathBuf {
    root.join("tests/compliance/golden")
}

/// Removes the comment from a line.
fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim_end()
}

/// Reads the exchanges, by file name.
///
/// # Errors
/// I/O errors, and `InvalidData` for malformed lines.
pub fn exchanges(root: &Path) -> io::Result<BTreeMap<String, Vec<Step>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder(root))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name != "headers" {
            let steps = parse_steps(&fs::read_to_string(&path)?)
                .map_err(|error| invalid_data(format!("{name}: {error}")))?;
            found.insert(name, steps);
        }
    }
    Ok(found)
}

fn parse_steps(text: &str) -> io::Result<Vec<Step>> {
    let mut steps = Vec::new();
    for line in text.lines().map(without_comment).filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace().map(str::to_owned);
        match (line.starts_with(' '), steps.last_mut()) {
            (true, Some(Step::Peer(bytes) | Step::Expect(bytes))) => bytes.extend(line)?,
            (true, _) => return Err(invalid_data("bytes of nobody")),
            (false, _) => steps.push(match words.next().as_deref() {
                Some("stack") => Step::Stack(words.collect()),
                Some("peer") => Step::Peer(BytesTemplate::default()),
                Some("answer") => Step::Expect(BytesTemplate::default()),
                _ => return Err(invalid_data(format!("{line}: who does this?"))),
            }),
        }
    }
    Ok(steps)
}

/// Reads the headers, by name.
///
/// # Errors
/// I/O errors, and `InvalidData` for malformed lines.
pub fn headers(root: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let text = fs::read_to_string(folder(root).join("headers.txt"))?;
    let mut found: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines().map(without_comment).filter(|line| !line.is_empty()) {
        if let Some(title) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            title.clone_into(&mut name);
            found.insert(name.clone(), Vec::new());
        } else {
            let mut bytes = BytesTemplate::default();
            bytes.extend(line)?;
            let bytes = bytes.resolve(&BTreeMap::new())?;
            let header = found.get_mut(&name).ok_or_else(|| invalid_data("bytes before a name"))?;
            header.extend(bytes);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_resolves_stags_and_crc() {
        let text = "# nothing\nstack region S1 0 9\npeer\n  0001 S1 ff*2  # there\n  CRC 07 CRC\n";
        let steps = parse_steps(text).unwrap();
        assert_eq!(steps.len(), 2);
        let Step::Peer(bytes) = &steps[1] else { panic!("{steps:?}") };
        let found = bytes.resolve(&[("S1".to_owned(), 0x0a0b_0c0d)].into()).unwrap();
        assert_eq!(found[..8], [0, 1, 10, 11, 12, 13, 255, 255]);
        assert_eq!(found[8..12], crc32c::crc32c(&found[..8]).to_le_bytes());
        assert_eq!(found[13..], crc32c::crc32c(&[7]).to_le_bytes());
        assert!(bytes.resolve(&BTreeMap::new()).is_err());
    }

    #[test]
    fn malformed_exchange_is_refused() {
        for text in ["peer\n  0g\n", "peer\n  000\n", "  00\n", "nobody\n", "peer\n  00*x\n"] {
            assert!(parse_steps(text).is_err(), "{text}");
        }
    }
}
