//! Lines on standard error: why a device cannot be used. The program's own message follows, and
//! rarely says more than "no such device".

use std::io::Write as _;
use std::sync::Mutex;
use std::sync::PoisonError;

/// Writes a line, unless the last one was the same: programs look for devices again and again.
pub(crate) fn report(problem: &str) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if *last != problem {
        problem.clone_into(&mut last);
        // The program may have closed it.
        let _ = writeln!(std::io::stderr(), "ferrowarp: {problem}");
    }
}

/// Reports a panic of this library, which its message has described.
pub(crate) fn report_panic() {
    report("this is a defect of the library: the call fails with EIO");
}
