//! The guest: a Linux with siw, behind `scripts/siw-guest --serve`, or one with network cards for
//! the stack too, behind `scripts/nic-guest --serve`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::host_program_build;
use crate::interop::case::{CASE_TIMEOUT, failure};
use crate::process::program;

/// Timeout of a boot.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);

/// Hardware of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestKind {
    /// One card, for siw.
    Siw,
    /// Further ones for the stack: [`GUEST_CARDS`].
    Cards {
        /// The IOMMU is on.
        has_iommu: bool,
    },
}

/// Cards for the stack, as `scripts/nic-guest --card` takes them.
pub const GUEST_CARDS: [&str; 4] = ["virtio", "virtio:queues=2", "e1000e", "vmxnet3"];

/// Returns the PCI address of a card of [`GUEST_CARDS`].
#[must_use]
pub fn card_bdf(number: usize) -> String {
    format!("0000:{:02x}:00.0", number + 1)
}

/// A guest and its network; both are removed on drop.
pub struct Guest {
    script: Child,
    shared: Arc<GuestShared>,
    reader: Option<JoinHandle<()>>,
}

struct GuestShared {
    /// `None` once the guest is dropped.
    commands_in: Mutex<Option<ChildStdin>>,
    state: Mutex<GuestState>,
    changed: Condvar,
    next: AtomicU64,
}

#[derive(Default)]
struct GuestState {
    /// Properties from the last line `ready`; `None` while the guest is down.
    ready: Option<BTreeMap<String, String>>,
    has_ended: bool,
    commands: BTreeMap<u64, Output>,
}

#[derive(Clone, Default)]
struct Output {
    text: String,
    code: Option<i32>,
}

/// Result of a command in the guest.
#[derive(Clone, Debug)]
pub struct GuestResult {
    /// Exit code; `None` if it was killed at its timeout, or ended with the guest.
    pub code: Option<i32>,
    /// Its output.
    pub output: String,
}

/// A command in the guest; it is killed on drop.
pub struct GuestCommand {
    shared: Arc<GuestShared>,
    id: u64,
}

impl GuestShared {
    fn lock_state(&self) -> MutexGuard<'_, GuestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_command(&self, line: &str) -> io::Result<()> {
        let mut commands_in = self.commands_in.lock().unwrap_or_else(PoisonError::into_inner);
        let commands_in = commands_in.as_mut().ok_or_else(|| failure("the guest has ended"))?;
        writeln!(commands_in, "{line}")?;
        commands_in.flush()
    }

    /// Waits until `found` returns a value.
    fn wait<T>(
        &self,
        timeout: Duration,
        mut found: impl FnMut(&mut GuestState) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock_state();
        loop {
            if let Some(value) = found(&mut state) {
                return Some(value);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn read(&self, from: ChildStdout) {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            self.lock_state().on_line(&String::from_utf8_lossy(&line));
            self.changed.notify_all();
        }
        self.lock_state().has_ended = true;
        self.changed.notify_all();
    }
}

impl GuestState {
    fn on_line(&mut self, line: &str) {
        if let Some(ready) = line.strip_prefix("ready ") {
            let pairs = ready.split(' ').filter_map(|word| word.split_once('='));
            self.ready = Some(pairs.map(|(key, value)| (key.into(), value.into())).collect());
            return;
        }
        if line == "gone" {
            self.ready = None;
            return;
        }
        let mut words = line.splitn(3, ' ');
        let (Some(id), Some(kind)) = (words.next(), words.next()) else { return };
        let Some(output) = id.parse().ok().and_then(|id: u64| self.commands.get_mut(&id)) else {
            return;
        };
        let rest = words.next().unwrap_or_default();
        match kind {
            "|" => {
                output.text.push_str(rest);
                output.text.push('\n');
            }
            "exit" => output.code = rest.parse().ok(),
            _ => {}
        }
    }
}

impl Guest {
    /// Boots a guest; the script's messages go to the file `log`.
    ///
    /// # Errors
    /// If the guest does not boot in time.
    pub fn boot(log: &Path, kind: GuestKind) -> io::Result<Self> {
        let GuestKind::Cards { has_iommu } = kind else {
            return Self::boot_with(log, &[]);
        };
        let mut command = Command::new(crate::workspace::root().join("scripts/nic-guest"));
        let iwping = program("iwping").ok_or_else(|| failure("iwping was not built"))?;
        command.env("FERROWARP_BIN", iwping.parent().unwrap_or(&iwping)).arg("--siw");
        for card in GUEST_CARDS {
            command.args(["--card", card]);
        }
        if !has_iommu {
            command.arg("--no-iommu");
        }
        let both = program("examples/two_devices");
        let both = both.ok_or_else(|| failure("examples/two_devices was not built"))?;
        let host =
            host_program_build::build()?.ok_or_else(|| failure(host_program_build::BUILD_HINT))?;
        command.arg("--with").arg(both).arg("--with").arg(host);
        Self::serve(command, log)
    }

    /// As [`Guest::boot`] with siw alone, with these options of `scripts/siw-guest`.
    ///
    /// # Errors
    /// If the guest does not boot in time.
    pub fn boot_with(log: &Path, options: &[&str]) -> io::Result<Self> {
        let mut command = Command::new(crate::workspace::root().join("scripts/siw-guest"));
        command.args(options);
        Self::serve(command, log)
    }

    fn serve(mut command: Command, log: &Path) -> io::Result<Self> {
        command.arg("--serve").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.stderr(File::create(log)?).spawn()?;
        let (commands_in, output) = (script.stdin.take(), script.stdout.take());
        let output = output.ok_or_else(|| failure("no pipe"))?;
        let shared = Arc::new(GuestShared {
            commands_in: Mutex::new(commands_in),
            state: Mutex::default(),
            changed: Condvar::new(),
            next: AtomicU64::new(1),
        });
        let reader_shared = Arc::clone(&shared);
        let reader = Some(std::thread::spawn(move || reader_shared.read(output)));
        let guest = Self { script, shared, reader };
        guest.await_ready().map_err(|error| {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            failure(format!("{error}: {}", log.trim()))
        })?;
        Ok(guest)
    }

    fn await_ready(&self) -> io::Result<()> {
        let up = |state: &mut GuestState| {
            if state.ready.is_some() { Some(true) } else { state.has_ended.then_some(false) }
        };
        match self.shared.wait(BOOT_TIMEOUT, up) {
            Some(true) => Ok(()),
            Some(false) => Err(failure("the guest's script has ended")),
            None => Err(failure("the guest did not boot in time")),
        }
    }

    /// Returns a property: `namespace`, `interface` (siw's, on the host), `qemu` (the PID),
    /// `kernel`, `accel`; empty for any other key, and while the guest is down.
    #[must_use]
    pub fn property(&self, key: &str) -> String {
        let state = self.shared.lock_state();
        state.ready.as_ref().and_then(|ready| ready.get(key)).cloned().unwrap_or_default()
    }

    /// True while it is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.shared.lock_state().ready.is_some()
    }

    /// Runs a command of QEMU's monitor, such as `set_link card0 off`.
    ///
    /// # Errors
    /// If the guest has ended.
    pub fn monitor(&self, command: &str) -> io::Result<()> {
        self.shared.send_command(&format!("monitor {command}"))
    }

    /// Kills the guest without a shutdown, and waits for its end. The network stays.
    ///
    /// # Errors
    /// If the guest does not end in time.
    pub fn power_off(&self) -> io::Result<()> {
        self.shared.send_command("cut")?;
        let stopped = self.shared.wait(CASE_TIMEOUT, |state| state.ready.is_none().then_some(()));
        stopped.ok_or_else(|| failure("the guest did not end in time"))
    }

    /// Boots a new guest in the same network, after [`Guest::power_off`].
    ///
    /// # Errors
    /// If the guest does not boot in time.
    pub fn reboot(&self) -> io::Result<()> {
        self.shared.send_command("boot")?;
        self.await_ready()
    }

    /// Starts a command line of the guest's shell.
    ///
    /// # Errors
    /// If the guest has ended.
    pub fn start(&self, command: &str) -> io::Result<GuestCommand> {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        self.shared.lock_state().commands.insert(id, Output::default());
        let started = GuestCommand { shared: Arc::clone(&self.shared), id };
        self.shared.send_command(&format!("run {id} {command}"))?;
        Ok(started)
    }

    /// Runs a command line to its end, at most for `timeout`.
    ///
    /// # Errors
    /// If the guest has ended.
    pub fn run(&self, command: &str, timeout: Duration) -> io::Result<GuestResult> {
        Ok(self.start(command)?.finish(timeout))
    }

    /// Runs a command line that must succeed.
    ///
    /// # Errors
    /// With its output, unless it exited with code 0.
    pub fn run_ok(&self, command: &str) -> io::Result<String> {
        let result = self.run(command, CASE_TIMEOUT)?;
        if result.code == Some(0) {
            return Ok(result.output);
        }
        Err(failure(format!("guest: {command}: {:?}: {}", result.code, result.output.trim())))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The script exits at the end of its standard input, and removes everything.
        *self.shared.commands_in.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = self.script.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl GuestCommand {
    fn output_now(&self) -> Output {
        self.shared.lock_state().commands.get(&self.id).cloned().unwrap_or_default()
    }

    /// Returns the output so far.
    #[must_use]
    pub fn output(&self) -> String {
        self.output_now().text
    }

    /// True once it has exited, or the guest has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.output_now().code.is_some() || self.shared.lock_state().ready.is_none()
    }

    /// Waits until the output contains `text`.
    ///
    /// # Errors
    /// With the output so far, at the timeout or if the command ends without the text.
    pub fn wait_for(&self, text: &str, timeout: Duration) -> io::Result<()> {
        let found = self.shared.wait(timeout, |state| {
            let is_up = state.ready.is_some();
            let output = state.commands.get(&self.id)?;
            let contains = output.text.contains(text);
            (contains || output.code.is_some() || !is_up).then_some(contains)
        });
        if found == Some(true) {
            return Ok(());
        }
        Err(failure(format!("guest: no '{text}' in: {}", self.output().trim())))
    }

    /// Kills the command and all its children.
    ///
    /// # Errors
    /// If the guest has ended.
    pub fn kill(&self) -> io::Result<()> {
        self.shared.send_command(&format!("kill {}", self.id))
    }

    /// Waits for its end; kills it after `timeout`.
    #[must_use]
    pub fn finish(self, timeout: Duration) -> GuestResult {
        let code = self.shared.wait(timeout, |state| {
            let is_up = state.ready.is_some();
            let code = state.commands.get(&self.id)?.code;
            (code.is_some() || !is_up).then_some(code)
        });
        GuestResult { code: code.flatten(), output: self.output() }
    }
}

impl Drop for GuestCommand {
    fn drop(&mut self) {
        let runs = {
            let state = self.shared.lock_state();
            state.ready.is_some()
                && state.commands.get(&self.id).is_some_and(|output| output.code.is_none())
        };
        if runs && self.kill().is_ok() {
            // It must not run into the next case.
            let _ = self.shared.wait(Duration::from_secs(10), |state| {
                let is_up = state.ready.is_some();
                let output = state.commands.get(&self.id)?;
                (output.code.is_some() || !is_up).then_some(())
            });
        }
        self.shared.lock_state().commands.remove(&self.id);
    }
}
