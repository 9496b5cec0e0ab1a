//! Page faults in registered memory: they end a stream, and not the process.
//!
//! The owner of registered memory may unmap it, protect it, or truncate the file behind it, and
//! the system may lack a page for it. An access is then a `SIGSEGV` or `SIGBUS`. The handler here
//! recognizes those at an instruction of the access routines ([`opaque`](super::opaque)), and has
//! the routine return [`PageFault`](ferrowarp_proto::ddp::memory::PageFault). Any other fault goes
//! to the handler that was installed before.
//!
//! A program, or a runtime inside it, may install a handler of its own later, which replaces this
//! one. [`keep_catching`] then installs the handler again, above that one. If that one calls what
//! it has replaced, it must not come back to itself. So each installation is a handler of its own,
//! at a level of its own, with the handler below it: the chain has no loops. One that is installed
//! again and again is recognized.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{c_int, c_void, sigaction, siginfo_t};

use super::opaque;

/// Signals of page faults.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// Handlers that the program may install one after another, each above the one before.
const LEVELS: usize = 8;

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// The handler of each level.
const HANDLERS: [Handler; LEVELS] = [
    on_signal::<0>,
    on_signal::<1>,
    on_signal::<2>,
    on_signal::<3>,
    on_signal::<4>,
    on_signal::<5>,
    on_signal::<6>,
    on_signal::<7>,
];

/// For each signal: what the handler of each level has replaced. Set before the handler is
/// installed, and never freed.
static BELOW: [[AtomicPtr<sigaction>; LEVELS]; SIGNALS.len()] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; LEVELS] }; SIGNALS.len()];

/// Page faults are caught in this process.
static IS_CATCHING: AtomicBool = AtomicBool::new(false);
/// Held while handlers are installed.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Catches page faults in registered memory from now on, on all threads of the process that do not
/// block the signals.
///
/// # Errors
/// `Unsupported` on this processor, or an error of `sigaction`.
pub(crate) fn catch() -> io::Result<()> {
    if !opaque::CATCHES_PAGE_FAULTS {
        return Err(io::ErrorKind::Unsupported.into());
    }
    IS_CATCHING.store(true, Ordering::Relaxed);
    unblock();
    install()
}

/// Installs the handlers again if the program has installed others since. Two system calls.
pub(crate) fn keep_catching() {
    if let Err(error) = install() {
        tracing::warn!(%error, "page faults in registered memory are not caught any more");
    }
}

/// Unblocks the signals on this thread, if page faults are caught: the kernel ends a process with a
/// fault on a thread that blocks them.
pub(crate) fn unblock() {
    if !IS_CATCHING.load(Ordering::Relaxed) {
        return;
    }
    let mut set = MaybeUninit::uninit();
    // SAFETY: the pointer is valid for a set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the call before has initialized it.
    let mut set = unsafe { set.assume_init() };
    for signal in SIGNALS {
        // SAFETY: as before, and the signal exists.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: a set, and no place for the one before.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
}

fn install() -> io::Result<()> {
    let _installing = INSTALLING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    SIGNALS.iter().zip(&BELOW).try_for_each(|(&signal, below)| install_for(signal, below))
}

/// Installs the handler of the next level, unless one is installed.
fn install_for(signal: c_int, below: &[AtomicPtr<sigaction>; LEVELS]) -> io::Result<()> {
    let mut current = action(signal, None)?;
    while !HANDLERS.iter().any(|&handler| handler as *const () as usize == current.sa_sigaction) {
        // The level above the same handler, or the first free one.
        let is_for = |level: &AtomicPtr<sigaction>| {
            // SAFETY: what is stored there is never freed nor changed.
            let known = unsafe { level.load(Ordering::Acquire).as_ref() };
            known.is_none_or(|known| {
                (known.sa_sigaction, known.sa_flags) == (current.sa_sigaction, current.sa_flags)
            })
        };
        let too_many = || io::Error::other("too many signal handlers were installed");
        let level = below.iter().position(is_for).ok_or_else(too_many)?;
        if below[level].load(Ordering::Acquire).is_null() {
            below[level].store(Box::into_raw(Box::new(current)), Ordering::Release);
        }
        let mut ours = current;
        ours.sa_sigaction = HANDLERS[level] as *const () as usize;
        let is_default = [libc::SIG_DFL, libc::SIG_IGN].contains(&current.sa_sigaction);
        // A handler of the program runs as it would without this one.
        let kept = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        let flags = if is_default { libc::SA_ONSTACK } else { current.sa_flags & kept };
        ours.sa_flags = libc::SA_SIGINFO | flags;
        let replaced = action(signal, Some(&ours))?;
        if replaced.sa_sigaction == current.sa_sigaction {
            break;
        }
        // Another thread has installed one in between: the next level is above it.
        current = replaced;
    }
    Ok(())
}

/// Installs `new`, if given; returns what was installed.
fn action(signal: c_int, new: Option<&sigaction>) -> io::Result<sigaction> {
    let mut old = MaybeUninit::uninit();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the pointers are null or of living objects, and the handlers are ours, or were
    // installed by the program.
    if unsafe { sigaction(signal, new, old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a call that succeeds has initialized it.
    Ok(unsafe { old.assume_init() })
}

extern "C" fn on_signal<const LEVEL: usize>(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    if return_page_fault(info, context) {
        return;
    }
    let index = usize::from(signal != SIGNALS[0]);
    // SAFETY: set before this handler was installed, and never freed nor changed.
    let Some(below) = (unsafe { BELOW[index][LEVEL].load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    call(below, signal, info, context);
}

/// If the signal is a page fault in an access routine: has that return it.
#[cfg(target_arch = "x86_64")]
fn return_page_fault(info: *mut siginfo_t, context: *mut c_void) -> bool {
    /// "Action optional": an advice about a page, and no access.
    const BUS_MCEERR_AO: c_int = 5;
    // SAFETY: the kernel passes it to a handler with `SA_SIGINFO`, or a handler of the program that
    // has received it.
    let code = unsafe { (*info).si_code };
    // SAFETY: as above; nothing else refers to it while the handler runs.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let ip = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    let is_ours = usize::try_from(*ip).is_ok_and(|ip| opaque::addresses().contains(&ip));
    // Not one that was sent by a process.
    if code <= 0 || code == BUS_MCEERR_AO || !is_ours {
        return false;
    }
    *ip = opaque::landing() as i64;
    true
}

#[cfg(not(target_arch = "x86_64"))]
fn return_page_fault(_: *mut siginfo_t, _: *mut c_void) -> bool {
    false
}

/// Does what the kernel would do for `action`.
fn call(action: &sigaction, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: as in `return_page_fault`.
    let is_fault = unsafe { (*info).si_code } > 0;
    match action.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        // A fault cannot be ignored: the instruction is repeated, and ends the process.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: may be called in a handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            if !is_fault {
                // SAFETY: as above. It is delivered when this handler returns.
                unsafe { libc::raise(signal) };
            }
        }
        handler if action.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the program has installed this address as a handler of this type.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: as above.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}
