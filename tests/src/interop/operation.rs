//! Timeout and error of an operation of a case.

use std::io;
use std::time::Duration;

/// Timeout of operations that take almost no time on an idle machine.
pub const CASE_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns an I/O error with a message.
pub fn failure(reason: impl Into<String>) -> io::Error {
    io::Error::other(reason.into())
}
