//! The stack behind all objects: one context of the runtime, opened when a program first needs it.
//!
//! Constructors of shared objects run in every program that inherits the environment, also in
//! shells. So there are none: the device is opened by the first `ibv_open_device`,
//! `rdma_create_event_channel`, `rdma_create_id` or `rdma_get_devices`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use ferrowarp::{Context, QpId};
use ferrowarp_settings::Settings;

use crate::config::config;
use crate::dispatcher;
use crate::errno::{Errno, Outcome};
use crate::objects::Objects;
use crate::report::report;

/// The stack.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) context: Context,
    pub(crate) settings: Settings,
    pub(crate) objects: Objects,
    /// Numbers of the queue pairs, by the index of their IDs.
    qp_numbers: Box<[AtomicU32]>,
}

/// Returns the stack; opens it if that has not been done.
///
/// # Errors
/// `ENODEV`, and a line on standard error: no device is configured, or it cannot be opened. A later
/// call tries again.
pub(crate) fn engine() -> Outcome<&'static Engine> {
    static ENGINE: Mutex<Option<&'static Engine>> = Mutex::new(None);
    let mut engine = ENGINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(engine) = *engine {
        return Ok(engine);
    }
    let opened = open().map_err(|problem| {
        report(&problem);
        Errno::ENODEV
    })?;
    *engine = Some(opened);
    dispatcher::start(opened)?;
    Ok(opened)
}

fn open() -> Result<&'static Engine, String> {
    let settings = Settings::from_environment().map_err(|error| error.to_string())?;
    let config = config(&settings)?;
    let qps = config.qps_max;
    let context = Context::open(config).map_err(|error| chain(&error))?;
    let qp_numbers = (0..qps).map(|_| AtomicU32::new(0)).collect();
    Ok(Box::leak(Box::new(Engine { context, settings, objects: Objects::default(), qp_numbers })))
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
