//! The file of settings.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{SettingsError, shown};

/// Longest file that is read.
pub(crate) const FILE_BYTES_MAX: usize = 1 << 20;

/// A key of the file, and its values.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    /// Its first byte in the file.
    pub(crate) at: usize,
    /// Values, and the first byte of each. One, unless it is an array.
    pub(crate) values: Vec<(String, usize)>,
    /// It is an array.
    pub(crate) is_array: bool,
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<String, SettingsError> {
    let unreadable = |error| SettingsError::Unreadable { path: path.to_owned(), error };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    // Devices and pipes have no length: one byte more shows that there are too many.
    let limit = FILE_BYTES_MAX as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(SettingsError::TooLong { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|error| unreadable(io::Error::other(error.utf8_error())))
}

/// Parses the text of a file.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Vec<Entry>, SettingsError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(SettingsError::TooLong { path: path.to_owned() });
    }
    let table = DeTable::parse(text).map_err(|error| SettingsError::Syntax {
        path: path.to_owned(),
        line: error.span().map_or(1, |span| line_at(text, span.start)),
        // Some reasons have several lines.
        reason: shown(&error.message().split_whitespace().collect::<Vec<_>>().join(" ")),
    })?;
    let entry = |(key, value): (&Spanned<Cow<str>>, &Spanned<DeValue>)| {
        let array = match value.get_ref() {
            DeValue::Array(array) => Some(array),
            _ => None,
        };
        let values: Vec<&Spanned<DeValue>> =
            array.map_or_else(|| vec![value], |array| array.iter().collect());
        let value = |value: &Spanned<DeValue>| (scalar(value.get_ref()), value.span().start);
        Entry {
            key: key.get_ref().clone().into_owned(),
            at: key.span().start,
            values: values.into_iter().map(value).collect(),
            is_array: array.is_some(),
        }
    };
    Ok(table.get_ref().iter().map(entry).collect())
}

/// Returns the text of a value; what is no scalar has a text that no setting accepts.
fn scalar(value: &DeValue) -> String {
    match value {
        DeValue::String(text) => text.clone().into_owned(),
        DeValue::Integer(integer) => integer.to_string(),
        DeValue::Float(float) => float.to_string(),
        DeValue::Boolean(boolean) => boolean.to_string(),
        DeValue::Datetime(datetime) => datetime.to_string(),
        DeValue::Array(_) => "[...]".to_owned(),
        DeValue::Table(_) => "{...}".to_owned(),
    }
}

/// Returns the line, from 1, of a byte. It counts lines: for errors alone.
pub(crate) fn line_at(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}
