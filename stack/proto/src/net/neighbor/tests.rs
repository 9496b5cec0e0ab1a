use core::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::net::rate_limit::RateLimit;
use crate::net::reply_limits::SOLICITS_PER_SECOND;

const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 19, 0, 9));
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 8];
const CONFIG: NeighborConfig = NeighborConfig {
    reachable_ns: 30 * SECOND,
    delay_first_probe_ns: 5 * SECOND,
    retrans_timer_ns: SECOND,
    unicast_solicit_max: 3,
    multicast_solicit_max: 5,
    hold_down_ns: 3 * SECOND,
};

/// A cache in virtual time.
struct Fixture {
    cache: NeighborCache,
    now: Instant,
}

impl Fixture {
    fn new() -> Self {
        let solicits = RateLimit::new(SOLICITS_PER_SECOND);
        let cache = NeighborCache::new(NeighborConfig::default(), 1, solicits);
        Self { cache, now: Instant::ZERO }
    }

    /// A fixture with [`IP`] resolved to [`MAC`].
    fn resolved() -> (Self, NeighborId) {
        let mut fx = Self::new();
        let id = fx.cache.find_or_insert(fx.now, IP).unwrap();
        assert_eq!(fx.solicits(), [Solicit { ip: IP, mac: None }]);
        assert_eq!(fx.on_advert(Some(MAC), true, true), CacheUpdate::Resolved);
        assert_eq!(fx.lookup(id), Lookup::Found(MAC));
        (fx, id)
    }

    fn lookup(&mut self, id: NeighborId) -> Lookup {
        self.cache.lookup(self.now, id).expect("a current entry")
    }

    fn state(&self, id: NeighborId) -> NudState {
        self.cache.entries[id.index as usize].state
    }

    fn on_advert(&mut self, mac: Option<[u8; 6]>, solicited: bool, overrides: bool) -> CacheUpdate {
        self.cache.on_advert(self.now, &Advert { ip: IP, mac, solicited, overrides })
    }

    fn solicits(&mut self) -> Vec<Solicit> {
        std::iter::from_fn(|| self.cache.next_solicit(self.now)).collect()
    }

    /// Advances time by `ns`, stopping at each deadline; returns the solicitations and their times
    /// in ms.
    fn advance(&mut self, ns: u64) -> Vec<(u64, Solicit)> {
        let end = self.now + ns;
        let mut solicits = Vec::new();
        while let Some(due) = self.cache.deadline().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            let at = self.now.as_nanos() / MILLISECOND;
            solicits.extend(self.solicits().into_iter().map(|solicit| (at, solicit)));
        }
        self.now = end;
        solicits
    }
}

#[test]
fn unanswered_multicast_solicits_lead_to_failed_and_hold_down() {
    let mut fx = Fixture::new();
    let id = fx.cache.find_or_insert(fx.now, IP).unwrap();
    assert_eq!(fx.lookup(id), Lookup::Pending);
    let solicits = fx.advance(5 * SECOND - 1);
    let times: Vec<_> = solicits.iter().map(|&(at, _)| at).collect();
    assert_eq!(times, [0, 1000, 2000, 3000, 4000]);
    assert!(solicits.iter().all(|&(_, solicit)| solicit == Solicit { ip: IP, mac: None }));
    assert_eq!(fx.lookup(id), Lookup::Pending);
    let epoch = fx.cache.epoch();
    assert_eq!(fx.advance(1), []);
    assert_eq!(fx.lookup(id), Lookup::Unreachable);
    assert_ne!(fx.cache.epoch(), epoch, "the waiter is resolved again");
    assert_eq!(fx.advance(CONFIG.hold_down_ns - 1), []);
    assert_eq!((fx.lookup(id), fx.cache.deadline()), (Lookup::Unreachable, None));
    fx.advance(1);
    assert_eq!(fx.lookup(id), Lookup::Pending);
    assert_eq!(fx.solicits().len(), 1);
    // An unsolicited advertisement is accepted now.
    assert_eq!(fx.on_advert(Some(MAC), false, true), CacheUpdate::Resolved);
    assert_eq!((fx.lookup(id), fx.state(id)), (Lookup::Found(MAC), NudState::Delay));
}

#[test]
fn unused_neighbor_is_not_probed() {
    let (mut fx, id) = Fixture::resolved();
    assert_eq!(fx.advance(3600 * SECOND), []);
    assert_eq!(fx.cache.deadline(), None);
    assert_eq!((fx.lookup(id), fx.state(id)), (Lookup::Found(MAC), NudState::Delay));
}

#[test]
fn neighbor_in_use_is_probed_by_unicast_then_multicast() {
    let (mut fx, id) = Fixture::resolved();
    fx.advance(2 * CONFIG.reachable_ns);
    assert_eq!(fx.lookup(id), Lookup::Found(MAC));
    let start = fx.now.as_nanos() / MILLISECOND;
    let solicits = fx.advance(CONFIG.delay_first_probe_ns + 8 * SECOND);
    let seen: Vec<_> = solicits.iter().map(|&(at, q)| (at - start, q.mac.is_some())).collect();
    let unicast = [5000, 6000, 7000].map(|at| (at, true));
    let multicast = [8000, 9000, 10000, 11000, 12000].map(|at| (at, false));
    assert_eq!(seen, [&unicast[..], &multicast[..]].concat());
    assert_eq!(fx.lookup(id), Lookup::Unreachable);
}

#[test]
fn solicited_advert_without_lladdr_confirms_probed_neighbor() {
    let (mut fx, id) = Fixture::resolved();
    fx.advance(2 * CONFIG.reachable_ns);
    let _ = fx.lookup(id);
    assert_eq!(
        fx.advance(CONFIG.delay_first_probe_ns),
        [(65_000, Solicit { ip: IP, mac: Some(MAC) })]
    );
    assert_eq!(fx.state(id), NudState::Probe);
    let epoch = fx.cache.epoch();
    // The answer to a unicast solicitation may lack the link-layer address.
    assert_eq!(fx.on_advert(None, true, false), CacheUpdate::Unchanged);
    assert_eq!((fx.state(id), fx.cache.epoch()), (NudState::Reachable, epoch));
    assert_eq!(fx.advance(CONFIG.reachable_ns / 2), []);
}

#[test]
fn upper_layer_confirmation_prevents_probe() {
    let (mut fx, id) = Fixture::resolved();
    for _ in 0..100 {
        fx.advance(2 * CONFIG.reachable_ns);
        assert_eq!(fx.lookup(id), Lookup::Found(MAC));
        fx.advance(SECOND);
        fx.cache.confirm(fx.now, id, OTHER);
        assert_ne!(fx.state(id), NudState::Reachable, "another address is not affected");
        fx.cache.confirm(fx.now, id, MAC);
        assert_eq!(fx.state(id), NudState::Reachable);
        assert_eq!(fx.advance(10 * SECOND), []);
    }
}

#[test]
fn suspect_neighbor_is_probed_after_delay() {
    let (mut fx, id) = Fixture::resolved();
    fx.cache.mark_suspect(fx.now, id);
    let solicits = fx.advance(CONFIG.delay_first_probe_ns);
    assert_eq!(solicits, [(5000, Solicit { ip: IP, mac: Some(MAC) })]);
}

#[test]
fn unsolicited_override_advert_updates_lladdr() {
    let (mut fx, id) = Fixture::resolved();
    let epoch = fx.cache.epoch();
    assert_eq!(fx.on_advert(Some(OTHER), false, true), CacheUpdate::LladdrChanged);
    assert_ne!(fx.cache.epoch(), epoch);
    // The new address is used at once, and probed if no confirmation arrives.
    assert_eq!((fx.lookup(id), fx.state(id)), (Lookup::Found(OTHER), NudState::Delay));
    assert_eq!(fx.advance(CONFIG.delay_first_probe_ns).len(), 1);
    assert_eq!(fx.on_advert(Some(OTHER), true, true), CacheUpdate::Unchanged);
    assert_eq!(fx.state(id), NudState::Reachable);
}

#[test]
fn advert_without_override_keeps_lladdr_and_makes_entry_stale() {
    let (mut fx, id) = Fixture::resolved();
    assert_eq!(fx.on_advert(Some(OTHER), true, false), CacheUpdate::Unchanged);
    assert_eq!((fx.lookup(id), fx.state(id)), (Lookup::Found(MAC), NudState::Delay));
    assert_eq!(fx.on_advert(Some(OTHER), false, false), CacheUpdate::Unchanged);
    assert_eq!((fx.lookup(id), fx.state(id)), (Lookup::Found(MAC), NudState::Delay));
}

#[test]
fn solicited_advert_without_solicit_counts_as_unsolicited() {
    let (mut fx, id) = Fixture::resolved();
    assert_eq!(fx.on_advert(Some(OTHER), true, true), CacheUpdate::LladdrChanged);
    assert_eq!(fx.state(id), NudState::Stale);
}

#[test]
fn adverts_of_unknown_neighbors_and_group_lladdrs_are_ignored() {
    let mut fx = Fixture::new();
    for index in 0..5000u32 {
        let ip = IpAddr::V6(Ipv6Addr::from_bits(u128::from(index)));
        let advert = Advert { ip, mac: Some(MAC), solicited: true, overrides: true };
        assert_eq!(fx.cache.on_advert(fx.now, &advert), CacheUpdate::Unchanged);
    }
    assert!(fx.cache.entries.is_empty());
    let id = fx.cache.find_or_insert(fx.now, IP).unwrap();
    assert_eq!(fx.solicits().len(), 1);
    for mac in [[0xff; 6], [0; 6], [3, 0, 0, 0, 0, 1]] {
        assert_eq!(fx.on_advert(Some(mac), true, true), CacheUpdate::Unchanged);
        assert_eq!(fx.lookup(id), Lookup::Pending);
    }
}

#[test]
fn solicits_are_rate_limited_over_all_neighbors() {
    let mut fx = Fixture::new();
    let ip = |index: u32| IpAddr::V4(Ipv4Addr::from(0xc612_0000 + index));
    for index in 0..1024 {
        let _ = fx.cache.find_or_insert(fx.now, ip(index));
    }
    let solicits = fx.advance(SECOND - 1);
    assert_eq!(solicits.len(), SOLICITS_PER_SECOND as usize);
    assert!(solicits.iter().all(|&(at, _)| at == 0), "no entry waits for another's reply");
    let mut all: Vec<_> = solicits.iter().map(|(_, solicit)| solicit.ip).collect();
    all.extend(fx.advance(SECOND).iter().map(|(_, solicit)| solicit.ip));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 1024, "the deferred solicits follow");
}

#[test]
fn full_cache_evicts_unused_entries() {
    let (mut fx, id) = Fixture::resolved();
    for index in 0..5000u32 {
        fx.now = fx.now + 5 * MILLISECOND;
        assert_eq!(fx.lookup(id), Lookup::Found(MAC));
        let ip = IpAddr::V4(Ipv4Addr::from(0xc612_0000 + index));
        assert_ne!(fx.cache.find_or_insert(fx.now, ip).unwrap(), id);
        assert!(fx.cache.entries.len() <= ENTRY_COUNT_MAX);
    }
    assert_eq!((fx.cache.entries.len(), fx.cache.by_ip.len()), (ENTRY_COUNT_MAX, ENTRY_COUNT_MAX));
    // The handle of an evicted entry is invalid.
    let first = NeighborId { index: id.index + 1, generation: 0 };
    assert_eq!(fx.cache.lookup(fx.now, first), None);
}

#[test]
fn full_cache_of_entries_in_use_refuses_new_ones() {
    let mut fx = Fixture::new();
    let ip = |index: u32| IpAddr::V4(Ipv4Addr::from(0xc612_0000 + index));
    for index in 0..1024 {
        assert!(fx.cache.find_or_insert(fx.now, ip(index)).is_some());
    }
    assert_eq!(fx.cache.find_or_insert(fx.now, IP), None);
    fx.now = fx.now + IN_USE_NS + 1;
    assert!(fx.cache.find_or_insert(fx.now, IP).is_some());
}

#[test]
fn reachable_time_is_jittered_within_bounds() {
    let times: Vec<_> = (0..1000).map(|random| jittered(30 * SECOND, random)).collect();
    let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    assert!((15 * SECOND..18 * SECOND).contains(least) && *most <= 45 * SECOND);
    assert!(*most > 42 * SECOND);
}

#[test]
fn static_entry_is_neither_solicited_nor_changed_nor_evicted() {
    let mut fx = Fixture::new();
    fx.cache.insert_static(StaticNeighbor { ip: IP, mac: OTHER });
    fx.cache.insert_static(StaticNeighbor { ip: IP, mac: MAC });
    let id = fx.cache.find_or_insert(fx.now, IP).unwrap();
    let epoch = fx.cache.epoch();
    assert_eq!(fx.on_advert(Some(OTHER), true, true), CacheUpdate::Unchanged);
    fx.cache.mark_suspect(fx.now, id);
    fx.cache.confirm(fx.now, id, MAC);
    assert!(fx.advance(1000 * SECOND).is_empty());
    assert_eq!((fx.lookup(id), fx.cache.epoch()), (Lookup::Found(MAC), epoch));
    for index in 0..2 * u32::try_from(ENTRY_COUNT_MAX).unwrap() {
        fx.now = fx.now + IN_USE_NS;
        let other = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | index));
        assert!(fx.cache.find_or_insert(fx.now, other).is_some());
    }
    assert_eq!(fx.lookup(id), Lookup::Found(MAC));
}
