//! Cases: programs at both ends of a link, and what they must print and return.

use std::io;
use std::time::Duration;

use crate::verbs::testbed::Testbed;

/// Timeout of operations that take almost no time on an idle machine.
pub const CASE_TIMEOUT: Duration = Duration::from_secs(30);

/// Workload of a case. Returns a short summary, or the reason of the failure.
pub type Body = Box<dyn Fn(&mut Testbed) -> io::Result<String>>;

/// One case.
pub struct Case {
    /// `group/program/how`, in lower case; unique.
    pub name: String,
    /// Part of the quick matrix too.
    pub is_quick: bool,
    /// Workload.
    pub body: Body,
}

impl Case {
    /// Creates a case of the full matrix only.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        body: impl Fn(&mut Testbed) -> io::Result<String> + 'static,
    ) -> Self {
        Self { name: name.into(), is_quick: false, body: Box::new(body) }
    }

    /// Adds the case to the quick matrix if `quick`.
    #[must_use]
    pub fn quick(self, quick: bool) -> Self {
        Self { is_quick: quick, ..self }
    }
}
