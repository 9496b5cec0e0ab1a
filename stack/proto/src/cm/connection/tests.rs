//! Layout of a connection in memory.

use super::Connection;
use crate::cm::env::Env;
use crate::ddp::vec_memory::VecMemory;
use crate::device::{Capabilities, ChecksumMode, Device, TxClass, TxFrame};
use crate::slab::Slab;
use crate::tcp::tests::HeapFrame;
use crate::verbs::wc::{Completions, CqId, Wc};

/// Bytes of an idle connection, its queue pair not included.
const BUDGET: usize = 1024;
/// An entry of the four-tuple table, with one byte of control, at the minimum load.
const TABLE_ENTRY: usize = (size_of::<u32>() + 1) * 16 / 7;
/// An entry of the ready list, which does not shrink.
const READY_ENTRY: usize = 2 * size_of::<u32>();

/// Types of the size that they have over DPDK: a frame is a pointer and a length.
struct TestEnv;

impl Env for TestEnv {
    type Device = NullDevice;
    type Memory = VecMemory;
    type Completions = NullCq;
}

struct NullCq;

impl Completions for NullCq {
    fn push(&mut self, _: CqId, _: Wc) -> bool {
        true
    }
}

/// Device that receives and sends nothing.
struct NullDevice;

impl Device for NullDevice {
    type Rx = HeapFrame;
    type Tx = NullFrame;
    type Retained = HeapFrame;

    fn capabilities(&self) -> Capabilities {
        let checksum = ChecksumMode::Software;
        Capabilities { mac: [0; 6], mtu: 1500, send_mtu: 1500, checksum }
    }

    fn receive(&mut self, _: &mut Vec<HeapFrame>, _: usize) -> usize {
        0
    }

    fn allocate(&mut self, _: TxClass) -> Option<NullFrame> {
        None
    }

    fn tx_free_count(&self) -> usize {
        0
    }

    fn transmit(&mut self, _: NullFrame) {}

    fn flush(&mut self) {}
}

/// Frame that [`NullDevice`] never allocates.
enum NullFrame {}

impl TxFrame for NullFrame {
    type Retained = HeapFrame;

    fn buf_mut(&mut self) -> &mut [u8] {
        match *self {}
    }

    fn set_len(&mut self, _: usize) {}

    fn retain(&mut self) -> HeapFrame {
        match *self {}
    }

    fn request_checksum(&mut self, _: usize, _: usize, _: usize) {}
}

#[test]
fn idle_connection_fits_one_kib() {
    // It has no timer and no other memory: records, out-of-order segments and startup state are
    // freed.
    let slot = Slab::<Connection<TestEnv>>::SLOT_LEN;
    let each = slot + TABLE_ENTRY + READY_ENTRY;
    println!("{each} bytes: {slot} in its slot, {TABLE_ENTRY} by four-tuple, {READY_ENTRY}");
    assert!(each <= BUDGET, "{each} bytes");
}

#[test]
fn tcb_is_cache_line_aligned() {
    type Conn = Connection<TestEnv>;
    assert_eq!((align_of::<Conn>(), core::mem::offset_of!(Conn, tcb)), (64, 0));
    assert_eq!(size_of::<Option<Conn>>(), size_of::<Conn>(), "no byte says that it is there");
}
