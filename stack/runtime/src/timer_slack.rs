//! How late the operating system may wake a thread from a nap.

/// Makes naps of the calling thread as exact as the clock is. By default Linux adds up to 50 us to
/// each, so as to wake several threads at once: more than the naps of a helper last. False if the
/// system refused; naps end later then.
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
        // SAFETY: this option takes nothing and returns the calling thread's timer slack.
        unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }
    }
}
