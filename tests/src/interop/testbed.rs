//! Testbed of a case: the guest, our programs and the network between them.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::interop::case::{CASE_TIMEOUT, Case, Route, Version, failure};
use crate::interop::guest::{self, Guest, GuestKind};
use crate::netns;
use crate::process::{ProcessResult, Running, program};

const STACK: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const STACK_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1);
const GUEST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2);
const CARD: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 3);
const CARD_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 3);
const SECOND_CARD: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 4);
const SECOND_CARD_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 4);

/// Resources of a case.
pub struct Testbed {
    /// The guest that runs siw.
    pub guest: Guest,
    kind: GuestKind,
    route: Route,
    card: usize,
    /// QEMU's process, and the MTU and netem options that its guest has: to set them again would
    /// take half a second. `None` while they are unknown.
    configured: Option<(String, u16, &'static str)>,
    folder: PathBuf,
    /// Number of programs started so far: each has an interface and a log of its own.
    count: u32,
}

impl Testbed {
    /// Boots the guest, with logs in `folder`.
    ///
    /// # Errors
    /// If the guest does not boot.
    pub fn open(folder: &Path, kind: GuestKind) -> io::Result<Self> {
        let guest = Guest::boot(&folder.join("guest.log"), kind)?;
        let folder = folder.to_path_buf();
        Ok(Self { guest, kind, route: Route::PLAIN, card: 0, configured: None, folder, count: 0 })
    }

    /// Configures the path between both ends for `case`, with logs in `folder` from now on. Reboots
    /// the guest if it has ended.
    ///
    /// # Errors
    /// If a command in the guest fails.
    pub fn configure(&mut self, case: &Case, folder: &Path) -> io::Result<()> {
        let route = case.route;
        self.folder = folder.to_path_buf();
        (self.route, self.card) = (route, case.card);
        if !self.guest.is_up() {
            self.guest.reboot()?;
        }
        self.set_link(true)?;
        if self.has_cards() {
            self.set_card_link(true)?;
        }
        let configured = Some((self.guest.property("qemu"), route.mtu, route.netem));
        if self.configured == configured {
            return Ok(());
        }
        self.configured = None;
        // Removes the previous qdisc; the command fails if there is none.
        self.guest.run("tc qdisc del dev eth0 root", CASE_TIMEOUT)?;
        self.guest.run_ok(&format!("mtu {}", route.mtu))?;
        if !route.netem.is_empty() {
            self.guest.run_ok(&format!("tc qdisc replace dev eth0 root netem {}", route.netem))?;
        }
        self.configured = configured;
        Ok(())
    }

    /// Returns the path between both ends.
    #[must_use]
    pub fn route(&self) -> Route {
        self.route
    }

    /// Returns the stack's address.
    #[must_use]
    pub fn stack_addr(&self) -> IpAddr {
        match self.route.version {
            Version::V4 => STACK.into(),
            Version::V6 => STACK_V6.into(),
        }
    }

    /// Returns the guest's address.
    #[must_use]
    pub fn guest_addr(&self) -> IpAddr {
        match self.route.version {
            Version::V4 => GUEST.into(),
            Version::V6 => GUEST_V6.into(),
        }
    }

    /// Returns the kind of the guest.
    #[must_use]
    pub fn kind(&self) -> GuestKind {
        self.kind
    }

    fn has_cards(&self) -> bool {
        matches!(self.kind, GuestKind::Cards { .. })
    }

    /// Returns the PCI address of the case's card.
    #[must_use]
    pub fn card_bdf(&self) -> String {
        guest::card_bdf(self.card)
    }

    /// Returns the address of the stack over a card in the guest.
    #[must_use]
    pub fn card_addr(&self) -> IpAddr {
        self.card_addrs()[0]
    }

    /// Returns the addresses of the stack over two cards in the guest.
    #[must_use]
    pub fn card_addrs(&self) -> [IpAddr; 2] {
        match self.route.version {
            Version::V4 => [CARD.into(), SECOND_CARD.into()],
            Version::V6 => [CARD_V6.into(), SECOND_CARD_V6.into()],
        }
    }

    /// Returns the address of the stack whose packets are checked, and the interface to capture
    /// them on.
    ///
    /// With a card these are all interfaces: the host may compute the checksums of its packets, and
    /// they have them as they leave the bridge.
    #[must_use]
    pub fn captured(&self) -> (IpAddr, String) {
        if self.has_cards() {
            return (self.card_addr(), "any".into());
        }
        (self.stack_addr(), self.guest.property("interface"))
    }

    /// Returns the command line, for the guest, of a program of the stack over the case's card.
    #[must_use]
    pub fn card_command(&self, name: &str, arguments: &str) -> String {
        let (address, mtu) = (self.card_addr(), self.route.mtu);
        let (bdf, prefix_len) = (self.card_bdf(), self.prefix_len());
        format!("{name} {arguments} --dev pci:{bdf} --mtu {mtu} --address {address}/{prefix_len}")
    }

    fn prefix_len(&self) -> u8 {
        if self.route.version == Version::V4 { 24 } else { 64 }
    }

    /// Sets the link of the case's card up or down.
    ///
    /// # Errors
    /// If the guest has ended.
    pub fn set_card_link(&self, up: bool) -> io::Result<()> {
        self.guest.monitor(&format!("set_link card{} {}", self.card, if up { "on" } else { "off" }))
    }

    /// Unplugs the case's card: the guest's kernel is asked for it.
    ///
    /// # Errors
    /// If the guest has ended.
    pub fn unplug_card(&self) -> io::Result<()> {
        self.guest.monitor(&format!("device_del card{}", self.card))
    }

    /// Returns how many bytes of frames the case's card has sent since the network was made.
    ///
    /// # Errors
    /// If there is no such card.
    pub fn bytes_of_card(&self) -> io::Result<u64> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(), "cat"]);
        command.arg(format!("/sys/class/net/card{}/statistics/rx_bytes", self.card));
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse().map_err(|_| failure("no interface of the card"))
    }

    /// Returns the network namespace of the bridge.
    #[must_use]
    pub fn namespace(&self) -> String {
        self.guest.property("namespace")
    }

    /// Sets the guest's link up or down.
    ///
    /// # Errors
    /// If the guest has ended.
    pub fn set_link(&self, up: bool) -> io::Result<()> {
        let (namespace, interface) = (self.namespace(), self.guest.property("interface"));
        netns::ip(&["-n", &namespace, "link", "set", &interface, if up { "up" } else { "down" }])
    }

    /// Builds the command line of one of our programs in the namespace: `arguments`, separated by
    /// blanks, then its device and address. Returns it with the name of its interface.
    fn command(&mut self, name: &str, arguments: &str) -> io::Result<(Command, String)> {
        let (mut command, interface) = self.in_namespace(name)?;
        command.args(arguments.split_whitespace()).args(self.device_options(&interface));
        Ok((command, interface))
    }

    /// Builds the command line of an unmodified verbs program in the namespace, on the stack.
    fn verbs_command(&mut self, line: &str) -> io::Result<(Command, String)> {
        let (mut command, interface) = self.in_namespace("iwarp-run")?;
        command.args(self.device_options(&interface)).arg("--").args(line.split_whitespace());
        Ok((command, interface))
    }

    /// Begins a command line of one of our programs in the namespace, with a new interface.
    fn in_namespace(&mut self, name: &str) -> io::Result<(Command, String)> {
        let path = program(name).ok_or_else(|| failure(format!("{name} was not built")))?;
        let interface = format!("fw{}", self.count);
        self.count += 1;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace()]).arg(path);
        Ok((command, interface))
    }

    fn device_options(&self, interface: &str) -> [String; 6] {
        let address = format!("{}/{}", self.stack_addr(), self.prefix_len());
        let mtu = self.route.mtu.to_string();
        let device = format!("tap:{interface}");
        ["--dev", &device, "--mtu", &mtu, "--ip", &address].map(String::from)
    }

    /// Starts one of our programs in the namespace.
    ///
    /// # Errors
    /// If it was not built or cannot be started.
    pub fn start(&mut self, name: &str, arguments: &str) -> io::Result<Running> {
        let (mut command, _) = self.command(name, arguments)?;
        Running::start(&mut command, self.log(name))
    }

    /// Starts one of our programs and waits until it prints `ready` and the guest can reach it.
    ///
    /// # Errors
    /// If either does not happen in time.
    pub fn serve(&mut self, name: &str, arguments: &str, ready: &str) -> io::Result<Running> {
        let (mut command, interface) = self.command(name, arguments)?;
        let mut running = Running::start(&mut command, self.log(name))?;
        running.wait_for(ready, CASE_TIMEOUT)?;
        self.await_reachable(&interface)?;
        Ok(running)
    }

    /// Runs an unmodified verbs program on the stack to its end, at most for `timeout`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn run_verbs(&mut self, line: &str, timeout: Duration) -> io::Result<ProcessResult> {
        let (mut command, _) = self.verbs_command(line)?;
        Running::start(&mut command, self.log("iwarp-run"))?.finish(timeout)
    }

    /// Starts an unmodified verbs program as a server, and waits until the guest can reach it and
    /// it has had time to listen: it does not print that it does.
    ///
    /// # Errors
    /// If its interface does not appear in time.
    pub fn serve_verbs(&mut self, line: &str) -> io::Result<Running> {
        let (mut command, interface) = self.verbs_command(line)?;
        let running = Running::start(&mut command, self.log("iwarp-run"))?;
        self.await_reachable(&interface)?;
        std::thread::sleep(Duration::from_millis(300));
        Ok(running)
    }

    /// Waits until an interface is on the bridge.
    fn await_reachable(&self, interface: &str) -> io::Result<()> {
        let namespace = self.namespace();
        let is_on_bridge = || {
            let mut command = Command::new("ip");
            let shown = command.args(["-n", &namespace, "-o", "link", "show", interface]).output();
            shown.is_ok_and(|shown| String::from_utf8_lossy(&shown.stdout).contains("master br0"))
        };
        let deadline = Instant::now() + CASE_TIMEOUT;
        while !is_on_bridge() {
            if Instant::now() > deadline {
                return Err(failure(format!("{interface} is not on the bridge")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Each of our programs has a MAC address of its own.
        self.guest.run_ok("ip neigh flush dev eth0")?;
        Ok(())
    }

    /// Runs one of our programs to its end, at most for `timeout`.
    ///
    /// # Errors
    /// If it was not built or cannot be started.
    pub fn run(
        &mut self,
        name: &str,
        arguments: &str,
        timeout: Duration,
    ) -> io::Result<ProcessResult> {
        self.start(name, arguments)?.finish(timeout)
    }

    /// Runs one of our programs, which must succeed, and returns its output.
    ///
    /// # Errors
    /// With its output, unless it exited with status 0 within `timeout`.
    pub fn run_ok(&mut self, name: &str, arguments: &str, timeout: Duration) -> io::Result<String> {
        let result = self.run(name, arguments, timeout)?;
        if result.success() {
            return Ok(result.output);
        }
        Err(program_error(name, &result))
    }

    fn log(&self, name: &str) -> PathBuf {
        // The name of an example includes its folder.
        let name = name.rsplit('/').next().unwrap_or(name);
        self.folder.join(format!("{name}-{}.log", self.count))
    }
}

/// Kills one of our programs as in a crash: nothing is closed, the peer is not notified.
///
/// # Errors
/// If it has ended already.
pub fn kill(running: Running) -> io::Result<()> {
    let id = running.id();
    if !Path::new(&format!("/proc/{id}/exe")).exists() {
        return Err(failure("our program has ended already"));
    }
    drop(running);
    // DPDK removes it on a regular exit.
    let _ = fs::remove_dir_all(format!("/var/run/dpdk/ferrowarp-{id}"));
    Ok(())
}

/// Returns an error with the exit status of one of our programs and the last line of its output.
#[must_use]
pub fn program_error(name: &str, result: &ProcessResult) -> io::Error {
    let status = result.status.map_or("did not end".to_owned(), |status| status.to_string());
    failure(format!("{name}: {status}: {}", last_line(&result.output)))
}

/// Returns the last line that is not blank.
#[must_use]
pub fn last_line(text: &str) -> &str {
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim()
}
