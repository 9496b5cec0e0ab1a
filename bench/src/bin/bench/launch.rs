//! A server and a client as two processes on a core each, in network namespaces of their own.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ferrowarp_tests::netns::{Namespace, ip};
use ferrowarp_tests::process::{self, Running, TempDir, temp_dir};

use crate::iwperf::{finish, last_line};

/// Congestion control of the kernel: the default of Linux, whatever that of this host.
pub(crate) const CONGESTION_CONTROL: &str = "cubic";
/// Time until a server listens, or a command of the set-up has ended.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time allowed for a client beyond its measured time.
const RUN_TIMEOUT_MARGIN: Duration = Duration::from_secs(30);
/// Interfaces of server and client over veth.
const VETH: [&str; 2] = ["fwp0", "fwp1"];
/// Offloads of the kernel that a wire of that MTU would not have, in ethtool's words.
const OFFLOADS: [(&str, &str); 5] = [
    ("tx", "tx-checksumming"),
    ("rx", "rx-checksumming"),
    ("tso", "tcp-segmentation-offload"),
    ("gso", "generic-segmentation-offload"),
    ("gro", "generic-receive-offload"),
];

/// Network between a server and a client.
pub(crate) struct Network {
    /// Of the server, and of the client.
    namespaces: [Rc<Namespace>; 2],
    pub(crate) interfaces: [&'static str; 2],
    /// Address of the server (benchmark range).
    pub(crate) address: &'static str,
    cores: [usize; 2],
    dir: TempDir,
}

impl Network {
    /// Creates a network of namespaces whose interfaces have their addresses.
    pub(crate) fn new(
        namespaces: [Rc<Namespace>; 2],
        interfaces: [&'static str; 2],
        address: &'static str,
        cores: [usize; 2],
    ) -> Result<Self> {
        Ok(Self { namespaces, interfaces, address, cores, dir: temp_dir()? })
    }

    /// The loopback interface of one namespace.
    pub(crate) fn loopback(cores: [usize; 2]) -> Result<Self> {
        const ADDRESS: &str = "198.18.0.1";
        let namespace = Rc::new(Namespace::new()?);
        let name = namespace.name();
        ip(&["-n", name, "addr", "add", &format!("{ADDRESS}/32"), "dev", "lo"])?;
        // On the route: a namespace may not set every congestion control as its default.
        let route = ["route", "replace", "local", ADDRESS, "dev", "lo", "table", "local"];
        let control = ["src", ADDRESS, "congctl", CONGESTION_CONTROL];
        ip(&[&["-n", name], &route[..], &control[..]].concat())?;
        Self::new([Rc::clone(&namespace), namespace], ["lo"; 2], ADDRESS, cores)
    }

    /// A veth pair between two namespaces with this MTU, without the offloads that make its packets
    /// longer or leave out their checksums.
    pub(crate) fn veth(cores: [usize; 2], mtu: u16) -> Result<Self> {
        const ADDRESSES: [&str; 2] = ["198.18.66.1", "198.18.66.2"];
        let namespaces = [Rc::new(Namespace::new()?), Rc::new(Namespace::new()?)];
        let [server, client] = namespaces.each_ref().map(|namespace| namespace.name());
        let [first, second] = VETH;
        ip(&["-n", server, "link", "add", first, "type", "veth", "peer", second, "netns", client])?;
        for ((name, interface), address) in [server, client].into_iter().zip(VETH).zip(ADDRESSES) {
            configure(name, interface, address, &["mtu", &mtu.to_string()])?;
        }
        Self::new(namespaces.clone(), VETH, ADDRESSES[0], cores)
    }

    /// Describes MTU and offloads of both interfaces as the kernel reports them.
    pub(crate) fn read_back(&self) -> Result<String> {
        let mut ends = Vec::new();
        for (namespace, interface) in self.namespaces.iter().zip(self.interfaces) {
            let path = format!("/sys/class/net/{interface}/mtu");
            let mtu = in_namespace(namespace.name(), "cat", &[&path])?;
            let features = in_namespace(namespace.name(), "ethtool", &["-k", interface])?;
            let states = OFFLOADS.map(|(short, long)| {
                let state = features.lines().find_map(|line| line.strip_prefix(long));
                let state = state.and_then(|state| state.split_whitespace().nth(1));
                format!("{short} {}", state.unwrap_or("unknown"))
            });
            ends.push(format!("MTU {}, {}", mtu.trim(), states.join(", ")));
        }
        ends.dedup();
        Ok(ends.join("; client: "))
    }

    /// Returns a folder for files of a run.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a command in the namespace and on the core of the server (0) or client (1).
    fn command(&self, end: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        // Both `ip` and `taskset` become the program: its PID is theirs.
        command.args(["netns", "exec", self.namespaces[end].name()]);
        command.args(["taskset", "-c", &self.cores[end].to_string()]).arg(program);
        command
    }

    /// Runs server and client; returns the client's output. The server is killed after that.
    pub(crate) fn run(&self, pair: &Pair, seconds: f64) -> Result<String> {
        let mut server = self.command(0, &pair.program);
        server.args(&pair.server).envs(pair.environment.clone());
        let mut server = Running::start(&mut server, self.dir.path().join("server.log"))
            .with_context(|| format!("cannot start {}", pair.program))?;
        let is_ready = || has_listener(self.namespaces[0].name(), pair.port);
        server.wait_until(is_ready, READY_TIMEOUT).context("the server does not listen")?;
        let mut client = self.command(1, &pair.program);
        client.args(&pair.client).envs(pair.environment.clone());
        let client = Running::start(&mut client, self.dir.path().join("client.log"))?;
        let limit = RUN_TIMEOUT_MARGIN + Duration::from_secs_f64(seconds);
        let said = || format!("the server: {}", last_line(&server.output().unwrap_or_default()));
        finish(client, limit).with_context(said)
    }
}

/// Sets options of an interface, switches off its segmentation and checksum offloads, and gives it
/// an address.
pub(crate) fn configure(
    namespace: &str,
    interface: &str,
    address: &str,
    options: &[&str],
) -> Result<()> {
    let on = |arguments: &[&str]| ip(&[&["-n", namespace], arguments].concat());
    on(&[&["link", "set", interface], options].concat())?;
    let switches = OFFLOADS.iter().flat_map(|&(short, _)| [short, "off"]);
    let arguments: Vec<&str> = ["-K", interface].into_iter().chain(switches).collect();
    in_namespace(namespace, "ethtool", &arguments)?;
    on(&["addr", "add", &format!("{address}/24"), "dev", interface])?;
    on(&["link", "set", interface, "up"])?;
    // On the route: a namespace may not set every congestion control as its default.
    let (net, _) = address.rsplit_once('.').context("an IPv4 address")?;
    let route = format!(
        "route replace {net}.0/24 dev {interface} proto kernel scope link src {address} congctl \
         {CONGESTION_CONTROL}"
    );
    on(&route.split(' ').collect::<Vec<_>>())?;
    Ok(())
}

/// Runs a program in a namespace to its end; returns its output.
pub(crate) fn in_namespace(namespace: &str, program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, program]).args(arguments);
    let result = process::run(&mut command, READY_TIMEOUT)?;
    ensure!(result.success(), "{program}: {}", last_line(&result.output));
    Ok(result.output)
}

/// A program that is both server and client.
pub(crate) struct Pair {
    program: String,
    server: Vec<String>,
    client: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Port on which the server listens.
    port: u16,
}

impl Pair {
    /// A program with the arguments of both, separated by spaces.
    pub(crate) fn new(program: &str, server: &str, client: &str, port: u16) -> Self {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        let (server, client) = (words(server), words(client));
        Self { program: program.to_owned(), server, client, environment: vec![], port }
    }
}

/// Returns the version that a program prints: the first word with a digit and a period in it.
pub(crate) fn version(program: &str, arguments: &[&str], package: &str) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|_| format!("absent: apt-get install {package}"))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    Ok(version_in(&text).unwrap_or("unknown").to_owned())
}

fn version_in(text: &str) -> Option<&str> {
    let is_version =
        |word: &&str| word.contains('.') && word.contains(|c: char| c.is_ascii_digit());
    text.split([' ', '\n', '#']).find(is_version)
}

/// True if a socket listens on a TCP port in a namespace.
fn has_listener(namespace: &str, port: u16) -> bool {
    let found = in_namespace(namespace, "ss", &["-Hltn", &format!("sport = :{port}")]);
    found.is_ok_and(|found| !found.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_found_in_what_programs_print() {
        assert_eq!(version_in("# Version 1.13.1\n# Git branch"), Some("1.13.1"));
        assert_eq!(version_in("iperf 3.12 (cJSON 1.7.15)\n"), Some("3.12"));
        assert_eq!(version_in("sockperf, version 3.7-no.git\n"), Some("3.7-no.git"));
        assert_eq!(version_in("fi_info: 1.17.0\n"), Some("1.17.0"));
        let absent = version("no-such-program", &[], "some-package").unwrap_err();
        assert_eq!(absent, "absent: apt-get install some-package");
    }
}
