use core::cell::Cell;
use core::mem::{align_of, offset_of, size_of};
use core::ops::Sub;

use crate::tcp::HOT_LEN;
use crate::tcp::tests::TestTcb;

/// Segments of this thread's connections that took the fast path.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct Counts {
    pub(in crate::tcp) received: u64,
    pub(in crate::tcp) sent: u64,
}

thread_local! {
    static COUNTS: Cell<Counts> = Cell::default();
}

impl Counts {
    pub(in crate::tcp) fn now() -> Self {
        COUNTS.get()
    }

    pub(super) fn received() {
        COUNTS.set(Self { received: COUNTS.get().received + 1, ..COUNTS.get() });
    }

    pub(super) fn sent() {
        COUNTS.set(Self { sent: COUNTS.get().sent + 1, ..COUNTS.get() });
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { received: self.received - before.received, sent: self.sent - before.sent }
    }
}

/// Offset and length of fields.
macro_rules! places {
    ($($field:ident $(. $part:ident)*),* $(,)?) => {{
        let length = |tcb: &TestTcb| [$(size_of_val(&tcb.$field $(.$part)*)),*];
        let names = [$(stringify!($field $(.$part)*)),*];
        (names, [$(offset_of!(TestTcb, $field $(.$part)*)),*], length)
    }};
}

/// Every field of [`super::HotState`], and what else the public functions of the fast path access.
#[test]
fn hot_state_fits_three_cache_lines() {
    let (names, offsets, length) = places![
        scoreboard,
        cfg,
        timers,
        last_rx_at,
        rcv,
        snd,
        ts,
        rtt_cache,
        segment_counts,
        rcv_round_end,
        progress_at,
        last_tx_at,
        pacing_credit,
        emss,
        ts_on,
        fast_path,
        cc.window,
        cc.cwnd_limited,
    ];
    let end = crate::tcp::tests::Endpoint::client(
        &crate::tcp::Config::default(),
        1,
        crate::time::Instant::ZERO,
    );
    let mut sum = 0;
    for ((name, offset), len) in names.into_iter().zip(offsets).zip(length(&end.tcb)) {
        println!("{offset:4} {len:3} {name}");
        assert!(offset + len <= HOT_LEN, "{name} ends at {}", offset + len);
        sum += len;
    }
    println!("{sum} bytes of {HOT_LEN} are hot, {} in all", size_of::<TestTcb>());
    assert_eq!(HOT_LEN, 3 * 64);
    assert_eq!(align_of::<TestTcb>(), 8, "the slot has the alignment of a line");
}
