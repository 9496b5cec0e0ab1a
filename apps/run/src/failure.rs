//! Failures, and their exit statuses.

use std::io;
use std::path::Path;

use ferrowarp_settings::SettingsError;

/// A program that was not started, and why. The statuses are those of `env` and of shells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Exit status.
    pub status: u8,
    /// Reason and remedy, in one line.
    pub about: String,
}

impl Failure {
    /// Status of a failure of `iwarp-run` itself: no status that programs usually have.
    pub const OWN: u8 = 125;
    /// Status if the program was found, and cannot be started.
    pub const NOT_STARTED: u8 = 126;
    /// Status if there is no such program.
    pub const NOT_FOUND: u8 = 127;

    /// A failure of `iwarp-run` itself.
    #[must_use]
    pub const fn own(about: String) -> Self {
        Self { status: Self::OWN, about }
    }

    /// A program that cannot be started on this stack.
    #[must_use]
    pub fn refused(path: &Path, reason: &str) -> Self {
        let about = format!("{}: {reason}", path.display());
        Self { status: Self::NOT_STARTED, about }
    }

    /// A program that the kernel did not start.
    #[must_use]
    pub fn of_exec(path: &Path, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound {
            // The program was there: it is its interpreter that is not.
            let about = format!("{}: {error} (or its interpreter)", path.display());
            return Self { status: Self::NOT_FOUND, about };
        }
        Self::refused(path, &error.to_string())
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        Self::own(error.to_string())
    }
}
