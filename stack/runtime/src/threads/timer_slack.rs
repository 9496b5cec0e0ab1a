//! Timer slack: how much later than its timeout Linux may wake a sleeping thread.

/// Sets the timer slack of the calling thread to 1 ns, its minimum. By default Linux adds up to 50
/// us to each sleep, to coalesce wake-ups: more than the sleeps of a helper last. False if the
/// system call failed; sleeps last longer then.
pub(crate) fn minimize() -> bool {
    let least: libc::c_ulong = 1;
    // SAFETY: this option takes one number, in nanoseconds, and changes nothing but the timer slack
    // of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, least) == 0 }
}

#[cfg(test)]
mod tests {
    #[test]
    fn minimize_affects_only_the_calling_thread() {
        let other = std::thread::spawn(|| {
            assert!(super::minimize());
            slack()
        });
        assert_eq!(other.join().unwrap(), 1);
        assert_ne!(slack(), 1, "of that thread alone");
    }

    fn slack() -> libc::c_int {
        // SAFETY: this option takes no argument and returns the calling thread's timer slack.
        unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }
    }
}
