//! Handlers that the program installs for the signals of page faults, and threads that block them.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use super::*;

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Faults that the program's handlers have handled.
static HANDLED: AtomicU32 = AtomicU32::new(0);
/// Page that a handler maps, as a program with its own paging does.
static PAGED: AtomicUsize = AtomicUsize::new(0);
/// The program's handler that was installed last.
static INSTALLED: AtomicUsize = AtomicUsize::new(0);
/// What the program's second handler has replaced.
static REPLACED: AtomicUsize = AtomicUsize::new(0);

/// Maps the page, so that the access is repeated.
extern "C" fn map_page(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let page = PAGED.load(Ordering::Relaxed);
    // SAFETY: the kernel has passed it.
    let info = unsafe { &*info };
    // SAFETY: the signal has an address.
    let at = unsafe { info.si_addr() } as usize;
    if page == 0 || at & !(PAGE - 1) != page {
        // Not expected: end, and do not come here again and again.
        // SAFETY: always possible.
        unsafe { libc::_exit(99) };
    }
    protect(page as *mut c_void, PAGE, libc::PROT_READ | libc::PROT_WRITE);
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// The same, as a handler without `SA_SIGINFO`.
extern "C" fn map_any_page(_: c_int) {
    let page = PAGED.load(Ordering::Relaxed) as *mut c_void;
    protect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE);
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// `sigjmp_buf` of the C library, which is smaller.
#[repr(C, align(16))]
struct JumpBuffer([u8; 512]);

unsafe extern "C" {
    fn __sigsetjmp(buffer: *mut JumpBuffer, save_mask: c_int) -> c_int;
    fn siglongjmp(buffer: *mut JumpBuffer, value: c_int) -> !;
}

/// Where [`jump`] continues.
static JUMP: AtomicPtr<JumpBuffer> = AtomicPtr::new(ptr::null_mut());

/// Leaves the fault by a jump, as runtimes do that turn it into an exception.
extern "C" fn jump(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the function that has set it is below, and no frame in between needs a drop.
    unsafe { siglongjmp(JUMP.load(Ordering::Relaxed), 7) };
}

/// Writes to `page`. Returns 0, or what a handler of the fault jumps here with. In machine code, as
/// a Rust function must not return twice.
#[unsafe(naked)]
extern "C" fn write_or_jump(_page: *mut u8, _buffer: *mut JumpBuffer) -> c_int {
    naked_asm!(
        "push rbx",
        "mov rbx, rdi",
        "mov rdi, rsi",
        "mov esi, 1",
        "call {set}",
        "test eax, eax",
        "jne 2f",
        "mov byte ptr [rbx], 1",
        "2:",
        "pop rbx",
        "ret",
        set = sym __sigsetjmp,
    )
}

/// Has the program's own fault, out of which a handler jumps, so many times. Returns what the
/// handlers have counted.
fn jump_out_of_faults(times: u32) -> u32 {
    let mut buffer = Box::new(JumpBuffer([0; 512]));
    JUMP.store(&raw mut *buffer, Ordering::Relaxed);
    let page = map(PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    for number in 0..times {
        assert_eq!(write_or_jump(page.cast(), &raw mut *buffer), 7, "fault {number}");
    }
    unmap(page, PAGE);
    HANDLED.swap(0, Ordering::Relaxed)
}

/// Calls the handler that it has replaced, as a well-behaved one does.
extern "C" fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    HANDLED.fetch_add(100, Ordering::Relaxed);
    let below = REPLACED.load(Ordering::Relaxed);
    // SAFETY: what `sigaction` has returned: a handler of this type.
    let below = unsafe { std::mem::transmute::<usize, Handler>(below) };
    below(signal, info, context);
}

fn install(handler: Handler) -> usize {
    install_with(handler as *const () as usize, libc::SA_SIGINFO)
}

/// Installs the handler at an address; returns what it has replaced.
fn install_with(sa_sigaction: usize, sa_flags: c_int) -> usize {
    INSTALLED.store(sa_sigaction, Ordering::Relaxed);
    // SAFETY: no flags, and an empty mask.
    let action = unsafe { std::mem::zeroed() };
    change(&libc::sigaction { sa_sigaction, sa_flags, ..action })
}

/// Installs this action, unless it is null; returns the handler before.
fn change(action: *const libc::sigaction) -> usize {
    // SAFETY: zeros are a value of it.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the handlers do only what is possible in one.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, action, &raw mut old) }, 0);
    old.sa_sigaction
}

/// Has the program's own fault, in memory that is not registered, `times` times.
fn fault_of_the_program(times: u32) {
    for _ in 0..times {
        let page = map(PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        PAGED.store(page as usize, Ordering::Relaxed);
        // SAFETY: a page of its own, which `map_page` makes accessible.
        unsafe { page.cast::<u8>().write_volatile(1) };
        unmap(page, PAGE);
    }
}

/// A Write from memory that vanishes ends its connection, in whatever order handlers were
/// installed.
fn expect_caught(left: &Endpoint, right: &Endpoint) {
    let (a, b) = connect(left, right);
    let mapping = Mapping::new();
    let source = mapping.register(&left.pd, Access::LOCAL_READ);
    let sink = right.mr(64, Access::REMOTE_WRITE);
    mapping.vanish(Vanish::Unmap, 0);
    write(&a, 1, source.sge(0, 64), &sink, 0).unwrap();
    expect_terminate(&a, &b, left, right, "handlers");
    poll_once(&left.cq);
}

/// Polls until the shards have replaced the program's handler.
fn let_the_shards_look(left: &Endpoint, right: &Endpoint) {
    let is_replaced = || change(ptr::null()) != INSTALLED.load(Ordering::Relaxed);
    drive_until(&left.context, &right.context, is_replaced);
}

#[test]
fn handlers_of_the_program_get_all_other_faults() {
    isolate!();
    install(map_page);
    let (left, right) = catching_endpoints();
    expect_caught(&left, &right);
    fault_of_the_program(3);
    assert_eq!(HANDLED.swap(0, Ordering::Relaxed), 3);
    // One that the program installs later, and that passes on what it does not know.
    let below = install(pass_on);
    REPLACED.store(below, Ordering::Relaxed);
    let_the_shards_look(&left, &right);
    expect_caught(&left, &right);
    fault_of_the_program(2);
    assert_eq!(HANDLED.swap(0, Ordering::Relaxed), 202);
    // Again and again: the chain stays as it is.
    for _ in 0..20 {
        install(pass_on);
        let_the_shards_look(&left, &right);
        expect_caught(&left, &right);
        fault_of_the_program(1);
        assert_eq!(HANDLED.swap(0, Ordering::Relaxed), 101);
    }
}

/// A handler that compares what it has replaced with itself, and so takes ours for another's when
/// it is installed again. It must not come back to itself.
#[test]
fn handler_installed_twice_makes_no_loop() {
    isolate!();
    install(map_page);
    let (left, right) = catching_endpoints();
    for _ in 0..2 {
        REPLACED.store(install(pass_on), Ordering::Relaxed);
        let_the_shards_look(&left, &right);
        expect_caught(&left, &right);
    }
    fault_of_the_program(1);
    assert_eq!(HANDLED.swap(0, Ordering::Relaxed), 101);
}

/// The kernel would end the process if the thread blocked the signals.
#[test]
fn faults_are_caught_on_a_thread_that_blocks_all_signals() {
    isolate!();
    let run = || {
        // SAFETY: an empty set.
        let mut all = unsafe { std::mem::zeroed() };
        // SAFETY: a set.
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, ptr::null_mut()) };
        let (left, right) = catching_endpoints();
        expect_caught(&left, &right);
        // A thread of the context inherits what this one blocks.
        let config = |host| config(host, DriveMode::Helper).catch_page_faults(true);
        let (left, right) = ring_pair(config(1), config(2)).unwrap();
        let (left, right) = (Endpoint::new(left), Endpoint::new(right));
        expect_caught(&left, &right);
    };
    std::thread::spawn(run).join().unwrap();
}

/// A handler that never returns leaves the frames of those that have called it. More often than
/// there are levels.
#[test]
fn handlers_may_jump_out_of_faults() {
    isolate!();
    install(jump);
    let (left, right) = catching_endpoints();
    for _ in 0..3 {
        assert_eq!(jump_out_of_faults(20), 20);
        expect_caught(&left, &right);
    }
    // One that the program installs later, and then another above it that passes on.
    install(jump);
    for _ in 0..2 {
        let_the_shards_look(&left, &right);
        assert_eq!(jump_out_of_faults(20), 20);
        expect_caught(&left, &right);
    }
    for _ in 0..20 {
        REPLACED.store(install(pass_on), Ordering::Relaxed);
        let_the_shards_look(&left, &right);
        assert_eq!(jump_out_of_faults(1), 101);
        expect_caught(&left, &right);
    }
}

#[test]
fn handler_without_siginfo_gets_other_faults() {
    isolate!();
    install_with(map_any_page as *const () as usize, 0);
    let (left, right) = catching_endpoints();
    for _ in 0..20 {
        expect_caught(&left, &right);
        fault_of_the_program(1);
        assert_eq!(HANDLED.swap(0, Ordering::Relaxed), 1);
    }
}
