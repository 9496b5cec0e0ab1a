//! A DPDK port of the runtime as a device of smoltcp, without a copy: smoltcp writes to the mbuf
//! that is sent, and reads the one that was received.

use std::collections::VecDeque;

use ferrowarp::device::{Device as _, DpdkDevice, DpdkRx, RxFrame as _, TxClass, TxFrame as _};
use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

/// Frames received at once.
const BURST: usize = 32;
const HEADER_LEN: usize = 14;

/// The port, which sends what smoltcp has written when it is flushed, and frames received and not
/// yet processed.
pub(crate) struct Port {
    pub(crate) device: DpdkDevice,
    burst: Vec<DpdkRx>,
    received: VecDeque<DpdkRx>,
}

impl Port {
    pub(crate) fn new(device: DpdkDevice) -> Self {
        let (burst, received) = (Vec::with_capacity(BURST), VecDeque::with_capacity(BURST));
        Self { device, burst, received }
    }

    fn can_send(&self) -> bool {
        self.device.data_avail_count() > 0 && self.device.tx_free_count() > 0
    }
}

impl phy::Device for Port {
    type RxToken<'a> = RxToken;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(RxToken, TxToken<'_>)> {
        // smoltcp may answer each frame.
        if !self.can_send() {
            return None;
        }
        if self.received.is_empty() {
            self.device.receive(&mut self.burst, BURST);
            self.received.extend(self.burst.drain(..));
        }
        let frame = self.received.pop_front()?;
        Some((RxToken(frame), TxToken(&mut self.device)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken<'_>> {
        self.can_send().then_some(TxToken(&mut self.device))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit =
            usize::from(self.device.capabilities().mtu) + HEADER_LEN;
        // As our stack does over `ring`, whose frames stay in memory.
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }
}

pub(crate) struct RxToken(DpdkRx);

impl phy::RxToken for RxToken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        // Over `ring` a frame is one segment.
        f(self.0.head())
    }
}

/// Permission to send a frame.
pub(crate) struct TxToken<'a>(&'a mut DpdkDevice);

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let frame = self.0.allocate(TxClass::Data);
        let mut frame = frame.expect("an mbuf was free when the token was made");
        let result = f(&mut frame.buf_mut()[..len]);
        frame.set_len(len);
        self.0.transmit(frame);
        result
    }
}
