//! Windows of both types, with keys that the consumer chooses.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

#[test]
fn window_of_type_1_is_for_all_streams_of_its_domain() {
    let table = RegionTable::new(8, 1);
    let region = table.register(&REGION).unwrap();
    let window = table.allocate_window_of(3, MwType::Type1).unwrap();
    let request = bind(window, region);
    assert_eq!(table.bind(&request, OTHER_PD), Err(MemoryFault::NotAssociated));
    table.bind(&request, SCOPE).unwrap();
    for scope in [SCOPE, OTHER_STREAM, 3.into()] {
        assert_eq!(try_write(&table, request.rkey, scope), Ok(()), "{scope:?}");
    }
    let no = Err(MemoryFault::NotAssociated);
    assert_eq!(try_write(&table, request.rkey, OTHER_PD), no);
    // Neither end can invalidate it by a request.
    for scope in [SCOPE, OTHER_STREAM] {
        assert_eq!(table.invalidate_local(request.rkey, scope), no);
        let shared = Err(InvalidateFault::Shared);
        assert_eq!(table.check_invalidate(request.rkey, scope), shared);
        assert!(!table.invalidate_remote(request.rkey, scope));
    }
    assert_eq!(try_write(&table, request.rkey, SCOPE), Ok(()));
}

#[test]
fn window_of_type_1_is_bound_again_and_unbound_by_an_empty_bind() {
    let table = RegionTable::new(8, 1);
    let regions = [(); 2].map(|()| table.register(&REGION).unwrap());
    let counts = || regions.map(|region| table.window_count(region));
    let window = table.allocate_window_of(3, MwType::Type1).unwrap();
    let first = bind(window, regions[0]);
    table.bind(&first, SCOPE).unwrap();
    // A request that is refused changes nothing.
    let read_only = Registration { access: Access::WINDOW_BIND, ..REGION };
    let read_only = table.register(&read_only).unwrap();
    let refused = Bind { lkey: read_only, ..bind(first.rkey, regions[0]) };
    assert_eq!(table.bind(&refused, SCOPE), Err(MemoryFault::AccessRights));
    assert_eq!((try_write(&table, first.rkey, SCOPE), counts()), (Ok(()), [1, 0]));
    // Another stream binds it to another region.
    let second = bind(first.rkey, regions[1]);
    table.bind(&second, OTHER_STREAM).unwrap();
    assert_eq!(try_write(&table, first.rkey, SCOPE), Err(MemoryFault::InvalidStag));
    assert_eq!((try_write(&table, second.rkey, SCOPE), counts()), (Ok(()), [0, 1]));
    // With the same key, to other bytes.
    let same = Bind { addr: 0x1020, ..second };
    table.bind(&same, SCOPE).unwrap();
    assert_eq!(try_write(&table, same.rkey, SCOPE), Err(MemoryFault::Bounds));
    assert_eq!(counts(), [0, 1]);
    // The region of a request without bytes does not matter.
    for _ in 0..2 {
        table.bind(&Bind { len: 0, lkey: 0, ..bind(same.rkey, 0) }, SCOPE).unwrap();
        assert_eq!(try_write(&table, same.rkey, SCOPE), Err(MemoryFault::InvalidStag));
        assert_eq!(counts(), [0, 0]);
    }
    // Its region ends the binding.
    table.bind(&first, SCOPE).unwrap();
    table.invalidate(regions[0]);
    assert!(table.invalidate_windows(regions[0]));
    assert_eq!(try_write(&table, first.rkey, SCOPE), Err(MemoryFault::InvalidStag));
    assert!(!table.unbind(window));
}

/// It would show the region to all streams of the domain.
#[test]
fn window_of_type_1_cannot_be_bound_to_a_region_of_one_stream() {
    let table = RegionTable::new(8, 1);
    let mine = table.register(&Registration { stream: Some(SCOPE.stream), ..REGION }).unwrap();
    let window = table.allocate_window_of(3, MwType::Type1).unwrap();
    assert_eq!(table.bind(&bind(window, mine), SCOPE), Err(MemoryFault::NotAssociated));
    let window = table.allocate_window(3).unwrap();
    assert_eq!(table.bind(&bind(window, mine), SCOPE), Ok(()));
}

#[test]
fn chosen_keys_are_not_generated_again() {
    let table = RegionTable::new(8, 1);
    let window = table.allocate_window(3).unwrap();
    let mut keys = table.window_keys();
    let mut stags: Vec<_> = (0..100).map(|key| keys.choose(window, key)).collect();
    assert!(stags.iter().zip(0..).all(|(&stag, key)| stag == window & !0xff | key));
    stags.extend((0..156).map(|_| keys.next(&table, window)));
    assert_eq!(stags.iter().collect::<HashSet<_>>().len(), 256);
    assert!(stags.iter().all(|stag| stag >> 8 == window >> 8));
    // A consumer may go round, as with verbs. The generator takes another tag.
    assert_eq!(keys.choose(window, 7), window & !0xff | 7);
    assert_ne!(keys.next(&table, window) >> 8, window >> 8);
}

/// Operation on one of the windows.
#[derive(Clone, Copy, Debug)]
enum Step {
    Bind { key: u8, region: usize, stream: usize, offset: u64, len: u64 },
    InvalidateLocal { key: u8, stream: usize },
    InvalidateRemote { key: u8, stream: usize },
    Unbind,
    EndRegion { region: usize },
}

/// Binding of the model.
#[derive(Clone, Copy, Debug)]
struct Bound {
    key: u8,
    region: usize,
    stream: usize,
    offset: u64,
    len: u64,
}

const KEYS: u8 = 4;
const STREAMS: [AccessScope; 2] = [SCOPE, OTHER_STREAM];
/// Number of regions; the last belongs to the first stream.
const REGIONS: usize = 3;
/// Types of the windows.
const TYPES: [MwType; 3] = [MwType::Type2, MwType::Type1, MwType::Type2];

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let (key, stream, region) = (0..KEYS, 0..STREAMS.len(), 0..REGIONS);
    let bind = (key.clone(), region.clone(), stream.clone(), 0..0x120_u64, 0..0x40_u64);
    let step = prop_oneof![
        6 => bind.prop_map(|(key, region, stream, offset, len)| {
            Step::Bind { key, region, stream, offset, len }
        }),
        2 => (key.clone(), stream.clone())
            .prop_map(|(key, stream)| Step::InvalidateLocal { key, stream }),
        2 => (key, stream).prop_map(|(key, stream)| Step::InvalidateRemote { key, stream }),
        1 => Just(Step::Unbind),
        1 => region.prop_map(|region| Step::EndRegion { region }),
    ];
    proptest::collection::vec((0..TYPES.len(), step), 1..40)
}

fn registration_of(region: usize) -> Registration {
    Registration { stream: (region == REGIONS - 1).then_some(SCOPE.stream), ..REGION }
}

/// The table, its STags, and the bindings that the steps should have led to.
struct Model {
    table: RegionTable,
    regions: [Stag; REGIONS],
    windows: [Stag; TYPES.len()],
    bound: [Option<Bound>; TYPES.len()],
}

impl Model {
    fn new() -> Self {
        let table = RegionTable::new(8, 3);
        let regions = [0, 1, 2].map(|at| table.register(&registration_of(at)).unwrap());
        let windows = TYPES.map(|mw_type| table.allocate_window_of(3, mw_type).unwrap());
        Self { table, regions, windows, bound: [None; TYPES.len()] }
    }

    fn stag(&self, window: usize, key: u8) -> Stag {
        self.windows[window] & !0xff | Stag::from(key)
    }

    fn step(&mut self, window: usize, step: Step) {
        let is_type_1 = TYPES[window] == MwType::Type1;
        let bound = self.bound[window];
        let is_bound_as = |key, stream| {
            bound.is_some_and(|bound| bound.key == key && bound.stream == stream && !is_type_1)
        };
        match step {
            Step::Bind { key, region, stream, offset, len } => {
                let request = Bind {
                    rkey: self.stag(window, key),
                    lkey: self.regions[region],
                    addr: REGION.base + offset,
                    len,
                    access: Access::REMOTE_WRITE,
                    zero_based: false,
                };
                let unbinds = is_type_1 && len == 0;
                let is_visible = region < REGIONS - 1 || (stream == 0 && !is_type_1);
                let is_inside = offset + len <= REGION.len;
                let expected =
                    unbinds || ((is_type_1 || bound.is_none()) && is_visible && is_inside);
                assert_eq!(self.table.bind(&request, STREAMS[stream]).is_ok(), expected);
                if expected {
                    let binding = Bound { key, region, stream, offset, len };
                    self.bound[window] = (!unbinds).then_some(binding);
                }
            }
            Step::InvalidateLocal { key, stream } => {
                let stag = self.stag(window, key);
                let done = self.table.invalidate_local(stag, STREAMS[stream]).is_ok();
                assert!(done || !is_bound_as(key, stream));
                if is_bound_as(key, stream) {
                    self.bound[window] = None;
                }
            }
            Step::InvalidateRemote { key, stream } => {
                let stag = self.stag(window, key);
                let done = self.table.invalidate_remote(stag, STREAMS[stream]);
                assert_eq!(done, is_bound_as(key, stream));
                if done {
                    self.bound[window] = None;
                }
            }
            Step::Unbind => {
                assert_eq!(self.table.unbind(self.windows[window]), bound.is_some());
                self.bound[window] = None;
            }
            Step::EndRegion { region } => {
                let stag = self.regions[region];
                assert!(self.table.invalidate(stag));
                self.table.invalidate_windows(stag);
                let again = self.table.reregister(stag, &registration_of(region));
                self.regions[region] = again.unwrap();
                let ended = |bound: &Bound| bound.region == region;
                for bound in self.bound.iter_mut().filter(|bound| bound.as_ref().is_some_and(ended))
                {
                    *bound = None;
                }
            }
        }
    }

    /// Compares all that the table grants with the bindings.
    fn check(&self) {
        for (window, bound) in self.bound.iter().enumerate() {
            for (key, (stream, &scope)) in
                (0..KEYS).flat_map(|key| STREAMS.iter().enumerate().map(move |of| (key, of)))
            {
                let granted = |at| {
                    let (stag, right) = (self.stag(window, key), Access::REMOTE_WRITE);
                    self.table.resolve(stag, scope, right, REGION.base + at, 1).is_ok()
                };
                let is_mine = bound.filter(|bound| {
                    let for_stream = bound.stream == stream || TYPES[window] == MwType::Type1;
                    bound.key == key && for_stream
                });
                for at in (0..0x120).step_by(0x1f) {
                    let expected = is_mine.is_some_and(|bound| {
                        (bound.offset..bound.offset + bound.len).contains(&at)
                    });
                    assert_eq!(granted(at), expected, "window {window}, key {key}, {scope:?}");
                }
            }
        }
        for (index, &region) in self.regions.iter().enumerate() {
            let bound = self.bound.iter().flatten().filter(|bound| bound.region == index);
            assert_eq!(self.table.window_count(region) as usize, bound.count());
        }
    }
}

proptest! {
    #[test]
    fn windows_grant_exactly_what_was_bound(steps in steps()) {
        let mut model = Model::new();
        for (window, step) in steps {
            model.step(window, step);
            model.check();
        }
    }
}
