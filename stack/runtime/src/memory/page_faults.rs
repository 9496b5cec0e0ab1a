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
//! at a level of its own, with the handler below it. A handler that the program installs again and
//! again keeps its level; it may then call the one above it, which goes on further below.

#[cfg(target_arch = "x86_64")]
use std::arch::naked_asm;
use std::cell::Cell;
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
/// No handler is installed any more: the program has too many, or one that is to run once.
static HAS_GIVEN_UP: AtomicBool = AtomicBool::new(false);
/// Held while handlers are installed.
static INSTALLING: Mutex<()> = Mutex::new(());

thread_local! {
    static IS_UNBLOCKED: Cell<bool> = const { Cell::new(false) };
    /// Levels whose handlers have been called for the present signal, one bit each.
    static CALLED: Cell<u32> = const { Cell::new(0) };
}

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
    prepare_thread();
    install()
}

/// Prepares the calling thread, the first time, to have page faults, if they are caught: a load
/// and a test where they are not.
#[inline]
pub(crate) fn prepare_thread() {
    if IS_CATCHING.load(Ordering::Relaxed) && !IS_UNBLOCKED.replace(true) {
        // The handler must not be the first to use it, which may allocate.
        CALLED.set(0);
        unblock();
    }
}

/// Installs the handlers again if the program has installed others since. Two system calls.
pub(crate) fn keep_catching() {
    if HAS_GIVEN_UP.load(Ordering::Relaxed) {
        return;
    }
    if let Err(error) = install() {
        HAS_GIVEN_UP.store(true, Ordering::Relaxed);
        tracing::warn!(%error, "page faults in registered memory may not be caught any more");
    }
}

/// Unblocks the signals on this thread: the kernel ends a process with a fault on a thread that
/// blocks them.
#[cold]
fn unblock() {
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

/// Handler of a level. The kernel calls it with the context just above the return address; another
/// handler that calls it does not.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn on_signal<const LEVEL: usize>(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    naked_asm!(
        "lea rcx, [rsp + 8]",
        "jmp {handle}",
        handle = sym handle::<LEVEL>,
    )
}

#[cfg(not(target_arch = "x86_64"))]
extern "C" fn on_signal<const LEVEL: usize>(_: c_int, _: *mut siginfo_t, _: *mut c_void) {}

/// `called_at`: the stack pointer before the call.
extern "C" fn handle<const LEVEL: usize>(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
    called_at: *mut c_void,
) {
    if return_page_fault(info, context) {
        return;
    }
    // Those of a handler before, which a handler of the program may have left by longjmp.
    if called_at == context {
        CALLED.set(0);
    }
    // A handler of the program that calls this one a second time: below it are the others.
    let called = CALLED.get();
    let Some(level) = (0..=LEVEL).rev().find(|level| called & (1 << level) == 0) else {
        return end_process(signal);
    };
    CALLED.set(called | 1 << level);
    let index = usize::from(signal != SIGNALS[0]);
    // SAFETY: set before this handler was installed, and never freed nor changed.
    let Some(below) = (unsafe { BELOW[index][level].load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    call(below, signal, info, context);
    // Not only to restore it: the call before must not be the last, for which this frame would give
    // up its place, and a handler that calls ours would look like the kernel.
    CALLED.set(called);
}

/// Has the signal end the process when the handler returns.
fn end_process(signal: c_int) {
    HAS_GIVEN_UP.store(true, Ordering::Relaxed);
    // SAFETY: may be called in a handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// If the signal is a page fault in an access routine: has that return it.
#[cfg(target_arch = "x86_64")]
fn return_page_fault(info: *mut siginfo_t, context: *mut c_void) -> bool {
    /// "Action optional": an advice about a page, and no access.
    const BUS_MCEERR_AO: c_int = 5;
    /// Distance from the stack pointer at which a fault is one of the stack.
    const STACK_GUARD_LEN: usize = 4096;
    // SAFETY: the kernel passes it to a handler with `SA_SIGINFO`, or a handler of the program that
    // has received it.
    let info = unsafe { &*info };
    // SAFETY: as above; nothing else refers to it while the handler runs.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let registers = &mut context.uc_mcontext.gregs;
    let at = |register: c_int| usize::try_from(registers[register as usize]).unwrap_or(0);
    if !opaque::addresses().contains(&at(libc::REG_RIP)) {
        return false;
    }
    // SAFETY: both signals have an address.
    let address = unsafe { info.si_addr() } as usize;
    // Not one that was sent by a process, nor the end of the stack.
    let is_stack = at(libc::REG_RSP).abs_diff(address) < STACK_GUARD_LEN;
    if info.si_code <= 0 || info.si_code == BUS_MCEERR_AO || is_stack {
        return false;
    }
    registers[libc::REG_RIP as usize] = opaque::landing() as i64;
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
            end_process(signal);
            if !is_fault {
                // SAFETY: as above. It is delivered when this handler returns.
                unsafe { libc::raise(signal) };
            }
        }
        // A handler that is to run once: as the kernel, before it runs.
        _ if action.sa_flags & libc::SA_RESETHAND != 0 => {
            end_process(signal);
            let once = sigaction { sa_flags: action.sa_flags & !libc::SA_RESETHAND, ..*action };
            call(&once, signal, info, context);
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
