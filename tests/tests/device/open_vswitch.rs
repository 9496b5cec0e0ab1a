//! Two stacks on vhost-user ports of Open vSwitch, whose back end polls them: DPDK's library, in
//! another program's hands.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ferrowarp_tests::process::{self, Running, TempDir};
use ferrowarp_tests::{skip, test_name};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Folder in which the packages of Open vSwitch are unpacked, if they are not installed.
const UNPACKED: &str = "FERROWARP_OVS";

/// Open vSwitch, with a bridge between two vhost-user ports.
struct Switch {
    root: PathBuf,
    folder: TempDir,
    programs: Vec<Running>,
}

/// Prefix of the EAL of Open vSwitch.
fn file_prefix() -> String {
    format!("fw-test-ovs-{}", std::process::id())
}

impl Drop for Switch {
    /// Ends its programs before their folder is removed.
    fn drop(&mut self) {
        self.programs.clear();
    }
}

impl Switch {
    /// Returns the folder in which it is installed or unpacked, if it runs.
    fn installed() -> Option<PathBuf> {
        let root = std::env::var_os(UNPACKED).map_or_else(|| PathBuf::from("/"), PathBuf::from);
        let mut daemon = Command::new(root.join(DAEMON));
        let version = process::run(daemon.arg("--version"), TIMEOUT).ok()?;
        (version.success() && root.join(SCHEMA).is_file()).then_some(root)
    }

    fn start(root: PathBuf) -> Self {
        let folder = process::temp_dir().unwrap();
        let mut switch = Self { root, folder, programs: Vec::new() };
        let database = switch.path("conf.db");
        let mut create = switch.command("usr/bin/ovsdb-tool");
        run(create.arg("create").arg(&database).arg(switch.root.join(SCHEMA)));
        let mut server = switch.command("usr/sbin/ovsdb-server");
        server.arg(&database).arg(format!("--remote=punix:{}", switch.path("db.sock").display()));
        switch.run_in_background(&mut server, "ovsdb");
        wait_for_file(&switch.path("db.sock"));
        switch.vsctl("--no-wait init");
        // Without hugepages, as other tests may use them all; and with pools of the ports' sizes,
        // as one for all is first tried with as many mbufs as 800 MiB hold.
        let eal = format!(
            "--no-pci --no-huge --legacy-mem -m 384 --no-telemetry --file-prefix={}",
            file_prefix()
        );
        switch.vsctl("--no-wait set Open_vSwitch . other_config:dpdk-init=true");
        switch.vsctl("--no-wait set Open_vSwitch . other_config:per-port-memory=true");
        let extra = format!("other_config:dpdk-extra={eal:?}");
        run(switch.vsctl_command("--no-wait set Open_vSwitch .").arg(extra));
        let mut daemon = switch.command(DAEMON);
        // DPDK does not remove its runtime folder.
        daemon.env("RUNTIME_DIRECTORY", switch.folder.path());
        daemon.arg(format!("unix:{}", switch.path("db.sock").display()));
        switch.run_in_background(&mut daemon, "vswitchd");
        switch.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev");
        for port in ["left", "right"] {
            let set = format!("-- set Interface {port} type=dpdkvhostuser");
            switch.vsctl(&format!("add-port br0 {port} {set}"));
            wait_for_file(&switch.path(port));
        }
        switch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program of Open vSwitch, with all files in the folder of this test.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.root.join(program));
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"] {
            command.env(variable, self.folder.path());
        }
        command
    }

    fn run_in_background(&mut self, command: &mut Command, name: &str) {
        let log = self.path(&format!("{name}.log"));
        self.programs.push(Running::start(command, log).unwrap());
    }

    fn vsctl_command(&self, arguments: &str) -> Command {
        let mut command = self.command("usr/bin/ovs-vsctl");
        command.arg(format!("--db=unix:{}", self.path("db.sock").display())).arg("--timeout=60");
        command.args(arguments.split(' '));
        command
    }

    fn vsctl(&self, arguments: &str) {
        run(&mut self.vsctl_command(arguments));
    }

    /// A program of the stack on one of the ports.
    fn end(&self, program: &str, arguments: &str, port: &str) -> Command {
        let path = process::program(program).expect("it was looked for before");
        let mut command = Command::new(path);
        command.args(arguments.split(' '));
        command.args(["--dev", &format!("virtio-user:{}", self.path(port).display())]);
        command
    }
}

const DAEMON: &str = "usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "usr/share/openvswitch/vswitch.ovsschema";

fn run(command: &mut Command) -> String {
    let ended = process::run(command, TIMEOUT).unwrap();
    assert!(ended.success(), "{command:?}: {:?}: {}", ended.status, ended.output);
    ended.output
}

fn wait_for_file(path: &Path) {
    let deadline = std::time::Instant::now() + TIMEOUT;
    while !path.exists() {
        assert!(std::time::Instant::now() < deadline, "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn stacks_reach_each_other_through_open_vswitch() {
    let Some(root) = Switch::installed() else {
        return skip("no Open vSwitch with DPDK");
    };
    if ["iwping", "iwperf"].iter().any(|name| process::program(name).is_none()) {
        return skip("no iwping or iwperf; cargo build --profile test --bins");
    }
    if !crate::tap::ready(test_name!()) {
        return;
    }
    let switch = Switch::start(root);
    let server = |program: &str, arguments: &str, ready: &str| {
        let mut command =
            switch.end(program, &format!("server --ip 198.18.0.1/24{arguments}"), "left");
        let mut server =
            Running::start(&mut command, switch.path(&format!("{program}.log"))).unwrap();
        server.wait_for(ready, TIMEOUT).unwrap();
        server
    };
    let client = |program: &str, arguments: &str| {
        run(&mut switch.end(program, &format!("{arguments} --ip 198.18.0.2/24"), "right"))
    };
    let pings = server("iwping", "", "waiting");
    client("iwping", "client 198.18.0.1 -C 10 -S 1000 -V");
    pings.interrupt().unwrap();
    assert!(pings.finish(TIMEOUT).unwrap().status.is_some(), "it ends when it is interrupted");
    // The switch takes another driver on the same ports.
    for test in ["write-bw", "read-bw", "send-bw"] {
        let once = server("iwperf", " --once", "waiting for clients");
        client("iwperf", &format!("{test} 198.18.0.1 --verify -n 50 -s 65536"));
        let ended = once.finish(TIMEOUT).unwrap();
        assert!(ended.success(), "{test}: {:?}: {}", ended.status, ended.output);
    }
}
