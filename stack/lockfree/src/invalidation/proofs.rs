//! Every interleaving of a poll that resolves an STag and copies, and of threads that invalidate
//! that STag: the memory is not accessed after it was freed, and the counts of bound windows are
//! right. The model's first thread only starts the others and waits for them, because loom does not
//! explore all interleavings with it.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::regions::{
    AccessScope, Bind, MwType, RegionTable, Registration, Stag, StreamId,
};
use loom::thread;

use super::*;
use crate::qsbr::synchronize;
use crate::qsbr::testing::Shard;
use crate::sync::{Arc, Cell};

const SCOPE: AccessScope = AccessScope { pd: 1, stream: StreamId(1) };

/// Shards, a region table, and the memory of its regions, indexed by their `backing`.
struct Model<const SHARDS: usize> {
    shards: [Shard; SHARDS],
    regions: RegionTable,
    /// Two cells per region.
    memory: [Cell<u32>; 4],
}

impl<const SHARDS: usize> Model<SHARDS> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            shards: [(); SHARDS].map(|()| Shard::new()),
            regions: RegionTable::new(4, 1),
            memory: [(); 4].map(|()| Cell::new(0)),
        })
    }

    fn register(&self, backing: u64) -> Stag {
        let what = Registration {
            pd: 1,
            stream: None,
            base: 0x100 * backing,
            len: 16,
            access: Access::ALL,
            backing,
        };
        self.regions.register(&what).unwrap()
    }

    fn bind(&self, rkey: Stag, lkey: Stag, backing: u64) -> bool {
        let (access, addr) = (Access::REMOTE_WRITE, 0x100 * backing);
        let bind = Bind { rkey, lkey, addr, len: 8, access, zero_based: true };
        self.regions.bind(&bind, SCOPE).is_ok()
    }

    /// Runs one poll of a shard, unless its lock is held.
    fn poll(&self, shard: usize, step: impl FnOnce()) {
        let shard = &self.shards[shard];
        if let Some(_guard) = shard.lock.try_lock() {
            shard.epoch.report_quiescent();
            step();
        }
    }

    /// Places an RDMA Write of the peer.
    fn write(&self, stag: Stag, to: u64) {
        if let Ok(place) = self.regions.resolve(stag, SCOPE, Access::REMOTE_WRITE, to, 8) {
            let piece = usize::try_from(2 * place.backing() + place.offset() / 8).unwrap();
            // SAFETY: loom checks that no other thread accesses the cell at the same time.
            self.memory[piece].with_mut(|bytes| unsafe { *bytes += 1 });
        }
    }

    fn synchronize(&self) {
        synchronize(self.shards.iter());
    }

    /// The steps of dropping a [`crate::Mr`]; then the memory returns to the arena.
    fn drop_region(&self, region: Stag, backing: usize) {
        revoke_region(&self.regions, region, || self.synchronize());
        assert_eq!(self.regions.window_count(region), 0);
        for piece in &self.memory[2 * backing..2 * backing + 2] {
            // SAFETY: as above; this stands for freeing the memory.
            piece.with_mut(|bytes| unsafe { *bytes = 0 });
        }
        self.regions.release(region);
    }
}

/// Step of one thread.
type Step<const SHARDS: usize> = Box<dyn FnOnce(&Model<SHARDS>) + Send>;

fn step<const SHARDS: usize>(step: impl FnOnce(&Model<SHARDS>) + Send + 'static) -> Step<SHARDS> {
    Box::new(step)
}

/// Runs the steps concurrently on the model and waits for them.
fn run_threads<const SHARDS: usize, const THREADS: usize>(
    model: &Arc<Model<SHARDS>>,
    steps: [Step<SHARDS>; THREADS],
) {
    let threads = steps.map(|step| {
        let model = Arc::clone(model);
        thread::spawn(move || step(&model))
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Two shards, each with a poll, and a region that is dropped.
#[test]
fn region_is_freed_after_the_polls_of_all_shards() {
    check(2, || {
        let model = Model::<2>::new();
        let region = model.register(0);
        run_threads(
            &model,
            [
                step(move |model| model.poll(0, || model.write(region, 0))),
                step(move |model| model.poll(1, || model.write(region, 8))),
                step(move |model| model.drop_region(region, 0)),
            ],
        );
    });
}

/// The next poll of a shard may be on another thread: it sees what the one before has seen.
#[test]
fn region_is_freed_whichever_thread_polls_next() {
    check(2, || {
        let model = Model::<1>::new();
        let region = model.register(0);
        run_threads(
            &model,
            [
                step(move |model| model.poll(0, || model.write(region, 0))),
                step(move |model| model.poll(0, || model.write(region, 0))),
                step(move |model| model.drop_region(region, 0)),
            ],
        );
    });
}

/// The window's owner revokes it, the region's owner drops the region, a poll writes through the
/// window.
#[test]
fn region_is_freed_after_polls_through_a_window_revoked_meanwhile() {
    check(2, || {
        let model = Model::<1>::new();
        let region = model.register(0);
        let window = model.regions.allocate_window(1).unwrap();
        assert!(model.bind(window, region, 0));
        run_threads(
            &model,
            [
                step(move |model| model.poll(0, || model.write(window, 0))),
                step(move |model| {
                    let _ = model.regions.unbind(window);
                }),
                step(move |model| model.drop_region(region, 0)),
            ],
        );
    });
}

/// A request binds a window to a region that is being dropped, and a Write arrives for the window.
#[test]
fn region_is_freed_after_a_bind_in_flight() {
    check(3, || {
        let model = Model::<1>::new();
        let region = model.register(0);
        let window = model.regions.allocate_window(1).unwrap();
        run_threads(
            &model,
            [
                step(move |model| {
                    model.poll(0, || {
                        let _ = model.bind(window, region, 0);
                    });
                    model.poll(0, || model.write(window, 0));
                }),
                step(move |model| model.drop_region(region, 0)),
            ],
        );
        assert!(!model.regions.unbind(window), "the window outlived its region");
    });
}

/// A window of type 1 moves to another region while the region that it leaves is dropped: nobody
/// uses that memory afterwards, and the window is counted where it is bound.
#[test]
fn region_is_freed_after_a_window_of_type_1_has_left_it() {
    check(2, || {
        let model = Model::<1>::new();
        let regions = [model.register(0), model.register(1)];
        let window = model.regions.allocate_window_of(1, MwType::Type1).unwrap();
        assert!(model.bind(window, regions[0], 0));
        run_threads(
            &model,
            [
                step(move |model| model.poll(0, || model.write(window, 0))),
                step(move |model| {
                    model.poll(0, || {
                        let _ = model.bind(window, regions[1], 1);
                    });
                }),
                step(move |model| model.drop_region(regions[0], 0)),
            ],
        );
        let bound = u32::from(model.regions.pd_of(window).is_some());
        assert_eq!(model.regions.window_count(regions[1]), bound);
    });
}

/// The same window is bound again with the same key to another region, while another thread
/// invalidates it: the count that decreases is that of the region it was bound to.
#[test]
fn windows_are_counted_where_they_were_bound() {
    check(3, || {
        let model = Model::<1>::new();
        let regions = [model.register(0), model.register(1)];
        let window = model.regions.allocate_window(1).unwrap();
        assert!(model.bind(window, regions[0], 0));
        run_threads(
            &model,
            [
                step(move |model| {
                    model.poll(0, || {
                        let _ = model.regions.invalidate_local(window, SCOPE);
                        model.bind(window, regions[1], 1);
                    });
                }),
                step(move |model| {
                    let _ = model.regions.invalidate(window);
                }),
            ],
        );
        let bound = u32::from(model.regions.pd_of(window).is_some());
        let counts = regions.map(|region| model.regions.window_count(region));
        assert_eq!(counts, [0, bound]);
        model.drop_region(regions[0], 0);
        model.drop_region(regions[1], 1);
    });
}

/// A window moves from one region to another under the same STag while a second shard resolves it:
/// the result is from one of them, never the base of one with the memory of the other.
#[test]
fn resolve_never_mixes_two_bindings() {
    check(2, || {
        let model = Model::<2>::new();
        let regions = [model.register(0), model.register(1)];
        let window = model.regions.allocate_window(1).unwrap();
        let bind = move |model: &Model<2>, at: usize| {
            let (lkey, addr) = (regions[at], 0x100 * at as u64);
            let access = Access::REMOTE_WRITE;
            let bind = Bind { rkey: window, lkey, addr, len: 8, access, zero_based: false };
            model.regions.bind(&bind, SCOPE).unwrap();
        };
        bind(&model, 0);
        run_threads(
            &model,
            [
                step(move |model| {
                    model.regions.invalidate_local(window, SCOPE).unwrap();
                    bind(model, 1);
                }),
                step(move |model| {
                    for to in [0, 0x100] {
                        let write = Access::REMOTE_WRITE;
                        if let Ok(place) = model.regions.resolve(window, SCOPE, write, to, 8) {
                            assert_eq!((place.backing(), place.offset()), (to / 0x100, 0));
                        }
                    }
                }),
            ],
        );
    });
}

/// A window is revoked while a request to bind it executes or is queued: afterwards it is not
/// bound, and that request never binds it.
#[test]
fn revoked_window_stays_unbound() {
    check(2, || {
        let model = Model::<1>::new();
        let region = model.register(0);
        let window = model.regions.allocate_window(1).unwrap();
        let mut keys = model.regions.window_keys();
        let queued = keys.next(&model.regions, window);
        run_threads(
            &model,
            [
                step(move |model| {
                    model.poll(0, || {
                        if model.bind(queued, region, 0) {
                            model.write(queued, 0);
                        }
                    });
                }),
                step(move |model| {
                    revoke_window(&model.regions, &mut keys, queued, || model.synchronize());
                    assert_eq!(model.regions.window_count(region), 0);
                    // SAFETY: loom checks that no other thread accesses the cell at the same time.
                    model.memory[0].with_mut(|bytes| unsafe { *bytes = 0 });
                    assert!(!model.bind(queued, region, 0));
                }),
            ],
        );
        assert!(model.regions.pd_of(queued).is_none());
    });
}
