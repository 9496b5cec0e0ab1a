//! The programs and their servers and clients, over pairs of rings.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod commands;
mod many_sessions;
mod sessions;

/// Held by each test while it runs: each keeps one or two cores busy and bounds the time in which
/// its peers answer.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}
