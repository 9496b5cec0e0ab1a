//! Table of regions: each check, association with a stream, windows, unpredictable STags.

mod mw_types;

use std::collections::HashSet;

use super::*;

const REGION: Registration = Registration {
    pd: 3,
    stream: None,
    base: 0x1000,
    len: 0x100,
    access: Access::ALL,
    backing: 77,
};
const SCOPE: AccessScope = AccessScope { pd: 3, stream: StreamId(1) };
const OTHER_STREAM: AccessScope = AccessScope { pd: 3, stream: StreamId(2) };
const OTHER_PD: AccessScope = AccessScope { pd: 4, stream: StreamId(1) };

/// Resolves a remote write of one byte in a region of 0x100 bytes.
fn try_write(table: &RegionTable, stag: Stag, scope: AccessScope) -> Result<(), MemoryFault> {
    table.resolve(stag, scope, Access::REMOTE_WRITE, 0x1010, 1).map(|_| ())
}

/// Next key in counting order, as a consumer may choose it.
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
fn first_failing_check_is_reported() {
    let table = RegionTable::new(8, 1);
    let only_read = Registration { access: Access::REMOTE_READ, ..REGION };
    let stag = table.register(&only_read).unwrap();
    let read = Access::REMOTE_READ;
    let fault_of =
        |stag, pd: u32, need, to, len| table.resolve(stag, pd, need, to, len).unwrap_err();
    assert_eq!(fault_of(0, 3, read, 0x1000, 1), MemoryFault::InvalidStag);
    assert_eq!(fault_of(stag ^ 1, 3, read, 0x1000, 1), MemoryFault::InvalidStag);
    assert_eq!(fault_of(stag, 4, Access::REMOTE_WRITE, u64::MAX, 9), MemoryFault::NotAssociated);
    assert_eq!(fault_of(stag, 3, Access::REMOTE_WRITE, u64::MAX, 9), MemoryFault::AccessRights);
    assert_eq!(fault_of(stag, 3, read, u64::MAX, 9), MemoryFault::Wrap);
    assert_eq!(fault_of(stag, 3, read, 0xfff, 1), MemoryFault::Bounds);
    assert_eq!(fault_of(stag, 3, read, 0x10ff, 2), MemoryFault::Bounds);
    assert_eq!(fault_of(stag, 3, read, 0x1100, 1), MemoryFault::Bounds);
    let range = table.resolve(stag, 3, read, 0x10ff, 1).unwrap();
    assert_eq!((range.backing(), range.offset(), range.len()), (77, 0xff, 1));
}

// req-test: DDP-187, DDP-192, RDMAP-277, RDMAP-326, RDMAP-327
#[test]
fn stag_is_valid_for_its_pd_or_one_stream() {
    let table = RegionTable::new(8, 1);
    let shared = table.register(&REGION).unwrap();
    let qp_bound = Registration { stream: Some(SCOPE.stream), ..REGION };
    let qp_bound = table.register(&qp_bound).unwrap();
    let no = Err(MemoryFault::NotAssociated);
    for (stag, scope, expected) in [
        (shared, SCOPE, Ok(())),
        (shared, OTHER_STREAM, Ok(())),
        (shared, OTHER_PD, no),
        (qp_bound, SCOPE, Ok(())),
        (qp_bound, OTHER_STREAM, no),
        (qp_bound, OTHER_PD, no),
        (qp_bound, 3.into(), no),
    ] {
        assert_eq!(try_write(&table, stag, scope), expected, "{stag:#x} {scope:?}");
    }
}

// req-test: DDP-209, RDMAP-280
#[test]
fn access_is_granted_exactly_by_its_rights() {
    let table = RegionTable::new(32, 1);
    for bits in 0..=Access::ALL.bits() {
        let access = Access::from_bits(bits);
        let stag = table.register(&Registration { access, ..REGION }).unwrap();
        for needed in (0..6).map(|bit| Access::from_bits(1 << bit)) {
            let granted = table.resolve(stag, SCOPE, needed, 0x1000, 1).is_ok();
            assert_eq!(granted, bits & needed.bits() != 0, "{access:?} {needed:?}");
        }
        table.invalidate(stag);
        table.release(stag);
    }
}

// req-test: DDP-196, DDP-197, DDP-208, RDMAP-279
#[test]
fn invalidated_stag_is_unusable_and_its_slot_is_reused() {
    let table = RegionTable::new(2, 9);
    let first = table.register(&REGION).unwrap();
    let second = table.register(&REGION).unwrap();
    assert_eq!(table.register(&REGION), Err(RegisterError::TableFull));
    assert!(table.invalidate(first));
    assert!(!table.invalidate(first));
    assert!(try_write(&table, first, SCOPE).is_err());
    assert!(try_write(&table, second, SCOPE).is_ok());
    table.release(first);
    let third = table.register(&REGION).unwrap();
    assert_ne!(third, first);
    assert!(try_write(&table, first, SCOPE).is_err());
}

// req-test: RDMAP-280, RDMAP-323
#[test]
fn enabled_region_has_new_rights_and_new_stag() {
    let table = RegionTable::new(2, 9);
    let first = table.register(&REGION).unwrap();
    assert_eq!(table.reregister(first, &REGION), None, "it is valid");
    table.invalidate(first);
    let only_read = Registration { access: Access::REMOTE_READ, ..REGION };
    let second = table.reregister(first, &only_read).unwrap();
    assert!(try_write(&table, first, SCOPE).is_err());
    assert_eq!(try_write(&table, second, SCOPE), Err(MemoryFault::AccessRights));
    assert!(table.resolve(second, SCOPE, Access::REMOTE_READ, 0x1000, 1).is_ok());
    table.invalidate(second);
    assert_eq!(table.reregister(first, &REGION), None, "the slot has a new STag");
    table.release(second);
    assert_eq!(table.reregister(second, &REGION), None, "it is gone");
}

#[test]
fn region_is_registered_again_elsewhere() {
    let table = RegionTable::new(2, 9);
    let first = table.register(&REGION).unwrap();
    table.invalidate(first);
    let wraps = Registration { base: u64::MAX, ..REGION };
    assert_eq!(wraps.check(), Err(RegisterError::Wrap));
    assert_eq!(table.reregister(first, &wraps), None);
    let moved = Registration { pd: 4, base: 0x9000, len: 0x10, backing: 5, ..REGION };
    let second = table.reregister(first, &moved).unwrap();
    assert_eq!(try_write(&table, first, OTHER_PD), Err(MemoryFault::InvalidStag));
    assert_eq!(try_write(&table, second, SCOPE), Err(MemoryFault::NotAssociated));
    assert_eq!(try_write(&table, second, OTHER_PD), Err(MemoryFault::Bounds));
    let range = table.resolve(second, OTHER_PD, Access::REMOTE_WRITE, 0x900f, 1).unwrap();
    assert_eq!((range.backing(), range.offset()), (5, 0xf));
    // For one stream.
    table.invalidate(second);
    let qp_bound = Registration { stream: Some(SCOPE.stream), ..REGION };
    let third = table.reregister(second, &qp_bound).unwrap();
    assert_eq!(try_write(&table, third, SCOPE), Ok(()));
    assert_eq!(try_write(&table, third, OTHER_STREAM), Err(MemoryFault::NotAssociated));
}

/// The STags of a region do not predict the next one, and do not repeat in a cycle.
// req-test: RDMAP-283
#[test]
fn stag_after_enable_is_random() {
    const COUNT: usize = 4_000;
    let table = RegionTable::new(4, 11);
    let mut stag = table.register(&REGION).unwrap();
    let mut stags = vec![stag];
    for _ in 1..COUNT {
        table.invalidate(stag);
        stag = table.reregister(stag, &REGION).unwrap();
        stags.push(stag);
    }
    let steps: HashSet<_> = stags.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    assert!(steps.len() > COUNT - 20, "{} different steps", steps.len());
    assert!(stags.iter().collect::<HashSet<_>>().len() > COUNT - 20);
    // Within five standard deviations, for each of the 30 bits that are not the slot index.
    for bit in (0..8).chain(10..32) {
        let flips = stags.windows(2).filter(|w| (w[0] ^ w[1]) >> bit & 1 == 1).count();
        assert!(flips.abs_diff(COUNT / 2) < 160, "bit {bit} flips {flips} times");
    }
}

// req-test: RDMAP-283
#[test]
fn window_keys_are_unique_and_in_random_order() {
    let table = RegionTable::new(4, 12);
    let region = table.register(&REGION).unwrap();
    let first = table.allocate_window(3).unwrap();
    let mut keys = table.window_keys();
    let mut other = table.window_keys();
    let mut stag = first;
    let mut stags = Vec::new();
    for _ in 0..4 * 256 {
        stag = keys.next(&table, stag);
        table.bind(&Bind { rkey: stag, ..bind(first, region) }, SCOPE).unwrap();
        assert!(table.invalidate(stag));
        stags.push(stag);
    }
    assert_eq!(stags.iter().collect::<HashSet<_>>().len(), stags.len(), "an STag was repeated");
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
fn retagged_window_binds_under_previous_tag_unless_revoked() {
    let table = RegionTable::new(8, 1);
    let region = table.register(&REGION).unwrap();
    let first = table.allocate_window(3).unwrap();
    let second = table.retag_window(first, false);
    assert_ne!(first >> 8, second >> 8);
    for tag in [first, second] {
        let queued = bind(tag, region);
        table.bind(&queued, SCOPE).unwrap();
        table.invalidate_local(queued.rkey, SCOPE).unwrap();
    }
    let third = table.retag_window(second, true);
    for tag in [first, second] {
        let fault = table.bind(&bind(tag, region), SCOPE);
        assert_eq!(fault, Err(MemoryFault::InvalidStag), "a binding queued before");
    }
    assert_eq!(table.invalidate_local(second, SCOPE), Ok(()), "it is already invalid");
    assert_eq!(table.invalidate_local(first, SCOPE), Err(MemoryFault::InvalidStag));
    table.bind(&bind(third, region), SCOPE).unwrap();
}

// req-test: RDMAP-182, RDMAP-265, RDMAP-266, RDMAP-282
#[test]
fn remote_invalidate_is_limited_to_stags_of_one_stream() {
    let table = RegionTable::new(8, 1);
    let shared = table.register(&REGION).unwrap();
    let qp_bound = table.register(&Registration { stream: Some(SCOPE.stream), ..REGION }).unwrap();
    for (stag, scope, expected) in [
        (0, SCOPE, Err(InvalidateFault::Unknown)),
        (qp_bound ^ 1, SCOPE, Err(InvalidateFault::Unknown)),
        (shared, SCOPE, Err(InvalidateFault::Shared)),
        (shared, OTHER_PD, Err(InvalidateFault::Foreign)),
        (qp_bound, OTHER_STREAM, Err(InvalidateFault::Foreign)),
        (qp_bound, OTHER_PD, Err(InvalidateFault::Foreign)),
        (qp_bound, SCOPE, Ok(())),
    ] {
        assert_eq!(table.check_invalidate(stag, scope), expected, "{stag:#x} {scope:?}");
    }
    let local = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let sink = Registration { stream: Some(SCOPE.stream), access: local, ..REGION };
    let sink = table.register(&sink).unwrap();
    assert_eq!(table.check_invalidate(sink, SCOPE), Err(InvalidateFault::NotRemote));
    assert!(!table.invalidate_remote(sink, SCOPE));
    assert_eq!(table.check_invalidate(sink, OTHER_STREAM), Err(InvalidateFault::Foreign));
    assert_eq!(table.invalidate_local(sink, SCOPE), Ok(()));
    let window = table.allocate_window(3).unwrap();
    table.bind(&bind(window, qp_bound), SCOPE).unwrap();
    assert_eq!(table.check_invalidate(qp_bound, SCOPE), Err(InvalidateFault::Shared));
    let bound = bind(window, qp_bound).rkey;
    assert_eq!(table.check_invalidate(bound, SCOPE), Ok(()));
    assert!(table.invalidate(bound));
    assert_eq!(table.check_invalidate(qp_bound, SCOPE), Ok(()));
}

#[test]
fn window_grants_its_range_to_its_stream_only() {
    let table = RegionTable::new(8, 1);
    let region = table.register(&REGION).unwrap();
    let window = table.allocate_window(3).unwrap();
    assert_eq!(try_write(&table, window, SCOPE), Err(MemoryFault::InvalidStag), "not bound yet");
    let request = bind(window, region);
    table.bind(&request, SCOPE).unwrap();
    assert_eq!(table.bind(&request, SCOPE), Err(MemoryFault::InvalidStag), "bound already");
    let stag = request.rkey;
    assert_eq!(try_write(&table, window, SCOPE), Err(MemoryFault::InvalidStag), "another key");
    assert_eq!(try_write(&table, stag, OTHER_STREAM), Err(MemoryFault::NotAssociated));
    let write = |to, len| {
        let range = table.resolve(stag, SCOPE, Access::REMOTE_WRITE, to, len)?;
        Ok(range.backing() + range.offset())
    };
    assert_eq!(write(0x1010, 0x20), Ok(77 + 0x10));
    assert_eq!(write(0x102f, 1), Ok(77 + 0x2f));
    assert_eq!(write(0x100f, 1), Err(MemoryFault::Bounds));
    assert_eq!(write(0x102f, 2), Err(MemoryFault::Bounds));
    // No local rights, and no right to bind windows.
    for local in [Access::LOCAL_READ, Access::LOCAL_WRITE, Access::WINDOW_BIND] {
        let fault = table.resolve(stag, SCOPE, local, 0x1010, 1).unwrap_err();
        assert_eq!(fault, MemoryFault::AccessRights);
    }
    table.invalidate_local(stag, SCOPE).unwrap();
    assert_eq!(try_write(&table, stag, SCOPE), Err(MemoryFault::InvalidStag));
    assert_eq!(
        table.invalidate_local(stag, SCOPE),
        Ok(()),
        "the peer may have invalidated it first"
    );
    // Bound again, zero-based, for another stream.
    let again = Bind { rkey: with_next_key(stag), zero_based: true, ..request };
    table.bind(&again, OTHER_STREAM).unwrap();
    let range = table.resolve(again.rkey, OTHER_STREAM, Access::REMOTE_READ, 0, 0x20).unwrap();
    assert_eq!(range.backing(), 77 + 0x10);
    assert_eq!(try_write(&table, stag, OTHER_STREAM), Err(MemoryFault::InvalidStag));
}

// req-test: DDP-216
#[test]
fn bind_requires_the_rights_of_the_region() {
    let table = RegionTable::new(8, 1);
    let region = |access| table.register(&Registration { access, ..REGION }).unwrap();
    let (all, no_bind) = (region(Access::ALL), region(Access::from_bits(!32)));
    let read_only = region(Access::WINDOW_BIND | Access::REMOTE_READ);
    let window = table.allocate_window(3).unwrap();
    let good = bind(window, all);
    for (request, scope, fault) in [
        (Bind { rkey: window ^ 0x100, ..good }, SCOPE, MemoryFault::InvalidStag),
        (Bind { rkey: all, ..good }, SCOPE, MemoryFault::InvalidStag),
        (good, OTHER_PD, MemoryFault::NotAssociated),
        (Bind { lkey: all ^ 1, ..good }, SCOPE, MemoryFault::InvalidStag),
        (Bind { lkey: no_bind, ..good }, SCOPE, MemoryFault::AccessRights),
        (Bind { lkey: read_only, ..good }, SCOPE, MemoryFault::AccessRights),
        (Bind { addr: u64::MAX, ..good }, SCOPE, MemoryFault::Wrap),
        (Bind { len: 0xf1, ..good }, SCOPE, MemoryFault::Bounds),
    ] {
        assert_eq!(table.bind(&request, scope), Err(fault), "{request:x?}");
    }
    let read = Bind { lkey: read_only, access: Access::REMOTE_READ, ..good };
    assert_eq!(table.bind(&read, SCOPE), Ok(()));
}

#[test]
fn local_invalidate_is_limited_to_stags_of_the_stream() {
    let table = RegionTable::new(8, 1);
    let shared = table.register(&REGION).unwrap();
    let qp_bound = table.register(&Registration { stream: Some(SCOPE.stream), ..REGION }).unwrap();
    let window = table.allocate_window(3).unwrap();
    let request = bind(window, qp_bound);
    table.bind(&request, SCOPE).unwrap();
    for (stag, scope, fault) in [
        (qp_bound ^ 0x100, SCOPE, MemoryFault::InvalidStag),
        (qp_bound ^ 1, SCOPE, MemoryFault::InvalidStag),
        (shared, SCOPE, MemoryFault::NotAssociated),
        (qp_bound, OTHER_STREAM, MemoryFault::NotAssociated),
        (qp_bound, SCOPE, MemoryFault::AccessRights),
        (request.rkey, OTHER_STREAM, MemoryFault::NotAssociated),
    ] {
        assert_eq!(table.invalidate_local(stag, scope), Err(fault), "{stag:#x} {scope:?}");
    }
    assert!(
        try_write(&table, qp_bound, SCOPE).is_ok()
            && try_write(&table, request.rkey, SCOPE).is_ok()
    );
    table.invalidate_local(request.rkey, SCOPE).unwrap();
    table.invalidate_local(qp_bound, SCOPE).unwrap();
    assert!(try_write(&table, qp_bound, SCOPE).is_err());
}

#[test]
fn windows_end_with_their_region_and_retired_windows_cannot_bind() {
    let table = RegionTable::new(8, 1);
    let (region, other) = (table.register(&REGION).unwrap(), table.register(&REGION).unwrap());
    let windows: Vec<Stag> = (0..3).map(|_| table.allocate_window(3).unwrap()).collect();
    let requests = [bind(windows[0], region), bind(windows[1], region), bind(windows[2], other)];
    for request in &requests {
        table.bind(request, SCOPE).unwrap();
    }
    assert_eq!((table.window_count(region), table.window_count(other)), (2, 1));
    table.invalidate(region);
    assert!(table.invalidate_windows(region));
    let reached = requests.map(|request| try_write(&table, request.rkey, SCOPE).is_ok());
    assert_eq!(reached, [false, false, true]);
    assert_eq!(table.window_count(region), 0);
    assert!(table.invalidate_windows(region), "lookups of it may be in progress");
    let again = table.reregister(region, &REGION).unwrap();
    table.invalidate(again);
    assert!(!table.invalidate_windows(again), "no later binding");

    table.retire_window(windows[2]);
    assert!(table.unbind(windows[2]) && !table.unbind(windows[2]));
    assert_eq!(table.window_count(other), 0);
    assert_eq!(table.bind(&requests[2], SCOPE), Err(MemoryFault::InvalidStag));
}

/// Exactly one of two concurrent invalidations finds the STag valid, and the region's count of
/// bound windows is correct afterwards.
#[test]
fn one_of_two_concurrent_invalidations_wins() {
    let table = RegionTable::new(8, 1);
    let region = table.register(&REGION).unwrap();
    let window = table.allocate_window(3).unwrap();
    let mut request = bind(window, region);
    for _ in 0..2_000 {
        table.bind(&request, SCOPE).unwrap();
        let wins = std::thread::scope(|scope| {
            let other = scope.spawn(|| table.invalidate(request.rkey));
            u32::from(table.invalidate(request.rkey)) + u32::from(other.join().unwrap())
        });
        assert_eq!((wins, table.window_count(region)), (1, 0));
        assert!(try_write(&table, request.rkey, SCOPE).is_err());
        request.rkey = with_next_key(request.rkey);
    }
}

// req-test: RDMAP-283, RDMAP-284
#[test]
fn stags_are_uniform_and_unpredictable() {
    const COUNT: u32 = 10_000;
    let table = RegionTable::new(1 << 14, 5);
    let stags: Vec<_> = (0..COUNT).map(|_| table.register(&REGION).unwrap()).collect();
    assert_eq!(stags.iter().collect::<HashSet<_>>().len(), stags.len());
    let steps: HashSet<_> = stags.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    assert!(steps.len() > 9_900, "steps between STags repeat: {}", steps.len());
    // Each bit is set in half of the STags, and flips between neighbors half the time, within seven
    // standard deviations: slots are not freed, so the index is a little less random.
    let near_half = |ones: usize| ones.abs_diff(5_000) < 350;
    for bit in 0..32 {
        let set = stags.iter().filter(|&&stag| stag >> bit & 1 == 1).count();
        let flips = stags.windows(2).filter(|w| (w[0] ^ w[1]) >> bit & 1 == 1).count();
        assert!(near_half(set) && near_half(flips), "bit {bit}: {set} set, {flips} flips");
    }
    // The whole range is used: each of 256 equal parts has about 39 STags.
    let mut parts = [0; 256];
    stags.iter().for_each(|stag| parts[(stag >> 24) as usize] += 1);
    assert!(parts.iter().all(|count| (10..=80).contains(count)), "{parts:?}");
    // Another seed gives other STags, and a reused slot gives another STag than before.
    let other = RegionTable::new(1 << 14, 6);
    let same = stags.iter().filter(|&&stag| other.register(&REGION) == Ok(stag)).count();
    assert_eq!(same, 0);
    for &stag in &stags[..1_000] {
        table.invalidate(stag);
        table.release(stag);
        assert_ne!(table.register(&REGION), Ok(stag));
    }
}

#[test]
fn run_of_accesses_is_checked_as_each_alone() {
    let regions = RegionTable::new(8, 7);
    let register = |base, len, access| {
        let what = Registration { pd: 1, stream: None, base, len, access, backing: 5 };
        regions.register(&what).unwrap()
    };
    let end = u64::MAX - 9;
    let stags = [
        register(100, 50, Access::ALL),
        register(120, 50, Access::REMOTE_WRITE),
        register(end, 9, Access::ALL),
        register(100, 50, Access::LOCAL_READ),
        0,
    ];
    let places = [0, 99, 100, 119, 120, 149, 150, 169, end, u64::MAX - 1, u64::MAX];
    let scope = AccessScope::from(1);
    let needed = Access::REMOTE_WRITE;
    let mut last = LastRegion::NONE;
    for stag in stags.into_iter().flat_map(|stag| [stag, stags[0], stag]) {
        for (to, len) in places.iter().flat_map(|&to| [1, 2, 20, 50, 51].map(|len| (to, len))) {
            let alone = regions.resolve(stag, scope, needed, to, len).ok();
            let in_run = regions.resolve_in_run(&mut last, stag, scope, needed, to, len);
            let fields = |range: MemoryRange| (range.backing(), range.offset(), range.len());
            assert_eq!(in_run.map(fields), alone.map(fields), "{stag:x} {to} {len}");
        }
    }
}
