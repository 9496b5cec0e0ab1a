//! Layout of a connection in memory.

use super::Connection;
use crate::connection::context::Env;
use crate::connection::schedule::ConnId;
use crate::ddp::vec_memory::VecMemory;
use crate::device::test_device::TestDevice;
use crate::slab::Slab;
use crate::verbs::wc::{Completions, CqId, Wc};

/// Bytes of an idle connection, its queue pair not included.
const BUDGET: usize = 932;
/// An entry of the four-tuple table, with one byte of control, at the minimum load.
const TABLE_ENTRY: usize = (size_of::<u32>() + 1) * 16 / 7;
/// An entry of the ready list, which does not shrink.
const READY_ENTRY: usize = 2 * size_of::<ConnId>();

/// Time of its first SYN, in the table.
const AGE: usize = size_of::<u32>();

/// Types of the size that they have over DPDK: a frame is a pointer and a length.
struct TestEnv;

impl Env for TestEnv {
    type Device = TestDevice;
    type Memory = VecMemory;
    type Completions = NullCq;
}

struct NullCq;

impl Completions for NullCq {
    fn push(&mut self, _: CqId, _: Wc) -> bool {
        true
    }
}

#[test]
fn idle_connection_fits_its_budget() {
    // It has no timer and no other memory: records, out-of-order segments and startup state are
    // freed.
    let slot = Slab::<Connection<TestEnv>>::SLOT_LEN;
    let each = slot + TABLE_ENTRY + READY_ENTRY + AGE;
    println!("{each} bytes: {slot} in its slot, {TABLE_ENTRY} by four-tuple, {READY_ENTRY}, {AGE}");
    assert!(each <= BUDGET, "{each} bytes");
}

#[test]
fn tcb_is_cache_line_aligned() {
    type Conn = Connection<TestEnv>;
    assert_eq!((align_of::<Conn>(), core::mem::offset_of!(Conn, tcb)), (64, 0));
    assert_eq!(size_of::<Option<Conn>>(), 896, "14 lines, and no byte says that it is there");
}
