//! Limits of a test, and the server's check of a requested run.

use anyhow::ensure;

use crate::perf::control::{FLAG_IMMEDIATE, FLAG_SHARED_BUFFER, FLAG_VERIFY, Hello, Run};
use crate::perf::kind::{Test, Transfer};

/// Largest message in bytes.
pub const SIZE_MAX: u64 = 1 << 30;
/// Largest region of either side, in bytes.
pub const REGION_LEN_MAX: u64 = 4 << 30;
/// Bytes of an atomic operation.
pub const ATOMIC_LEN: u64 = 8;
/// Most outstanding requests, or receives, of a data connection.
pub const DEPTH_MAX: u32 = 16384;
/// Most data connections of a session.
pub const QPS_MAX: u32 = 1 << 16;

/// Rejects a run that is inconsistent with the session's parameters.
pub(super) fn check_run(hello: &Hello, run: &Run) -> anyhow::Result<()> {
    let slots = u64::from(run.slots);
    ensure!((1..=SIZE_MAX).contains(&run.size), "messages of {} bytes are not served", run.size);
    ensure!(run.stride >= run.size && run.stride.is_multiple_of(8), "the slots overlap");
    ensure!(
        slots > 0 && run.stride.checked_mul(slots).is_some_and(|len| len <= hello.span),
        "the slots do not fit the region"
    );
    ensure!(run.credits <= hello.rx_depth, "more credits than receives");
    // An active side could otherwise wait for ever: to post a list, or for a completion.
    ensure!(run.post_list.max(run.cq_mod) <= hello.tx_depth, "a post list beyond the depth");
    ensure!(
        run.cq_mod == 0
            || run.post_list.is_multiple_of(run.cq_mod)
            || run.cq_mod.is_multiple_of(run.post_list),
        "a post list whose last request is not signaled"
    );
    ensure!(
        run.iterations > 0 || run.duration_ms > 0,
        "the run has neither a count nor a duration"
    );
    let is_atomic = hello.test.transfer() == Transfer::Atomic;
    ensure!(!is_atomic || run.size == ATOMIC_LEN, "atomic operations have {ATOMIC_LEN} bytes");
    ensure!(
        !hello.has(FLAG_IMMEDIATE) || hello.test == Test::WriteBw,
        "immediate data need write-bw"
    );
    let verified_slots = hello.has(FLAG_VERIFY);
    ensure!(
        !(verified_slots && hello.has(FLAG_SHARED_BUFFER)),
        "a buffer that all connections write to cannot be verified"
    );
    ensure!(!verified_slots || run.credits <= run.slots, "more credits than slots to verify in");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::control::Region;

    fn hello() -> Hello {
        let region = Region::default();
        Hello {
            test: Test::SendBw,
            flags: FLAG_VERIFY,
            qps: 1,
            tx_depth: 16,
            rx_depth: 16,
            token: 1,
            span: 1024,
            tx: region,
            rx: region,
            inline_size: 0,
        }
    }

    const RUN: Run = Run {
        size: 60,
        iterations: 1,
        duration_ms: 0,
        stride: 64,
        slots: 16,
        credits: 16,
        post_list: 0,
        cq_mod: 0,
    };

    #[test]
    fn run_within_limits_is_accepted() {
        assert!(check_run(&hello(), &RUN).is_ok());
    }

    #[test]
    fn atomic_and_immediate_require_matching_test() {
        let atomic = Hello { test: Test::AtomicBw, ..hello() };
        assert!(check_run(&atomic, &Run { size: 8, ..RUN }).is_ok());
        assert!(check_run(&atomic, &RUN).is_err());
        for (test, served) in [(Test::WriteBw, true), (Test::WriteLat, false)] {
            let immediate = Hello { test, flags: FLAG_IMMEDIATE, ..hello() };
            assert_eq!(check_run(&immediate, &RUN).is_ok(), served, "{test:?}");
        }
    }

    #[test]
    fn shared_buffer_is_not_verified() {
        let shared = Hello { flags: FLAG_SHARED_BUFFER, ..hello() };
        assert!(check_run(&shared, &RUN).is_ok());
        let verified = Hello { flags: FLAG_SHARED_BUFFER | FLAG_VERIFY, ..hello() };
        assert!(check_run(&verified, &RUN).is_err());
    }

    #[test]
    fn run_outside_region_is_rejected() {
        for wrong in [
            Run { size: 0, ..RUN },
            Run { size: 65, ..RUN },
            Run { size: u64::MAX, stride: u64::MAX - 7, ..RUN },
            Run { slots: 0, ..RUN },
            Run { slots: 17, ..RUN },
            Run { stride: 1 << 63, slots: 2, ..RUN },
            Run { stride: 60, ..RUN },
            Run { credits: 17, ..RUN },
            Run { credits: u32::MAX, slots: u32::MAX, ..RUN },
            Run { iterations: 0, ..RUN },
            Run { slots: 8, ..RUN },
            Run { post_list: 17, ..RUN },
            Run { cq_mod: 17, ..RUN },
            Run { post_list: 8, cq_mod: 12, ..RUN },
        ] {
            assert!(check_run(&hello(), &wrong).is_err(), "{wrong:?}");
        }
    }
}
