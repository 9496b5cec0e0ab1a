//! Registered memory that its owner unmaps, protects or truncates.

mod handlers;

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;

use ferrowarp::cm::Terminate;
use ferrowarp::{
    Access, AtomicOp, ConnEvent, DriveMode, EndReason, Mr, Pd, Qp, QpOptions, RemoteAddr, WcStatus,
};
use libc::{c_int, c_void};

use crate::support::*;

const PAGE: usize = 4096;
/// Several segments of each message lie before the pages that vanish, and behind them.
const LEN: usize = 32 * PAGE;
const LEN_32: u32 = 32 * 4096;

/// How memory vanishes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Vanish {
    Unmap,
    Protect,
    ReadOnly,
    Truncate,
}

/// Bytes in front of those that vanish: none, so that the first access faults, or several segments.
const KEPT: [usize; 3] = [0, LEN / 2, LEN - PAGE];
const FOR_READING: [Vanish; 3] = [Vanish::Unmap, Vanish::Protect, Vanish::Truncate];
const FOR_WRITING: [Vanish; 4] =
    [Vanish::Unmap, Vanish::Protect, Vanish::ReadOnly, Vanish::Truncate];

/// Shared mapping of a file in memory.
struct Mapping {
    start: *mut u8,
    file: File,
}

impl Mapping {
    fn new() -> Self {
        // SAFETY: a name.
        let fd = unsafe { libc::memfd_create(c"page_faults".as_ptr(), 0) };
        assert!(fd >= 0, "memfd_create");
        // SAFETY: a new descriptor.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(LEN as u64).unwrap();
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let start = map(LEN, prot, libc::MAP_SHARED, file.as_raw_fd());
        Self { start: start.cast(), file }
    }

    fn register(&self, pd: &Pd, access: Access) -> Mr {
        // SAFETY: no reference to the mapping exists. It vanishes only where page faults are
        // caught.
        unsafe { pd.register_raw(self.start, LEN, access) }.unwrap()
    }

    /// Lets what is behind `keep` bytes, whole pages, vanish.
    fn vanish(&self, how: Vanish, keep: usize) {
        let (at, len) = (self.start.wrapping_add(keep).cast(), LEN - keep);
        match how {
            Vanish::Unmap => unmap(at, len),
            Vanish::Protect => protect(at, len, libc::PROT_NONE),
            Vanish::ReadOnly => protect(at, len, libc::PROT_READ),
            Vanish::Truncate => self.file.set_len(keep as u64).unwrap(),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.start.cast(), LEN);
    }
}

/// Maps memory at a free address.
fn map(len: usize, prot: c_int, flags: c_int, fd: c_int) -> *mut c_void {
    // SAFETY: nothing is there yet.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start
}

fn unmap(at: *mut c_void, len: usize) {
    // SAFETY: no reference to mappings of these tests exists.
    assert_eq!(unsafe { libc::munmap(at, len) }, 0);
}

fn protect(at: *mut c_void, len: usize, prot: c_int) {
    // SAFETY: as above.
    assert_eq!(unsafe { libc::mprotect(at, len, prot) }, 0);
}

/// Two contexts that catch page faults.
fn catching_endpoints() -> (Endpoint, Endpoint) {
    let config = |host| config(host, DriveMode::Inline).catch_page_faults(true);
    let (left, right) = ring_pair(config(1), config(2)).unwrap();
    (Endpoint::new(left), Endpoint::new(right))
}

/// The reason why the connection of `qp` ended.
fn end_of(qp: &Qp, left: &Endpoint, right: &Endpoint) -> EndReason {
    let mut end = None;
    drive_until(&left.context, &right.context, || {
        if let Some(ConnEvent::Disconnected { reason, .. }) = qp.next_event() {
            end = Some(reason);
        }
        end.is_some()
    });
    end.expect("an end")
}

/// Layer and type of a local error: "Local Catastrophic Error".
fn is_local_error(terminate: Terminate) -> bool {
    let (_, error_type, code) = terminate.cause();
    (error_type, code) == (0, 0)
}

/// Asserts that the end at fault sent a Terminate with a local error, and the other received it.
fn expect_terminate(fault: &Qp, other: &Qp, left: &Endpoint, right: &Endpoint, what: &str) {
    match (end_of(fault, left, right), end_of(other, left, right)) {
        (
            EndReason::TerminateSent(_) | EndReason::LocalError,
            EndReason::TerminateReceived(terminate),
        ) if is_local_error(terminate) => {}
        ends => panic!("{what}: {ends:?}"),
    }
}

/// One request, with the first completion that it causes where memory has vanished.
type Case = fn(&Endpoint, &Endpoint, &Qp, &Qp, &Mapping) -> Expected;

/// End whose memory has vanished, and whether a request of it completes.
struct Expected {
    fault_is_left: bool,
    has_completion: bool,
}

/// Posts with memory that vanishes at `keep` bytes; another connection of the contexts goes on.
fn run(name: &str, hows: &[Vanish], case: Case) {
    let (left, right) = catching_endpoints();
    let (kept_a, _kept_b) = connect(&left, &right);
    let (source, sink) = (left.mr(64, Access::ALL), right.mr(64, Access::ALL));
    for &how in hows {
        for keep in KEPT {
            let what = format!("{name}, {how:?} behind {keep}");
            let (a, b) = connect(&left, &right);
            let mapping = Mapping::new();
            // Posted before the memory vanishes, so that checks at posting find nothing.
            let expected = case(&left, &right, &a, &b, &mapping);
            mapping.vanish(how, keep);
            let (fault, other, end) =
                if expected.fault_is_left { (&a, &b, &left) } else { (&b, &a, &right) };
            expect_terminate(fault, other, &left, &right, &what);
            let statuses: Vec<_> = poll_once(&end.cq).iter().map(|wc| wc.status).collect();
            let failed = statuses.contains(&WcStatus::LocalProtection);
            assert_eq!(failed, expected.has_completion, "{what}: {statuses:?}");
            drop((a, b));
            poll_once(&left.cq);
            poll_once(&right.cq);
            write(&kept_a, 7, source.sge(0, 8), &sink, 0).unwrap();
            assert_eq!(outcomes(&left.completions(&right, 1)), all([7], WcStatus::Success));
        }
    }
}

const LEFT_REQUEST: Expected = Expected { fault_is_left: true, has_completion: true };
const RIGHT_REQUEST: Expected = Expected { fault_is_left: false, has_completion: true };
const RIGHT_MEMORY: Expected = Expected { fault_is_left: false, has_completion: false };

#[test]
fn source_of_a_write_or_send_vanishes() {
    isolate!();
    run("write", &FOR_READING, |left, right, a, _, mapping| {
        let source = mapping.register(&left.pd, Access::LOCAL_READ);
        let sink = right.mr(LEN, Access::REMOTE_WRITE);
        write(a, 1, source.sge(0, LEN_32), &sink, 0).unwrap();
        std::mem::forget((source, sink));
        LEFT_REQUEST
    });
    run("send", &FOR_READING, |left, right, a, b, mapping| {
        let source = mapping.register(&left.pd, Access::LOCAL_READ);
        let sink = right.mr(LEN, Access::LOCAL_WRITE);
        b.post_recv(2, [sink.sge(0, LEN_32)]).unwrap();
        one(a.post().send(source.sge(0, LEN_32)).wr_id(1).signaled()).unwrap();
        std::mem::forget((source, sink));
        LEFT_REQUEST
    });
}

#[test]
fn short_sources_in_one_segment_vanish() {
    isolate!();
    run("short writes", &FOR_READING, |left, right, a, _, mapping| {
        let source = mapping.register(&left.pd, Access::LOCAL_READ);
        let sink = right.mr(LEN, Access::REMOTE_WRITE);
        // From the last page, behind some that can be read.
        let good = left.mr(64, Access::LOCAL_READ);
        for number in 0..3 {
            write(a, number, good.sge(0, 64), &sink, 0).unwrap();
        }
        write(a, 9, source.sge(LEN - 100, 100), &sink, 0).unwrap();
        std::mem::forget((source, sink, good));
        LEFT_REQUEST
    });
    run("short sends", &FOR_READING, |left, right, a, b, mapping| {
        let source = mapping.register(&left.pd, Access::LOCAL_READ);
        let (good, sink) = (left.mr(64, Access::LOCAL_READ), right.mr(LEN, Access::LOCAL_WRITE));
        for number in 0..4 {
            b.post_recv(number, [sink.sge(0, 128)]).unwrap();
        }
        for number in 0..3 {
            one(a.post().send(good.sge(0, 64)).wr_id(number).signaled()).unwrap();
        }
        one(a.post().send(source.sge(LEN - 100, 100)).wr_id(9).signaled()).unwrap();
        std::mem::forget((source, sink, good));
        LEFT_REQUEST
    });
}

#[test]
fn sink_of_a_write_send_or_read_vanishes() {
    isolate!();
    run("write", &FOR_WRITING, |left, right, a, _, mapping| {
        let source = left.mr(LEN, Access::LOCAL_READ);
        let sink = mapping.register(&right.pd, Access::REMOTE_WRITE);
        write(a, 1, source.sge(0, LEN_32), &sink, 0).unwrap();
        std::mem::forget((source, sink));
        RIGHT_MEMORY
    });
    run("send", &FOR_WRITING, |left, right, a, b, mapping| {
        let source = left.mr(LEN, Access::LOCAL_READ);
        let sink = mapping.register(&right.pd, Access::LOCAL_WRITE);
        b.post_recv(2, [sink.sge(0, LEN_32)]).unwrap();
        one(a.post().send(source.sge(0, LEN_32)).wr_id(1).signaled()).unwrap();
        std::mem::forget((source, sink));
        RIGHT_REQUEST
    });
    run("read", &FOR_WRITING, |left, right, a, _, mapping| {
        let source = right.mr(LEN, Access::REMOTE_READ);
        let sink = mapping.register(&left.pd, Access::LOCAL_WRITE);
        read(a, 1, sink.sge(0, LEN_32), &source, 0).unwrap();
        std::mem::forget((source, sink));
        LEFT_REQUEST
    });
}

#[test]
fn buffer_of_a_shared_receive_queue_vanishes() {
    isolate!();
    let (left, right) = catching_endpoints();
    let source = left.mr(LEN, Access::LOCAL_READ);
    for (how, keep) in FOR_WRITING.into_iter().flat_map(|how| KEPT.map(|keep| (how, keep))) {
        let srq = right.pd.create_srq(8).unwrap();
        let mapping = Mapping::new();
        let sink = mapping.register(&right.pd, Access::LOCAL_WRITE);
        srq.post_recv(3, [sink.sge(0, LEN_32)]).unwrap();
        let b = right.pd.create_qp(&QpOptions::new(&right.cq).srq(&srq)).unwrap();
        let ((a, b), _) = connect_qps(&right, left.qp(), b);
        mapping.vanish(how, keep);
        one(a.post().send(source.sge(0, LEN_32)).wr_id(1).signaled()).unwrap();
        expect_terminate(&b, &a, &left, &right, &format!("SRQ, {how:?} behind {keep}"));
        assert_eq!(outcomes(&poll_once(&right.cq)), all([3], WcStatus::LocalProtection));
        drop(a);
        poll_once(&left.cq);
    }
}

/// What vanishes is the last element of a list, or lies behind a window.
#[test]
fn element_of_a_list_or_region_of_a_window_vanishes() {
    isolate!();
    run("source list", &FOR_READING, |left, right, a, _, mapping| {
        let (good, source) = (left.mr(5000, Access::LOCAL_READ), mapping);
        let source = source.register(&left.pd, Access::LOCAL_READ);
        let sink = right.mr(LEN + 5000, Access::REMOTE_WRITE);
        let list = [good.sge(0, 5000), source.sge(0, LEN_32)];
        one(a.post().write(&list, sink.remote()).wr_id(1).signaled()).unwrap();
        std::mem::forget((good, source, sink));
        LEFT_REQUEST
    });
    run("sink list", &FOR_WRITING, |left, right, a, b, mapping| {
        let source = left.mr(LEN + 5000, Access::LOCAL_READ);
        let good = right.mr(5000, Access::LOCAL_WRITE);
        let sink = mapping.register(&right.pd, Access::LOCAL_WRITE);
        b.post_recv(2, [good.sge(0, 5000), sink.sge(0, LEN_32)]).unwrap();
        one(a.post().send(source.sge(0, LEN_32 + 5000)).wr_id(1).signaled()).unwrap();
        std::mem::forget((source, good, sink));
        RIGHT_REQUEST
    });
    run("window", &FOR_WRITING, |left, right, a, b, mapping| {
        let source = left.mr(LEN, Access::LOCAL_READ);
        let sink = mapping.register(&right.pd, Access::ALL);
        let mut window = right.pd.allocate_window().unwrap();
        let bind = window.bind(&sink, 0, LEN, Access::REMOTE_WRITE, true);
        b.post().bind(bind).wr_id(2).signaled().ring().unwrap();
        assert_eq!(outcomes(&right.completions(left, 1)), all([2], WcStatus::Success));
        let remote = RemoteAddr { addr: 0, rkey: window.rkey() };
        one(a.post().write(source.sge(0, LEN_32), remote).wr_id(1).signaled()).unwrap();
        std::mem::forget((source, sink, window));
        RIGHT_MEMORY
    });
}

#[test]
fn source_of_a_read_or_word_of_an_atomic_vanishes() {
    isolate!();
    run("read", &FOR_READING, |left, right, a, _, mapping| {
        let source = mapping.register(&right.pd, Access::REMOTE_READ);
        let sink = left.mr(LEN, Access::LOCAL_WRITE);
        read(a, 1, sink.sge(0, LEN_32), &source, 0).unwrap();
        std::mem::forget((source, sink));
        RIGHT_MEMORY
    });
    let ops = [AtomicOp::fetch_add(1), AtomicOp::swap(2), AtomicOp::cmp_swap(0, 3)];
    for op in ops {
        let (left, right) = catching_endpoints();
        for how in FOR_WRITING {
            let (a, b) = connect(&left, &right);
            let mapping = Mapping::new();
            let target = mapping.register(&right.pd, Access::REMOTE_ATOMIC);
            let result = left.mr(8, Access::LOCAL_WRITE);
            mapping.vanish(how, 0);
            one(a.post().atomic(op, result.sge(0, 8), target.remote()).wr_id(1).signaled())
                .unwrap();
            expect_terminate(&b, &a, &left, &right, &format!("{op:?}, {how:?}"));
            // Where the result is to go.
            let (a, b) = connect(&left, &right);
            let mapping = Mapping::new();
            let target = right.mr(8, Access::REMOTE_ATOMIC);
            let result = mapping.register(&left.pd, Access::LOCAL_WRITE);
            mapping.vanish(how, 0);
            poll_once(&left.cq);
            one(a.post().atomic(op, result.sge(0, 8), target.remote()).wr_id(1).signaled())
                .unwrap();
            expect_terminate(&a, &b, &left, &right, &format!("result of {op:?}, {how:?}"));
            let found = outcomes(&poll_once(&left.cq));
            assert_eq!(found, all([1], WcStatus::LocalProtection), "{op:?}, {how:?}");
        }
    }
}

/// What was sent before the memory vanished is retransmitted as it was: of a Write, and of a Read
/// Response.
#[test]
fn retransmissions_are_intact() {
    const SLOTS: u32 = 8;
    isolate!();
    // The ring takes seven frames; the rest of the first window is lost.
    let config = |host| config(host, DriveMode::Inline).catch_page_faults(true).ring_slots(SLOTS);
    let (left, right) = ring_pair(config(1), config(2)).unwrap();
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    for is_read in [false, true] {
        let (a, b) = connect(&left, &right);
        let mapping = Mapping::new();
        let (fault, other, from, to) =
            if is_read { (&b, &a, &right, &left) } else { (&a, &b, &left, &right) };
        let (source, bytes) = (mapping.register(&from.pd, Access::ALL), pattern(LEN, 3));
        source.write(0, &bytes);
        let sink = to.mr(LEN, Access::ALL);
        if is_read {
            read(&a, 1, sink.sge(0, LEN_32), &source, 0).unwrap();
            left.context.drive();
        } else {
            write(&a, 1, source.sge(0, LEN_32), &sink, 0).unwrap();
        }
        for _ in 0..10 {
            from.context.drive();
        }
        mapping.vanish(Vanish::Protect, 0);
        expect_terminate(fault, other, &left, &right, "retransmission");
        let placed = contents(&sink);
        let intact = placed.iter().zip(&bytes).take_while(|(placed, sent)| placed == sent).count();
        assert!(intact > SLOTS as usize * 1400, "{intact} bytes");
        assert!(placed[intact..].iter().all(|&byte| byte == 0), "behind {intact} bytes");
        poll_once(&left.cq);
        poll_once(&right.cq);
    }
}

/// A method of the region panics, and the process lives.
#[test]
fn access_of_the_owner_panics() {
    isolate!();
    let (left, _right) = catching_endpoints();
    let mapping = Mapping::new();
    let mr = mapping.register(&left.pd, Access::ALL);
    // Not unmapped: what a panic maps could lie there then.
    mapping.vanish(Vanish::Protect, 0);
    let accesses: [fn(&Mr); 7] = [
        |mr| mr.write(8, b"bytes"),
        |mr| mr.read(8, &mut [0; 300]),
        |mr| mr.fill(0, 9, 1),
        |mr| mr.store_release(5, 1),
        |mr| assert_eq!(mr.load_last(5), 0),
        |mr| assert_eq!(mr.load_word(8), 0),
        |mr| assert_eq!(mr.atomic(8, AtomicOp::fetch_add(1)), 0),
    ];
    for (number, access) in accesses.into_iter().enumerate() {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| access(&mr)));
        assert!(result.is_err(), "access {number}");
    }
}

/// The kernel finds it out, whether page faults are caught or not.
#[test]
fn files_are_not_read_into_memory_that_has_vanished() {
    isolate!();
    let (left, _right) = endpoints(DriveMode::Inline);
    let mapping = Mapping::new();
    let mr = mapping.register(&left.pd, Access::ALL);
    let file = tempfile::tempfile().unwrap();
    assert_eq!(mr.pwrite(&file, 0, LEN, 0).unwrap(), LEN);
    mapping.vanish(Vanish::Protect, PAGE);
    let fault = Some(libc::EFAULT);
    assert_eq!(mr.pread(&file, PAGE, PAGE, 0).unwrap_err().raw_os_error(), fault);
    assert_eq!(mr.pwrite(&file, PAGE, PAGE, 0).unwrap_err().raw_os_error(), fault);
    assert_eq!(mr.pread(&file, 0, 2 * PAGE, 0).unwrap(), PAGE, "what is there");
}
