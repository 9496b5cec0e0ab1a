//! Latency of the bound: a message back and forth between two cores over the two ends of a `ring`,
//! the port of the run, with the passes of the frozen bound at each end and nothing else.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ferrowarp::device::{
    Device, DpdkDevice, DpdkRx, RxFrame, TxClass, TxFrame, register_current_thread,
};
use hdrhistogram::Histogram;

use super::frames::BURST_LEN;
use super::transfer::{Sink, Source, Transfer, WorkingSet};
use crate::cores::{Work, on_each};
use crate::iwperf::TAIL;
use crate::ring::open_ring;
use crate::runner::{Figures, us};

/// Significant digits of the latencies, as in `iwperf`.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Measures half the round trip of messages that fit one segment.
pub(crate) fn measure(
    transfer: &Arc<Transfer>,
    cores: [usize; 2],
    duration: Duration,
) -> Result<Figures> {
    let frame_len = transfer.single_frame_len().context("a ping is one segment")?;
    ensure!(cores[0] != cores[1], "a ping-pong needs two cores");
    let (first, second) = open_ring(transfer.mtu, 1)?;
    let mut first = End::new(first, transfer, frame_len)?;
    let mut second = End::new(second, transfer, frame_len)?;
    let stop = &AtomicBool::new(false);
    let initiator: Work<'_, Figures> = Box::new(move || {
        register_current_thread();
        let mut half_trips = Histogram::<u64>::new(SIGNIFICANT_DIGITS)?;
        let start = Instant::now();
        loop {
            let sent = Instant::now();
            first.send();
            while !first.receive() {
                spin_loop();
            }
            let received = Instant::now();
            half_trips.record(u64::try_from((received - sent).as_nanos() / 2)?)?;
            if received - start >= duration {
                stop.store(true, Ordering::Relaxed);
                let (p50, p99) = (us(&half_trips, 0.5), us(&half_trips, 0.99));
                return Ok([("us, p50", p50), ("us, p99", p99), (TAIL, p99 - p50)].into());
            }
        }
    });
    let responder: Work<'_, Figures> = Box::new(move || {
        register_current_thread();
        while !stop.load(Ordering::Relaxed) {
            if second.receive() {
                second.send();
            } else {
                spin_loop();
            }
        }
        Ok(Figures::new())
    });
    Ok(on_each(&cores, vec![initiator, responder])?.swap_remove(0))
}

struct End {
    port: DpdkDevice,
    source: Source,
    sink: Sink,
    frame_len: usize,
    burst: Vec<DpdkRx>,
}

impl End {
    fn new(port: DpdkDevice, transfer: &Arc<Transfer>, frame_len: usize) -> std::io::Result<Self> {
        let set = WorkingSet::SINGLE;
        let (source, sink) = (Source::new(transfer, set)?, Sink::new(transfer, set)?);
        Ok(Self { port, source, sink, frame_len, burst: Vec::with_capacity(BURST_LEN) })
    }

    #[inline]
    fn send(&mut self) {
        let mut frame = self.port.allocate(TxClass::Data).expect("one frame is in flight");
        self.source.build(frame.buf_mut());
        frame.set_len(self.frame_len);
        self.port.transmit(frame);
        self.port.flush();
    }

    /// True if a message has arrived.
    #[inline]
    fn receive(&mut self) -> bool {
        let received = self.port.receive(&mut self.burst, BURST_LEN) > 0;
        for frame in self.burst.drain(..) {
            self.sink.place(frame.head());
        }
        received
    }
}
