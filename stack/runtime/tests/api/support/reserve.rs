//! Resources that tests of one process share, and those that one of them has at a time.

use std::cell::RefCell;
use std::process::Command;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use ferrowarp::DriveMode;

/// Pairs of ports open at a time: EAL has 32 ports (`RTE_MAX_ETHPORTS`), and those of a test that
/// has just ended may not be closed yet.
const PAIRS_MAX: usize = 12;

/// Set in a process that runs one test.
const ISOLATED: &str = "FERROWARP_TEST_ISOLATED";

/// Held for reading by tests that open ports, and for writing while an isolated test runs.
static OTHERS: RwLock<()> = RwLock::new(());
/// Held by the test whose dedicated threads spin on cores 0 and 1.
static CORES: Mutex<()> = Mutex::new(());
static PAIRS: Semaphore = Semaphore { free: Mutex::new(PAIRS_MAX), freed: Condvar::new() };

thread_local! {
    /// A test runs on a thread of its own, so this is dropped after all of the test's contexts.
    static RESERVATION: RefCell<Option<Reservation>> = const { RefCell::new(None) };
}

/// Reservations that a test holds until its thread ends. Every test acquires the members in this
/// order, so that there is no deadlock.
struct Reservation {
    _not_isolated: RwLockReadGuard<'static, ()>,
    cores: Option<MutexGuard<'static, ()>>,
    _pair: Permit,
}

/// Waits until the calling test may open a pair of ports that are driven in these modes, of which
/// it has one at a time.
pub(crate) fn reserve_pair(modes: [DriveMode; 2]) {
    let is_dedicated = modes.contains(&DriveMode::Dedicated);
    RESERVATION.with_borrow_mut(|held| {
        let held = held.get_or_insert_with(|| Reservation {
            _not_isolated: OTHERS.read().unwrap_or_else(PoisonError::into_inner),
            cores: is_dedicated.then(|| CORES.lock().unwrap_or_else(PoisonError::into_inner)),
            _pair: PAIRS.acquire(),
        });
        assert!(held.cores.is_some() || !is_dedicated, "reserve the cores with the first pair");
    });
}

struct Semaphore {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Semaphore {
    fn acquire(&'static self) -> Permit {
        let free = self.free.lock().unwrap();
        let mut free = self.freed.wait_while(free, |free| *free == 0).unwrap();
        *free -= 1;
        Permit(self)
    }
}

struct Permit(&'static Semaphore);

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap() += 1;
        self.0.freed.notify_one();
    }
}

/// Runs the rest of the test in a process of its own, in which no other test runs, while no other
/// test of this process has ports open. For tests that depend on what the whole process shares:
/// threads, locks, mempool caches, processor time.
macro_rules! isolate {
    () => {{
        fn here() {}
        if !$crate::support::is_isolated(std::any::type_name_of_val(&here)) {
            return;
        }
    }};
}
pub(crate) use isolate;

/// True in a process that runs one test alone. Elsewhere runs the test with the function `here` in
/// its body in such a process, asserts that it passed there, and returns false.
pub(crate) fn is_isolated(here: &str) -> bool {
    if std::env::var_os(ISOLATED).is_some() {
        return true;
    }
    let _alone = OTHERS.write().unwrap_or_else(PoisonError::into_inner);
    let path = here.strip_suffix("::here").and_then(|path| path.split_once("::"));
    let (_, name) = path.expect("a test is a function of a module");
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(ISOLATED, name)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&ended.stdout);
    print!("{text}{}", String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{name} in a process of its own: {}", ended.status);
    assert!(text.contains("1 passed"), "no test is called {name}");
    false
}
