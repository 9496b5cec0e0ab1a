//! Errors of settings.

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::file::FILE_BYTES_MAX;

/// Bytes of a wrong value that an error shows, at most.
const SHOWN_BYTES_MAX: usize = 80;

/// Place at which a setting was given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// A variable of the environment, by its name.
    Variable(String),
    /// A key of a file.
    File {
        /// The file.
        path: PathBuf,
        /// Line of the value, from 1.
        line: usize,
        /// The key.
        key: String,
    },
    /// An option of the command line, with its hyphens.
    Option(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) | Self::Option(name) => f.write_str(name),
            Self::File { path, line, key } => write!(f, "{}: line {line}: {key}", path.display()),
        }
    }
}

/// Error of settings. `Display` prints one line that states the remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// No device is configured.
    #[error(
        "no device is configured: run the program with iwarp-run --dev DEVICE --ip ADDRESS/LEN, or \
         set FERROWARP_CONFIG to a file with `device` and `address`"
    )]
    NoDevice,
    /// The device has no address.
    #[error(
        "no address is configured for the device {device}: run the program with iwarp-run --ip \
         ADDRESS/LEN, or add `address` to the file of FERROWARP_CONFIG"
    )]
    NoAddress {
        /// The device.
        device: String,
    },
    /// A value is not accepted.
    #[error("{origin}: {value:?}: {expected}")]
    Value {
        /// Name of the setting.
        setting: &'static str,
        /// Place of the value.
        origin: Origin,
        /// The value, or its first bytes.
        value: String,
        /// Accepted values.
        expected: String,
    },
    /// The file has a key that is no setting.
    #[error("{path}: line {line}: {key:?} is no setting: do you mean {nearest}?")]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Line of the key, from 1.
        line: usize,
        /// The key, or its first bytes.
        key: String,
        /// The setting with the most similar name.
        nearest: &'static str,
    },
    /// The file is not TOML.
    #[error("{path}: line {line}: {reason}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line of the error, from 1.
        line: usize,
        /// The error.
        reason: String,
    },
    /// The file cannot be read.
    #[error("{path}: the settings cannot be read: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The file is longer than any file of settings.
    #[error("{path}: more than {FILE_BYTES_MAX} bytes: give a file of settings")]
    TooLong {
        /// The file.
        path: PathBuf,
    },
}

/// Returns the text, or its start if it is long.
pub(crate) fn shown(text: &str) -> String {
    if text.len() <= SHOWN_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=SHOWN_BYTES_MAX).rev().find(|&end| text.is_char_boundary(end));
    format!("{}...", &text[..end.unwrap_or(0)])
}
