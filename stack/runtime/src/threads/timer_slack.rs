//! Timer slack: how much later than its timeout Linux may wake a sleeping thread.

use std::time::Duration;

/// Sets the timer slack of the calling thread to 1 ns, its minimum. By default Linux adds up to 50
/// us to each sleep, to coalesce wake-ups: more than the sleeps of a helper last. False if the
/// system call failed; sleeps last longer then.
pub(crate) fn minimize() -> bool {
    set(1)
}

/// Sleeps with the minimum of the timer slack, and restores that of the calling thread.
pub(crate) fn sleep(duration: Duration) {
    // SAFETY: this option takes no argument and returns the calling thread's timer slack.
    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    let restored = libc::c_ulong::try_from(slack).ok().filter(|&slack| slack > 1 && minimize());
    std::thread::sleep(duration);
    restored.map(set);
}

/// Sets the timer slack, in nanoseconds. False if the system call failed.
fn set(slack: libc::c_ulong) -> bool {
    // SAFETY: this option takes one number, in nanoseconds, and changes nothing but the timer slack
    // of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack) == 0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[test]
    fn minimize_affects_only_the_calling_thread() {
        let other = std::thread::spawn(|| {
            assert!(super::minimize());
            slack()
        });
        assert_eq!(other.join().unwrap(), 1);
        assert_ne!(slack(), 1, "of that thread alone");
    }

    #[test]
    fn sleep_restores_the_slack() {
        let before = slack();
        super::sleep(Duration::from_micros(1));
        assert_eq!(slack(), before);
    }

    fn slack() -> libc::c_int {
        // SAFETY: this option takes no argument and returns the calling thread's timer slack.
        unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }
    }
}
