//! Tests of the registry: what wrong pointers find.

use super::*;
use crate::object::users::Using;

/// What the program would see.
#[derive(Default)]
#[repr(C)]
struct Public {
    hidden: u64,
    number: u32,
}

struct Thing {
    number: u32,
    users: Users,
}

impl Exposed for Thing {
    type Public = Public;
    type Pointee = u32;
    const OFFSET: usize = std::mem::offset_of!(Public, number);

    fn registry() -> &'static Registry<Self> {
        static THINGS: Registry<Thing> = Registry::new();
        &THINGS
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

fn thing(number: u32) -> Handle<Thing> {
    let public = Public { hidden: 7, number };
    expose(Thing { number, users: Users::default() }, public)
}

/// The number of an object as a call on the hot path finds it.
fn hot(handle: Handle<Thing>) -> Option<u32> {
    // SAFETY: the tests pass handles of things, and each its own.
    unsafe { handle.hot() }.map(|thing| thing.number)
}

#[test]
fn the_pointer_leads_to_the_public_part() {
    let handle = thing(5);
    handle.change(|number| {
        assert_eq!(*number, 5);
        *number = 6;
    });
    let mut seen = 0;
    handle.change(|number| seen = *number);
    assert_eq!((seen, handle.get().unwrap().number), (6, 5));
}

#[test]
fn wrong_pointers_are_refused() {
    let mut other = 5u32;
    let foreign = Handle::<Thing>::of(&raw mut other);
    for wrong in [foreign, Handle::of(ptr::null_mut()), Handle::of(ptr::dangling_mut())] {
        assert_eq!(wrong.get().err(), Some(Errno::EINVAL));
        assert_eq!(wrong.destroy(), Err(Errno::EINVAL));
        wrong.change(|_| panic!("there is nothing to change"));
    }
    assert!(Handle::<Thing>::of(ptr::null_mut()).get_optional().unwrap().is_none());
    assert_eq!(foreign.get_optional().err(), Some(Errno::EINVAL));
}

#[test]
fn a_destroyed_object_is_gone_for_all_calls() {
    let handle = thing(8);
    assert_eq!(hot(handle), Some(8));
    assert_eq!(handle.destroy(), Ok(()));
    assert_eq!(hot(handle), None);
    assert_eq!(handle.get().err(), Some(Errno::EINVAL));
    assert_eq!(handle.destroy(), Err(Errno::EINVAL));
}

#[test]
fn memory_rests_before_it_is_used_again() {
    let stale = thing(1);
    stale.destroy().unwrap();
    for number in 0..u32::try_from(RESTING / 2).unwrap() {
        let fresh = thing(number);
        assert!(fresh != stale);
        fresh.destroy().unwrap();
    }
    assert_eq!(hot(stale), None);
}

#[test]
fn an_object_in_use_is_busy() {
    let handle = thing(2);
    let using = Using::new(handle.get().unwrap());
    assert_eq!(handle.destroy(), Err(Errno::EBUSY));
    assert_eq!(using.number, 2);
    drop(using);
    assert_eq!(handle.destroy(), Ok(()));
}

#[test]
fn destroying_waits_for_a_call_of_another_thread() {
    let handle = thing(3);
    let held = handle.get().unwrap();
    let destroyed = std::thread::spawn(move || handle.destroy());
    while handle.get().is_ok() {
        thread::yield_now();
    }
    assert!(!destroyed.is_finished());
    drop(held);
    assert_eq!(destroyed.join().unwrap(), Ok(()));
}
