//! The stack behind all objects: one context of the runtime, opened when a program first needs it.
//!
//! Constructors of shared objects run in every program that inherits the environment, also in
//! shells. So there are none: the device is opened by the first `ibv_open_device`,
//! `rdma_create_event_channel`, `rdma_create_id` or `rdma_get_devices`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use ferrowarp::{Context, QpId};
use ferrowarp_settings::{LogLevel, Settings};
use nix::sys::signal::Signal::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP};
use nix::sys::signal::{SigSet, SigmaskHow};
use tracing_subscriber::filter::LevelFilter;

use crate::config::config;
use crate::dispatcher;
use crate::errno::{Errno, Outcome, run};
use crate::objects::Objects;
use crate::program;
use crate::report::report;

/// The stack.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) context: Context,
    pub(crate) settings: Settings,
    pub(crate) objects: Objects,
    /// The process that has opened it: not a child made by `fork`.
    process: u32,
    /// Numbers of the queue pairs, by the index of their IDs.
    qp_numbers: Box<[AtomicU32]>,
}

/// The stack, once it is open.
static ENGINE: OnceLock<&'static Engine> = OnceLock::new();

/// The process is ending, by `exit`.
static EXITING: AtomicBool = AtomicBool::new(false);

/// True if the process is ending: the program gets neither events nor completions any more.
#[inline(always)]
pub(crate) fn is_exiting() -> bool {
    EXITING.load(Ordering::Acquire)
}

/// Returns the stack; opens it if that has not been done.
///
/// # Errors
/// `ENODEV`, and a line on standard error: no device is configured, or it cannot be opened. A later
/// call tries again.
pub(crate) fn engine() -> Outcome<&'static Engine> {
    static OPENING: Mutex<()> = Mutex::new(());
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(engine) = ENGINE.get() {
        return Ok(engine);
    }
    let opened = without_signals(|| {
        let opened = open().map_err(|problem| {
            report(&problem);
            Errno::ENODEV
        })?;
        // Otherwise a later call would find the device in use.
        dispatcher::start(opened).inspect_err(|_| opened.context.clone().close())?;
        Ok(opened)
    })?;
    program::call_at_exit(at_exit);
    Ok(ENGINE.get_or_init(|| opened))
}

/// Checks that the stack is of this process. In a child made by `fork` any lock may be held for
/// ever.
///
/// # Errors
/// `ENODEV`: it is that of the parent.
pub(crate) fn check_process() -> Outcome {
    let of_parent = ENGINE.get().is_some_and(|engine| engine.process != std::process::id());
    if of_parent { Err(Errno::ENODEV) } else { Ok(()) }
}

/// Calls `start`, and no thread that it starts handles signals of the program. Those that a thread
/// causes itself stay: page faults are caught.
fn without_signals<T>(start: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let mut blocked = SigSet::all();
    [SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP].into_iter().for_each(|own| blocked.remove(own));
    let _restored = Restored(blocked.thread_swap_mask(SigmaskHow::SIG_SETMASK)?);
    start()
}

/// The signal mask that a thread had, and gets again.
struct Restored(SigSet);

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = self.0.thread_set_mask();
    }
}

fn open() -> Result<&'static Engine, String> {
    let settings = Settings::from_environment().map_err(|error| error.to_string())?;
    log(settings.log);
    let config = config(&settings)?;
    let qps = config.qps_max;
    let context = Context::open(config).map_err(|error| chain(&error))?;
    let qp_numbers = (0..qps).map(|_| AtomicU32::new(0)).collect();
    Ok(Box::leak(Box::new(Engine {
        context,
        settings,
        objects: Objects::default(),
        process: std::process::id(),
        qp_numbers,
    })))
}

/// Writes what the stack logs to standard error.
fn log(level: LogLevel) {
    let level = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // A second attempt to open the device finds it set.
    let _ = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).try_init();
}

/// Delivers what has completed, for [`Settings::linger`] at most. A process that ends without
/// `exit` leaves that to nobody. Other threads of the program may run on meanwhile: as the
/// connections end, they get neither events nor completions.
///
/// [`Settings::linger`]: ferrowarp_settings::Settings::linger
extern "C" fn at_exit() {
    let _ = run(|| {
        if let Some(engine) = ENGINE.get() {
            EXITING.store(true, Ordering::Release);
            tracing::info!("at the end: {:?}", engine.context.counters());
            engine.context.clone().close();
        }
        Ok(())
    });
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        next = cause.source();
    }
    line
}

impl Engine {
    /// # Errors
    /// `EIO`: the stack does nothing any more.
    pub(crate) fn check_running(&self) -> Outcome {
        if self.context.has_failed() { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Number of the queue pair in completions.
    #[inline(always)]
    pub(crate) fn qp_number(&self, qp: QpId) -> u32 {
        self.qp_numbers.get(qp.slot()).map_or(0, |number| number.load(Ordering::Relaxed))
    }

    /// Sets the number of a new queue pair.
    pub(crate) fn set_qp_number(&self, qp: QpId, number: u32) {
        if let Some(place) = self.qp_numbers.get(qp.slot()) {
            place.store(number, Ordering::Relaxed);
        }
    }
}
