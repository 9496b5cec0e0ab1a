//! What one thread posts while another is in the middle of a pass.

mod support;

use std::sync::{Arc, Mutex};

use ferrowarp::device::{
    self, DeviceSpec, DpdkDevice, DpdkRetained, DpdkRx, DpdkTx, OpenConfig, Opened,
};
use ferrowarp::{Access, Context, DriveMode, Port, WcStatus};
use ferrowarp_proto::device::{Capabilities, Device, Pool};
use support::*;

/// What happens elsewhere at the moment in which the port is looked at.
type Meanwhile = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A port at which something happens just before a burst is taken.
struct Busy {
    inner: DpdkDevice,
    meanwhile: Meanwhile,
}

impl Port for Busy {}

impl Device for Busy {
    type Rx = DpdkRx;
    type Tx = DpdkTx;
    type Retained = DpdkRetained;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        if let Some(act) = self.meanwhile.lock().unwrap().take() {
            act();
        }
        self.inner.receive(burst, max)
    }

    fn allocate(&mut self, pool: Pool) -> Option<DpdkTx> {
        self.inner.allocate(pool)
    }

    fn transmit_room(&self) -> usize {
        self.inner.transmit_room()
    }

    fn transmit(&mut self, frame: DpdkTx) {
        self.inner.transmit(frame);
    }

    fn flush(&mut self) {
        self.inner.flush();
    }
}

#[test]
fn a_receive_posted_before_the_message_arrives_is_there_in_time() {
    let Ok(Opened::Pair(left, right)) = device::open(&DeviceSpec::Ring, &OpenConfig::default())
    else {
        panic!("no pair of rings");
    };
    let meanwhile = Meanwhile::default();
    let left = Busy { inner: left, meanwhile: Meanwhile::default() };
    let right = Busy { inner: right, meanwhile: Arc::clone(&meanwhile) };
    let configs = [config(1, DriveMode::Inline), config(2, DriveMode::Inline)];
    let [left_config, right_config] = configs;
    let (left, right) = Context::joined((left, left_config), (right, right_config)).unwrap();
    let (left, right) = (End::new(left), End::new(right));
    let (a, b) = connect(&left, &right);
    let inbox = right.mr(64, Access::LOCAL_WRITE);
    let b = Arc::new(b);
    for wr_id in 0..3 {
        // The message is on its way, and the pass that will find it has begun.
        a.post_send(send(wr_id, inline(b"now"))).unwrap();
        left.context.drive();
        let (poster, buffer) = (Arc::clone(&b), recv(wr_id, inbox.sge(0, 64)));
        *meanwhile.lock().unwrap() = Some(Box::new(move || poster.post_recv(buffer).unwrap()));
        let got = right.completions(&left, 1);
        assert_eq!((got[0].wr_id, got[0].status), (wr_id, WcStatus::Success));
        left.completions(&right, 1);
    }
}
