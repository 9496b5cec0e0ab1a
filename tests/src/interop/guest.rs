//! The guest: a Linux with siw, behind `scripts/siw-guest --serve`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::interop::case::{CASE_TIMEOUT, failure};

/// How long a guest may take to come up.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);

/// A guest and its network; both go when the value does.
pub struct Guest {
    script: Child,
    shared: Arc<GuestShared>,
    reader: Option<JoinHandle<()>>,
}

struct GuestShared {
    /// `None` once there is nothing more to order.
    commands_in: Mutex<Option<ChildStdin>>,
    state: Mutex<GuestState>,
    changed: Condvar,
    next: AtomicU64,
}

#[derive(Default)]
struct GuestState {
    /// What the last line `ready` told; `None` while the guest is not up.
    ready: Option<BTreeMap<String, String>>,
    is_over: bool,
    commands: BTreeMap<u64, Output>,
}

#[derive(Clone, Default)]
struct Output {
    text: String,
    code: Option<i32>,
}

/// How a command in the guest ended.
#[derive(Clone, Debug)]
pub struct GuestResult {
    /// Exit code; `None` if it had to be killed because time ran out, or went with the guest.
    pub code: Option<i32>,
    /// What it wrote.
    pub output: String,
}

/// A command in the guest; it is killed when the value goes.
pub struct GuestCommand {
    shared: Arc<GuestShared>,
    id: u64,
}

impl GuestShared {
    fn lock_state(&self) -> MutexGuard<'_, GuestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_command(&self, line: &str) -> io::Result<()> {
        let mut orders = self.commands_in.lock().unwrap_or_else(PoisonError::into_inner);
        let orders = orders.as_mut().ok_or_else(|| failure("the guest is gone"))?;
        writeln!(orders, "{line}")?;
        orders.flush()
    }

    /// Waits until `found` gives something.
    fn wait<T>(
        &self,
        timeout: Duration,
        mut found: impl FnMut(&mut GuestState) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + timeout;
        let mut answers = self.lock_state();
        loop {
            if let Some(value) = found(&mut answers) {
                return Some(value);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            answers =
                self.changed.wait_timeout(answers, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn read(&self, from: ChildStdout) {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            self.lock_state().on_line(&String::from_utf8_lossy(&line));
            self.changed.notify_all();
        }
        self.lock_state().is_over = true;
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
    /// Boots one, with the script's messages going to the file `log`.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn boot(log: &Path) -> io::Result<Self> {
        let mut command = Command::new(crate::compliance::root().join("scripts/siw-guest"));
        command.arg("--serve").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.stderr(File::create(log)?).spawn()?;
        let (orders, answers) = (script.stdin.take(), script.stdout.take());
        let answers = answers.ok_or_else(|| failure("no pipe"))?;
        let shared = Arc::new(GuestShared {
            commands_in: Mutex::new(orders),
            state: Mutex::default(),
            changed: Condvar::new(),
            next: AtomicU64::new(1),
        });
        let reading = Arc::clone(&shared);
        let reader = Some(std::thread::spawn(move || reading.read(answers)));
        let guest = Self { script, shared, reader };
        guest.await_ready().map_err(|error| {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            failure(format!("{error}: {}", log.trim()))
        })?;
        Ok(guest)
    }

    fn await_ready(&self) -> io::Result<()> {
        let up = |answers: &mut GuestState| {
            if answers.ready.is_some() { Some(true) } else { answers.is_over.then_some(false) }
        };
        match self.shared.wait(BOOT_TIMEOUT, up) {
            Some(true) => Ok(()),
            Some(false) => Err(failure("scripts/siw-guest has ended")),
            None => Err(failure("the guest does not come up")),
        }
    }

    /// What is known of it: `namespace`, `interface` (the host's end of its wire), `qemu` (the
    /// process), `kernel`, `accel`; empty for anything else, and while it is not up.
    #[must_use]
    pub fn property(&self, key: &str) -> String {
        let answers = self.shared.lock_state();
        answers.ready.as_ref().and_then(|facts| facts.get(key)).cloned().unwrap_or_default()
    }

    /// True while it is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.shared.lock_state().ready.is_some()
    }

    /// Takes its power away; returns once it is gone. The network stays.
    ///
    /// # Errors
    /// If it does not go.
    pub fn power_off(&self) -> io::Result<()> {
        self.shared.send_command("cut")?;
        let gone = self.shared.wait(CASE_TIMEOUT, |answers| answers.ready.is_none().then_some(()));
        gone.ok_or_else(|| failure("the guest does not go"))
    }

    /// Boots a new one in the same network, after [`Guest::power_off`].
    ///
    /// # Errors
    /// If it does not come up.
    pub fn reboot(&self) -> io::Result<()> {
        self.shared.send_command("boot")?;
        self.await_ready()
    }

    /// Starts a command line of the guest's shell.
    ///
    /// # Errors
    /// If the guest is gone.
    pub fn start(&self, command: &str) -> io::Result<GuestCommand> {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        self.shared.lock_state().commands.insert(id, Output::default());
        let started = GuestCommand { shared: Arc::clone(&self.shared), id };
        self.shared.send_command(&format!("run {id} {command}"))?;
        Ok(started)
    }

    /// Runs a command line to its end, at most for `patience`.
    ///
    /// # Errors
    /// If the guest is gone.
    pub fn run(&self, command: &str, timeout: Duration) -> io::Result<GuestResult> {
        Ok(self.start(command)?.finish(timeout))
    }

    /// Runs a command line that has to succeed.
    ///
    /// # Errors
    /// With what it wrote, unless it ended with code 0.
    pub fn run_ok(&self, command: &str) -> io::Result<String> {
        let ended = self.run(command, CASE_TIMEOUT)?;
        if ended.code == Some(0) {
            return Ok(ended.output);
        }
        Err(failure(format!("guest: {command}: {:?}: {}", ended.code, ended.output.trim())))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The script ends with its standard input, and removes everything.
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

    /// What it has written so far.
    #[must_use]
    pub fn output(&self) -> String {
        self.output_now().text
    }

    /// Waits until the output contains `text`.
    ///
    /// # Errors
    /// With the output so far, if it does not come or the command ends without it.
    pub fn wait_for(&self, text: &str, timeout: Duration) -> io::Result<()> {
        let found = self.shared.wait(timeout, |answers| {
            let is_up = answers.ready.is_some();
            let output = answers.commands.get(&self.id)?;
            let contains = output.text.contains(text);
            (contains || output.code.is_some() || !is_up).then_some(contains)
        });
        if found == Some(true) {
            return Ok(());
        }
        Err(failure(format!("guest: no '{text}' in: {}", self.output().trim())))
    }

    /// Kills it, with all that it started.
    ///
    /// # Errors
    /// If the guest is gone.
    pub fn kill(&self) -> io::Result<()> {
        self.shared.send_command(&format!("kill {}", self.id))
    }

    /// Waits for the end; past `patience` it is killed.
    #[must_use]
    pub fn finish(self, timeout: Duration) -> GuestResult {
        let code = self.shared.wait(timeout, |answers| {
            let is_up = answers.ready.is_some();
            let code = answers.commands.get(&self.id)?.code;
            (code.is_some() || !is_up).then_some(code)
        });
        GuestResult { code: code.flatten(), output: self.output() }
    }
}

impl Drop for GuestCommand {
    fn drop(&mut self) {
        let runs = {
            let answers = self.shared.lock_state();
            answers.ready.is_some()
                && answers.commands.get(&self.id).is_some_and(|output| output.code.is_none())
        };
        if runs && self.kill().is_ok() {
            // The next case begins without it.
            let _ = self.shared.wait(Duration::from_secs(10), |answers| {
                let is_up = answers.ready.is_some();
                let output = answers.commands.get(&self.id)?;
                (output.code.is_some() || !is_up).then_some(())
            });
        }
        self.shared.lock_state().commands.remove(&self.id);
    }
}
