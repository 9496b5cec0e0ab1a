//! The stack on a kernel interface, set up for a test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ferrowarp::{
    Access, Config, Context, Cq, DriveMode, InterfaceAddress, Mr, Pd, Qp, QpOptions, RemoteAddr,
    Sge, Stag, Wc, WcStatus, WqePayload,
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
/// Timeout of each wait.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Length of the receive queue of [`Stack::create_qp`].
pub const RECV_COUNT: usize = 16;

/// A context on a tap interface, driven by its helper threads unless the configuration is changed,
/// with one protection domain and one completion queue.
pub struct Stack {
    /// The context.
    pub context: Context,
    /// Its protection domain.
    pub pd: Pd,
    /// Its completion queue.
    pub cq: Cq,
}

impl Stack {
    /// Opens `tap:interface` and sets the address of the kernel's interface. Call inside a
    /// namespace.
    ///
    /// # Panics
    /// If any step fails.
    #[must_use]
    pub fn on_tap(interface: &str) -> Self {
        Self::on_tap_with(interface, |_| {})
    }

    /// As [`Stack::on_tap`], with a changed configuration.
    ///
    /// # Panics
    /// If any step fails.
    #[must_use]
    pub fn on_tap_with(interface: &str, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = new_config(&format!("tap:{interface}"), STACK.into());
        change(&mut config);
        let stack = Self::open(config);
        netns::ip(&["addr", "add", &format!("{KERNEL}/24"), "dev", interface]).expect("address");
        netns::ip(&["link", "set", interface, "up"]).expect("up");
        stack
    }

    /// As [`Stack::on_tap`], with an additional IPv6 address for stack and kernel. With a VLAN the
    /// addresses of the kernel are on the VLAN interface `INTERFACE.VLAN`.
    ///
    /// # Panics
    /// If any step fails.
    #[must_use]
    pub fn on_tap_dual_stack(interface: &str, vlan: Option<u16>) -> Self {
        let mut config = new_config(&format!("tap:{interface}"), STACK.into());
        config.addresses.push(InterfaceAddress { ip: STACK_V6.into(), prefix_len: 64 });
        config.vlan = vlan;
        let stack = Self::open(config);
        netns::ip(&["link", "set", interface, "up"]).expect("up");
        let mut netdev = interface.to_owned();
        if let Some(vlan) = vlan {
            netdev = format!("{interface}.{vlan}");
            let id = vlan.to_string();
            netns::ip(&[
                "link", "add", "link", interface, "name", &netdev, "type", "vlan", "id", &id,
            ])
            .expect("a VLAN");
            netns::ip(&["link", "set", &netdev, "up"]).expect("up");
        }
        netns::ip(&["addr", "add", &format!("{KERNEL}/24"), "dev", &netdev]).expect("address");
        // Without duplicate address detection.
        netns::ip(&["-6", "addr", "add", &format!("{KERNEL_V6}/64"), "dev", &netdev, "nodad"])
            .expect("address");
        stack
    }

    /// Opens any device except `ring`, with `address` and the prefix of [`prefix_len`].
    ///
    /// # Panics
    /// If it cannot be opened.
    #[must_use]
    pub fn on_device(device: &str, address: impl Into<IpAddr>) -> Self {
        Self::on_device_with(device, address, |_| {})
    }

    /// As [`Stack::on_device`], with a changed configuration.
    ///
    /// # Panics
    /// If it cannot be opened.
    #[must_use]
    pub fn on_device_with(
        device: &str,
        address: impl Into<IpAddr>,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let address = address.into();
        let mut config = new_config(device, address);
        change(&mut config);
        Self::open(config)
    }

    fn open(config: Config) -> Self {
        let context = Context::open(config).expect("the device can be opened");
        let pd = context.alloc_pd();
        let cq = context.create_cq(1024).expect("within the limits");
        Self { context, pd, cq }
    }

    /// Registers `len` zero bytes.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn alloc_mr(&self, len: usize, access: Access) -> Mr {
        self.alloc_mr_in(&self.pd, len, access)
    }

    /// Registers `len` zero bytes in another protection domain.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn alloc_mr_in(&self, pd: &Pd, len: usize, access: Access) -> Mr {
        let buffer = self.context.allocate(len).expect("memory");
        pd.register(buffer, access).expect("a region")
    }

    /// Creates an idle queue pair.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn create_qp(&self) -> Qp {
        let options = QpOptions::new(&self.cq).max_send_wr(64).max_recv_wr(RECV_COUNT);
        self.pd.create_qp(&options).expect("a queue pair")
    }

    /// Waits for the next `count` completions.
    ///
    /// # Panics
    /// At the timeout.
    #[must_use]
    pub fn completions(&self, count: usize) -> Vec<Wc> {
        let mut found = Vec::with_capacity(count);
        let deadline = Instant::now() + TIMEOUT;
        while found.len() < count {
            if self.cq.poll_with(count - found.len(), |wc| found.push(wc)) == 0 {
                assert!(Instant::now() < deadline, "{count} completions, got {found:?}");
                std::thread::yield_now();
            }
        }
        found
    }

    /// Waits for the next completion, which must succeed.
    ///
    /// # Panics
    /// At the timeout, or if it failed.
    #[must_use]
    pub fn expect_success(&self) -> Wc {
        let wc = self.completions(1)[0];
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc
    }
}

/// Returns a configuration with a helper thread.
fn new_config(device: &str, address: IpAddr) -> Config {
    let device = device.parse().expect("a device's name");
    let mut config = Config::new(device, address, prefix_len(address));
    config.drive = DriveMode::Helper;
    config
}

/// Returns the prefix length of the tests' addresses.
#[must_use]
pub const fn prefix_len(address: IpAddr) -> u8 {
    if address.is_ipv4() { 24 } else { 64 }
}

/// Returns a payload of one scatter/gather element.
#[must_use]
pub fn gather(sge: Sge) -> WqePayload<'static> {
    sge.into()
}

/// Posts a signaled Send.
///
/// # Panics
/// If the post fails.
pub fn post_send<'a>(qp: &Qp, wr_id: u64, message: impl Into<WqePayload<'a>>) {
    qp.post().send(message).wr_id(wr_id).signaled().ring().expect("posted");
}

/// Posts a signaled Send of bytes that are copied into the request.
///
/// # Panics
/// If the post fails.
pub fn post_send_inline(qp: &Qp, wr_id: u64, message: &[u8]) {
    qp.post().send_inline(message).wr_id(wr_id).signaled().ring().expect("posted");
}

/// Posts a signaled RDMA Write.
///
/// # Panics
/// If the post fails.
pub fn post_write(qp: &Qp, wr_id: u64, source: Sge, rkey: Stag, addr: u64) {
    let remote = RemoteAddr { addr, rkey };
    qp.post().write(source, remote).wr_id(wr_id).signaled().ring().expect("posted");
}

/// Posts a signaled RDMA Read.
///
/// # Panics
/// If the post fails.
pub fn post_read(qp: &Qp, wr_id: u64, sink: Sge, rkey: Stag, addr: u64) {
    let remote = RemoteAddr { addr, rkey };
    qp.post().read(sink, remote).wr_id(wr_id).signaled().ring().expect("posted");
}

/// Posts a receive buffer.
///
/// # Panics
/// If the post fails.
pub fn post_recv(qp: &Qp, wr_id: u64, sge: Sge) {
    qp.post_recv(wr_id, sge).expect("posted");
}
