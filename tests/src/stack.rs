//! The stack on a kernel interface, ready for a test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ferrowarp::{
    Access, Config, Context, Cq, DriveMode, InterfaceAddress, Mr, Operation, Payload, Pd, Qp,
    QpOptions, RecvWr, SendWr, Sge, Stag, Wc, WcStatus,
};

use crate::netns;

/// Address of the stack.
pub const STACK: Ipv4Addr = Ipv4Addr::new(198, 18, 7, 2);
/// Address of the kernel.
pub const KERNEL: Ipv4Addr = Ipv4Addr::new(198, 18, 7, 1);
/// IPv6 address of the stack (benchmark range).
pub const STACK_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 7, 0, 0, 0, 2);
/// IPv6 address of the kernel.
pub const KERNEL_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 7, 0, 0, 0, 1);
/// How long any single wait lasts before it is a failure.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Receive buffers a queue pair of [`Stack::qp`] can hold.
pub const RECV_COUNT: usize = 16;

/// A context on a tap interface, driven by its helper thread, with one protection domain and one
/// completion queue.
pub struct Stack {
    /// The context.
    pub context: Context,
    /// Its protection domain.
    pub pd: Pd,
    /// Its completion queue.
    pub cq: Cq,
}

impl Stack {
    /// Opens `tap:interface` and gives the kernel's side an address. Call inside a namespace.
    ///
    /// # Panics
    /// If anything of it fails.
    #[must_use]
    pub fn on_tap(interface: &str) -> Self {
        Self::on_tap_with(interface, |_| {})
    }

    /// As [`Stack::on_tap`], with other settings.
    ///
    /// # Panics
    /// If anything of it fails.
    #[must_use]
    pub fn on_tap_with(interface: &str, change: impl FnOnce(&mut Config)) -> Self {
        let device = format!("tap:{interface}").parse().expect("a device's name");
        let mut config = Config::new(device, IpAddr::V4(STACK), prefix_len(STACK.into()));
        change(&mut config);
        let stack = Self::open(config);
        netns::ip(&["addr", "add", &format!("{KERNEL}/24"), "dev", interface]).expect("address");
        netns::ip(&["link", "set", interface, "up"]).expect("up");
        stack
    }

    /// As [`Stack::on_tap`], with an IPv6 address beside, and the kernel's side too. With a VLAN
    /// the addresses of the kernel are on an interface of their own, `INTERFACE.VLAN`.
    ///
    /// # Panics
    /// If anything of it fails.
    #[must_use]
    pub fn on_tap_dual_stack(interface: &str, vlan: Option<u16>) -> Self {
        let device = format!("tap:{interface}").parse().expect("a device's name");
        let mut config = Config::new(device, IpAddr::V4(STACK), 24);
        config.addresses.push(InterfaceAddress { ip: STACK_V6.into(), prefix_len: 64 });
        config.vlan = vlan;
        let stack = Self::open(config);
        netns::ip(&["link", "set", interface, "up"]).expect("up");
        let mut on = interface.to_owned();
        if let Some(vlan) = vlan {
            on = format!("{interface}.{vlan}");
            let id = vlan.to_string();
            netns::ip(&["link", "add", "link", interface, "name", &on, "type", "vlan", "id", &id])
                .expect("a VLAN");
            netns::ip(&["link", "set", &on, "up"]).expect("up");
        }
        netns::ip(&["addr", "add", &format!("{KERNEL}/24"), "dev", &on]).expect("address");
        // No waiting for duplicate address detection.
        netns::ip(&["-6", "addr", "add", &format!("{KERNEL_V6}/64"), "dev", &on, "nodad"])
            .expect("address");
        stack
    }

    /// Opens any device but `ring`, with `address` and the prefix of [`prefix_len`].
    ///
    /// # Panics
    /// If it cannot be opened.
    #[must_use]
    pub fn on_device(device: &str, address: impl Into<IpAddr>) -> Self {
        let device = device.parse().expect("a device's name");
        let address = address.into();
        Self::open(Config::new(device, address, prefix_len(address)))
    }

    fn open(mut config: Config) -> Self {
        config.drive = DriveMode::Helper;
        let context = Context::open(config).expect("the device can be opened");
        let pd = context.alloc_pd();
        let cq = context.create_cq(1024).expect("within the limits");
        Self { context, pd, cq }
    }

    /// `len` zero bytes, registered.
    ///
    /// # Panics
    /// If there is no memory.
    #[must_use]
    pub fn alloc_mr(&self, len: usize, access: Access) -> Mr {
        self.alloc_mr_in(&self.pd, len, access)
    }

    /// `len` zero bytes, registered in another protection domain.
    ///
    /// # Panics
    /// If there is no memory.
    #[must_use]
    pub fn alloc_mr_in(&self, pd: &Pd, len: usize, access: Access) -> Mr {
        let buffer = self.context.allocate(len).expect("memory");
        pd.register(buffer, access).expect("a region")
    }

    /// An idle queue pair.
    ///
    /// # Panics
    /// If there are too many.
    #[must_use]
    pub fn create_qp(&self) -> Qp {
        let options = QpOptions {
            send_cq: &self.cq,
            recv_cq: &self.cq,
            max_send_wr: 64,
            max_recv_wr: RECV_COUNT,
        };
        self.pd.create_qp(&self.context, &options).expect("a queue pair")
    }

    /// The next `count` completions.
    ///
    /// # Panics
    /// If they do not come.
    #[must_use]
    pub fn completions(&self, count: usize) -> Vec<Wc> {
        let mut found = Vec::with_capacity(count);
        let deadline = Instant::now() + TIMEOUT;
        while found.len() < count {
            if self.cq.poll(&mut found) == 0 {
                assert!(Instant::now() < deadline, "{count} completions, got {found:?}");
                std::thread::yield_now();
            }
        }
        assert_eq!(found.len(), count);
        found
    }

    /// The next completion, which has to be a success.
    ///
    /// # Panics
    /// If it does not come or is no success.
    #[must_use]
    pub fn expect_success(&self) -> Wc {
        let wc = self.completions(1)[0];
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc
    }
}

/// Bits of the prefix of the tests' addresses.
#[must_use]
pub const fn prefix_len(address: IpAddr) -> u8 {
    if address.is_ipv4() { 24 } else { 64 }
}

/// A gathered payload of one piece.
#[must_use]
pub fn gather(sge: Sge) -> Payload {
    Payload::Gather([sge].into_iter().collect())
}

/// Posts a signalled request.
///
/// # Panics
/// If it is refused.
pub fn post(qp: &Qp, wr_id: u64, operation: Operation) {
    qp.post_send(SendWr { wr_id, operation, signaled: true, fence: false }).expect("posted");
}

/// Posts a Send.
///
/// # Panics
/// If it is refused.
pub fn post_send(qp: &Qp, wr_id: u64, payload: Payload) {
    post(qp, wr_id, Operation::Send { payload, solicited: false, invalidate: None });
}

/// Posts an RDMA Write.
///
/// # Panics
/// If it is refused.
pub fn post_write(qp: &Qp, wr_id: u64, source: Sge, rkey: Stag, remote: u64) {
    post(qp, wr_id, Operation::Write { payload: gather(source), rkey, remote });
}

/// Posts an RDMA Read.
///
/// # Panics
/// If it is refused.
pub fn post_read(qp: &Qp, wr_id: u64, sink: Sge, rkey: Stag, remote: u64) {
    post(qp, wr_id, Operation::Read { sink, rkey, remote });
}

/// Posts a receive buffer.
///
/// # Panics
/// If it is refused.
pub fn post_recv(qp: &Qp, wr_id: u64, sge: Sge) {
    qp.post_recv(RecvWr { wr_id, sg_list: [sge].into_iter().collect() }).expect("posted");
}
