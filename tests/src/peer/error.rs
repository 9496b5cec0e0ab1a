//! Errors of the peer.

use std::io::{self, ErrorKind};

/// Returns the error of a violation found by the peer.
pub(crate) fn invalid_data(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}
