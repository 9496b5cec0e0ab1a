//! The table by itself: each check, the association, windows, and STags that nobody can guess.

use std::collections::HashSet;

use super::*;

const WHAT: Registration = Registration {
    pd: 3,
    stream: None,
    base: 0x1000,
    len: 0x100,
    access: Access::ALL,
    backing: 77,
};
const OURS: Reach = Reach { pd: 3, stream: StreamId(1) };
const SIBLING: Reach = Reach { pd: 3, stream: StreamId(2) };
const FOREIGN: Reach = Reach { pd: 4, stream: StreamId(1) };

/// What a region of 0x100 octets says to one octet of it.
fn ask(table: &RegionTable, stag: Stag, reach: Reach) -> Result<(), MemoryFault> {
    table.resolve(stag, reach, Access::REMOTE_WRITE, 0x1010, 1).map(|_| ())
}

/// As a consumer may choose keys that has them count.
fn with_next_key(stag: Stag) -> Stag {
    stag & !0xff | stag.wrapping_add(1) & 0xff
}

fn bind(window: Stag, region: Stag) -> Bind {
    Bind {
        rkey: with_next_key(window),
        lkey: region,
        addr: 0x1010,
        len: 0x20,
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        zero_based: false,
    }
}

// req-test: DDP-157, DDP-158, DDP-195, DDP-207, RDMAP-278
#[test]
fn each_fault_is_reported_in_order() {
    let table = RegionTable::new(8, 1);
    let only_read = Registration { access: Access::REMOTE_READ, ..WHAT };
    let stag = table.register(&only_read).unwrap();
    let read = Access::REMOTE_READ;
    let ask = |stag, pd: u32, need, to, len| table.resolve(stag, pd, need, to, len).unwrap_err();
    assert_eq!(ask(0, 3, read, 0x1000, 1), MemoryFault::InvalidStag);
    assert_eq!(ask(stag ^ 1, 3, read, 0x1000, 1), MemoryFault::InvalidStag);
    assert_eq!(ask(stag, 4, Access::REMOTE_WRITE, u64::MAX, 9), MemoryFault::NotAssociated);
    assert_eq!(ask(stag, 3, Access::REMOTE_WRITE, u64::MAX, 9), MemoryFault::AccessRights);
    assert_eq!(ask(stag, 3, read, u64::MAX, 9), MemoryFault::Wrap);
    assert_eq!(ask(stag, 3, read, 0xfff, 1), MemoryFault::Bounds);
    assert_eq!(ask(stag, 3, read, 0x10ff, 2), MemoryFault::Bounds);
    assert_eq!(ask(stag, 3, read, 0x1100, 1), MemoryFault::Bounds);
    let place = table.resolve(stag, 3, read, 0x10ff, 1).unwrap();
    assert_eq!((place.backing(), place.offset(), place.len()), (77, 0xff, 1));
}

// req-test: DDP-187, DDP-192, RDMAP-277, RDMAP-326, RDMAP-327
#[test]
fn an_stag_is_good_for_its_domain_or_for_one_stream_of_it() {
    let table = RegionTable::new(8, 1);
    let shared = table.register(&WHAT).unwrap();
    let tied = Registration { stream: Some(OURS.stream), ..WHAT };
    let tied = table.register(&tied).unwrap();
    let no = Err(MemoryFault::NotAssociated);
    for (stag, reach, says) in [
        (shared, OURS, Ok(())),
        (shared, SIBLING, Ok(())),
        (shared, FOREIGN, no),
        (tied, OURS, Ok(())),
        (tied, SIBLING, no),
        (tied, FOREIGN, no),
        (tied, 3.into(), no),
    ] {
        assert_eq!(ask(&table, stag, reach), says, "{stag:#x} {reach:?}");
    }
}

// req-test: DDP-209, RDMAP-280
#[test]
fn each_combination_of_rights_permits_what_it_says() {
    let table = RegionTable::new(32, 1);
    for bits in 0..=Access::ALL.bits() {
        let access = Access::from_bits(bits);
        let stag = table.register(&Registration { access, ..WHAT }).unwrap();
        for needed in (0..6).map(|bit| Access::from_bits(1 << bit)) {
            let granted = table.resolve(stag, OURS, needed, 0x1000, 1).is_ok();
            assert_eq!(granted, bits & needed.bits() != 0, "{access:?} {needed:?}");
        }
        table.invalidate(stag);
        table.release(stag);
    }
}

// req-test: DDP-196, DDP-197, DDP-208, RDMAP-279
#[test]
fn an_invalidated_stag_is_dead_at_once_and_its_slot_comes_back() {
    let table = RegionTable::new(2, 9);
    let first = table.register(&WHAT).unwrap();
    let second = table.register(&WHAT).unwrap();
    assert_eq!(table.register(&WHAT), Err(RegisterError::TableFull));
    assert!(table.invalidate(first));
    assert!(!table.invalidate(first));
    assert!(ask(&table, first, OURS).is_err());
    assert!(ask(&table, second, OURS).is_ok());
    table.release(first);
    let third = table.register(&WHAT).unwrap();
    assert_ne!(third, first);
    assert!(ask(&table, first, OURS).is_err());
}

// req-test: RDMAP-280, RDMAP-323
#[test]
fn a_region_goes_off_and_on_again_with_other_rights_under_another_stag() {
    let table = RegionTable::new(2, 9);
    let first = table.register(&WHAT).unwrap();
    assert_eq!(table.enable(first, Access::ALL), None, "it is valid");
    table.invalidate(first);
    let second = table.enable(first, Access::REMOTE_READ).unwrap();
    assert!(ask(&table, first, OURS).is_err());
    assert_eq!(ask(&table, second, OURS), Err(MemoryFault::AccessRights));
    assert!(table.resolve(second, OURS, Access::REMOTE_READ, 0x1000, 1).is_ok());
    table.invalidate(second);
    assert_eq!(table.enable(first, Access::ALL), None, "it is called otherwise now");
    table.release(second);
    assert_eq!(table.enable(second, Access::ALL), None, "it is gone");
}

/// Whoever has seen all STags of a region cannot tell the next one, and none comes back by turns.
// req-test: RDMAP-283
#[test]
fn stag_after_enable_is_drawn_by_chance() {
    const COUNT: usize = 4_000;
    let table = RegionTable::new(4, 11);
    let mut stag = table.register(&WHAT).unwrap();
    let mut stags = vec![stag];
    for _ in 1..COUNT {
        table.invalidate(stag);
        stag = table.enable(stag, Access::ALL).unwrap();
        stags.push(stag);
    }
    let steps: HashSet<_> = stags.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    assert!(steps.len() > COUNT - 20, "{} different steps", steps.len());
    assert!(stags.iter().collect::<HashSet<_>>().len() > COUNT - 20);
    // Within five standard deviations, for each of the 30 bits that do not choose the slot.
    for bit in (0..8).chain(10..32) {
        let flips = stags.windows(2).filter(|w| (w[0] ^ w[1]) >> bit & 1 == 1).count();
        assert!(flips.abs_diff(COUNT / 2) < 160, "bit {bit} flips {flips} times");
    }
}

// req-test: RDMAP-283
#[test]
fn window_keys_do_not_repeat_and_come_in_no_order() {
    let table = RegionTable::new(4, 12);
    let region = table.register(&WHAT).unwrap();
    let first = table.allocate_window(3).unwrap();
    let mut keys = table.window_keys();
    let mut other = table.window_keys();
    let mut stag = first;
    let mut stags = Vec::new();
    for _ in 0..4 * 256 {
        stag = keys.next(&table, stag);
        table.bind(&Bind { rkey: stag, ..bind(first, region) }, OURS).unwrap();
        assert!(table.invalidate(stag));
        stags.push(stag);
    }
    assert_eq!(stags.iter().collect::<HashSet<_>>().len(), stags.len(), "an STag came twice");
    for turn in stags.chunks(256) {
        assert_eq!(turn.iter().map(|stag| stag >> 8).collect::<HashSet<_>>().len(), 1);
        let steps: HashSet<_> = turn.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        // 255 steps of a random order have about 170 different values, a fixed step has one.
        assert!(steps.len() > 120, "{} different steps", steps.len());
    }
    let same = (0..256).filter(|&at| other.next(&table, stag) & 0xff == stags[at] & 0xff).count();
    assert!(same < 16, "two windows have the same order");
}

#[test]
fn renamed_window_is_bound_under_the_tag_before_unless_it_was_revoked() {
    let table = RegionTable::new(8, 1);
    let region = table.register(&WHAT).unwrap();
    let first = table.allocate_window(3).unwrap();
    let second = table.rename_window(first, false);
    assert_ne!(first >> 8, second >> 8);
    for tag in [first, second] {
        let queued = bind(tag, region);
        table.bind(&queued, OURS).unwrap();
        table.invalidate_local(queued.rkey, OURS).unwrap();
    }
    let third = table.rename_window(second, true);
    for tag in [first, second] {
        let fault = table.bind(&bind(tag, region), OURS);
        assert_eq!(fault, Err(MemoryFault::InvalidStag), "a binding queued before");
    }
    assert_eq!(table.invalidate_local(second, OURS), Ok(()), "it is invalid already");
    assert_eq!(table.invalidate_local(first, OURS), Err(MemoryFault::InvalidStag));
    table.bind(&bind(third, region), OURS).unwrap();
}

// req-test: RDMAP-182, RDMAP-265, RDMAP-266, RDMAP-282
#[test]
fn a_peer_may_invalidate_only_what_is_for_its_stream_alone() {
    let table = RegionTable::new(8, 1);
    let shared = table.register(&WHAT).unwrap();
    let tied = table.register(&Registration { stream: Some(OURS.stream), ..WHAT }).unwrap();
    for (stag, reach, says) in [
        (0, OURS, Err(InvalidateFault::Unknown)),
        (tied ^ 1, OURS, Err(InvalidateFault::Unknown)),
        (shared, OURS, Err(InvalidateFault::Shared)),
        (shared, FOREIGN, Err(InvalidateFault::Foreign)),
        (tied, SIBLING, Err(InvalidateFault::Foreign)),
        (tied, FOREIGN, Err(InvalidateFault::Foreign)),
        (tied, OURS, Ok(())),
    ] {
        assert_eq!(table.check_invalidate(stag, reach), says, "{stag:#x} {reach:?}");
    }
    let local = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let sink = Registration { stream: Some(OURS.stream), access: local, ..WHAT };
    let sink = table.register(&sink).unwrap();
    assert_eq!(table.check_invalidate(sink, OURS), Err(InvalidateFault::NotRemote));
    assert!(!table.invalidate_remote(sink, OURS));
    assert_eq!(table.check_invalidate(sink, SIBLING), Err(InvalidateFault::Foreign));
    assert_eq!(table.invalidate_local(sink, OURS), Ok(()));
    let window = table.allocate_window(3).unwrap();
    table.bind(&bind(window, tied), OURS).unwrap();
    assert_eq!(table.check_invalidate(tied, OURS), Err(InvalidateFault::Shared));
    let bound = bind(window, tied).rkey;
    assert_eq!(table.check_invalidate(bound, OURS), Ok(()));
    assert!(table.invalidate(bound));
    assert_eq!(table.check_invalidate(tied, OURS), Ok(()));
}

#[test]
fn a_window_shows_its_part_of_the_region_to_its_stream() {
    let table = RegionTable::new(8, 1);
    let region = table.register(&WHAT).unwrap();
    let window = table.allocate_window(3).unwrap();
    assert_eq!(ask(&table, window, OURS), Err(MemoryFault::InvalidStag), "not bound yet");
    let request = bind(window, region);
    table.bind(&request, OURS).unwrap();
    assert_eq!(table.bind(&request, OURS), Err(MemoryFault::InvalidStag), "bound already");
    let stag = request.rkey;
    assert_eq!(ask(&table, window, OURS), Err(MemoryFault::InvalidStag), "another key");
    assert_eq!(ask(&table, stag, SIBLING), Err(MemoryFault::NotAssociated));
    let write = |to, len| {
        let place = table.resolve(stag, OURS, Access::REMOTE_WRITE, to, len)?;
        Ok(place.backing() + place.offset())
    };
    assert_eq!(write(0x1010, 0x20), Ok(77 + 0x10));
    assert_eq!(write(0x102f, 1), Ok(77 + 0x2f));
    assert_eq!(write(0x100f, 1), Err(MemoryFault::Bounds));
    assert_eq!(write(0x102f, 2), Err(MemoryFault::Bounds));
    // It grants nothing to this end, nor windows of its own.
    for local in [Access::LOCAL_READ, Access::LOCAL_WRITE, Access::WINDOW_BIND] {
        let fault = table.resolve(stag, OURS, local, 0x1010, 1).unwrap_err();
        assert_eq!(fault, MemoryFault::AccessRights);
    }
    table.invalidate_local(stag, OURS).unwrap();
    assert_eq!(ask(&table, stag, OURS), Err(MemoryFault::InvalidStag));
    assert_eq!(table.invalidate_local(stag, OURS), Ok(()), "the peer may have been first");
    // Bound again, to be counted from 0, for another stream.
    let again = Bind { rkey: with_next_key(stag), zero_based: true, ..request };
    table.bind(&again, SIBLING).unwrap();
    let place = table.resolve(again.rkey, SIBLING, Access::REMOTE_READ, 0, 0x20).unwrap();
    assert_eq!(place.backing(), 77 + 0x10);
    assert_eq!(ask(&table, stag, SIBLING), Err(MemoryFault::InvalidStag));
}

// req-test: DDP-216
#[test]
fn a_window_is_bound_only_where_the_region_allows_it() {
    let table = RegionTable::new(8, 1);
    let region = |access| table.register(&Registration { access, ..WHAT }).unwrap();
    let (all, no_bind) = (region(Access::ALL), region(Access::from_bits(!32)));
    let read_only = region(Access::WINDOW_BIND | Access::REMOTE_READ);
    let window = table.allocate_window(3).unwrap();
    let good = bind(window, all);
    for (request, reach, fault) in [
        (Bind { rkey: window ^ 0x100, ..good }, OURS, MemoryFault::InvalidStag),
        (Bind { rkey: all, ..good }, OURS, MemoryFault::InvalidStag),
        (good, FOREIGN, MemoryFault::NotAssociated),
        (Bind { lkey: all ^ 1, ..good }, OURS, MemoryFault::InvalidStag),
        (Bind { lkey: no_bind, ..good }, OURS, MemoryFault::AccessRights),
        (Bind { lkey: read_only, ..good }, OURS, MemoryFault::AccessRights),
        (Bind { addr: u64::MAX, ..good }, OURS, MemoryFault::Wrap),
        (Bind { len: 0xf1, ..good }, OURS, MemoryFault::Bounds),
    ] {
        assert_eq!(table.bind(&request, reach), Err(fault), "{request:x?}");
    }
    let read = Bind { lkey: read_only, access: Access::REMOTE_READ, ..good };
    assert_eq!(table.bind(&read, OURS), Ok(()));
}

#[test]
fn local_invalidation_is_for_what_is_of_this_stream() {
    let table = RegionTable::new(8, 1);
    let shared = table.register(&WHAT).unwrap();
    let tied = table.register(&Registration { stream: Some(OURS.stream), ..WHAT }).unwrap();
    let window = table.allocate_window(3).unwrap();
    let request = bind(window, tied);
    table.bind(&request, OURS).unwrap();
    for (stag, reach, fault) in [
        (tied ^ 0x100, OURS, MemoryFault::InvalidStag),
        (tied ^ 1, OURS, MemoryFault::InvalidStag),
        (shared, OURS, MemoryFault::NotAssociated),
        (tied, SIBLING, MemoryFault::NotAssociated),
        (tied, OURS, MemoryFault::AccessRights),
        (request.rkey, SIBLING, MemoryFault::NotAssociated),
    ] {
        assert_eq!(table.invalidate_local(stag, reach), Err(fault), "{stag:#x} {reach:?}");
    }
    assert!(ask(&table, tied, OURS).is_ok() && ask(&table, request.rkey, OURS).is_ok());
    table.invalidate_local(request.rkey, OURS).unwrap();
    table.invalidate_local(tied, OURS).unwrap();
    assert!(ask(&table, tied, OURS).is_err());
}

#[test]
fn windows_end_with_their_region_and_retired_ones_are_not_bound_again() {
    let table = RegionTable::new(8, 1);
    let (region, other) = (table.register(&WHAT).unwrap(), table.register(&WHAT).unwrap());
    let windows: Vec<Stag> = (0..3).map(|_| table.allocate_window(3).unwrap()).collect();
    let requests = [bind(windows[0], region), bind(windows[1], region), bind(windows[2], other)];
    for request in &requests {
        table.bind(request, OURS).unwrap();
    }
    assert_eq!((table.window_count(region), table.window_count(other)), (2, 1));
    table.invalidate(region);
    assert!(table.invalidate_windows(region));
    let reached = requests.map(|request| ask(&table, request.rkey, OURS).is_ok());
    assert_eq!(reached, [false, false, true]);
    assert_eq!(table.window_count(region), 0);
    assert!(table.invalidate_windows(region), "look-ups by them may be under way");
    let again = table.enable(region, Access::ALL).unwrap();
    table.invalidate(again);
    assert!(!table.invalidate_windows(again), "none was bound since");

    table.retire_window(windows[2]);
    assert!(table.unbind(windows[2]) && !table.unbind(windows[2]));
    assert_eq!(table.window_count(other), 0);
    assert_eq!(table.bind(&requests[2], OURS), Err(MemoryFault::InvalidStag));
}

/// Of a local and a remote invalidation at once exactly one finds the STag valid, and the count of
/// the region's windows is right afterwards.
#[test]
fn invalidations_race_for_each_stag_and_one_wins() {
    let table = RegionTable::new(8, 1);
    let region = table.register(&WHAT).unwrap();
    let window = table.allocate_window(3).unwrap();
    let mut request = bind(window, region);
    for _ in 0..2_000 {
        table.bind(&request, OURS).unwrap();
        let wins = std::thread::scope(|scope| {
            let other = scope.spawn(|| table.invalidate(request.rkey));
            u32::from(table.invalidate(request.rkey)) + u32::from(other.join().unwrap())
        });
        assert_eq!((wins, table.window_count(region)), (1, 0));
        assert!(ask(&table, request.rkey, OURS).is_err());
        request.rkey = with_next_key(request.rkey);
    }
}

// req-test: RDMAP-283, RDMAP-284
#[test]
fn stags_are_spread_and_cannot_be_guessed() {
    const COUNT: u32 = 10_000;
    let table = RegionTable::new(1 << 14, 5);
    let stags: Vec<_> = (0..COUNT).map(|_| table.register(&WHAT).unwrap()).collect();
    assert_eq!(stags.iter().collect::<HashSet<_>>().len(), stags.len());
    let steps: HashSet<_> = stags.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    assert!(steps.len() > 9_900, "steps between STags repeat: {}", steps.len());
    // Each bit is set in half of them, and changes from one to the next half the time: within five
    // standard deviations of 50, where slots taken for good make the index a little less random.
    let near_half = |ones: usize| ones.abs_diff(5_000) < 350;
    for bit in 0..32 {
        let set = stags.iter().filter(|&&stag| stag >> bit & 1 == 1).count();
        let flips = stags.windows(2).filter(|w| (w[0] ^ w[1]) >> bit & 1 == 1).count();
        assert!(near_half(set) && near_half(flips), "bit {bit}: {set} set, {flips} flips");
    }
    // All of the range is used: its 256 equal parts have about 39 each.
    let mut parts = [0; 256];
    stags.iter().for_each(|stag| parts[(stag >> 24) as usize] += 1);
    assert!(parts.iter().all(|count| (10..=80).contains(count)), "{parts:?}");
    // Another seed gives others, and a slot that comes back gives another STag than before.
    let other = RegionTable::new(1 << 14, 6);
    let same = stags.iter().filter(|&&stag| other.register(&WHAT) == Ok(stag)).count();
    assert_eq!(same, 0);
    for &stag in &stags[..1_000] {
        table.invalidate(stag);
        table.release(stag);
        assert_ne!(table.register(&WHAT), Ok(stag));
    }
}
