use core::net::{Ipv4Addr, Ipv6Addr};

use super::*;

const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 19, 0, 9));
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 8];
const TIMES: NeighbourConfig = NeighbourConfig {
    reachable_ns: 30 * SECOND,
    delay_ns: 5 * SECOND,
    retrans_ns: SECOND,
    unicast_count: 3,
    multicast_count: 5,
    hold_down_ns: 3 * SECOND,
};

/// A cache, in its own time.
struct Bed {
    cache: Neighbours,
    now: Instant,
}

impl Bed {
    fn new() -> Self {
        Self { cache: Neighbours::new(NeighbourConfig::default(), 1), now: Instant::ZERO }
    }

    /// With [`IP`] resolved to [`MAC`].
    fn resolved() -> (Self, NeighbourId) {
        let mut bed = Self::new();
        let id = bed.cache.find(bed.now, IP).unwrap();
        assert_eq!(bed.questions(), [Question { ip: IP, mac: None }]);
        assert_eq!(bed.hear(Some(MAC), true, true), Heard::Resolved);
        assert_eq!(bed.look(id), Answer::Known(MAC));
        (bed, id)
    }

    fn look(&mut self, id: NeighbourId) -> Answer {
        self.cache.look_up(self.now, id).expect("a current entry")
    }

    fn state(&self, id: NeighbourId) -> State {
        self.cache.entries[id.index as usize].state
    }

    fn hear(&mut self, mac: Option<[u8; 6]>, solicited: bool, overrides: bool) -> Heard {
        self.cache.hear(self.now, &Statement { ip: IP, mac, solicited, overrides })
    }

    fn questions(&mut self) -> Vec<Question> {
        std::iter::from_fn(|| self.cache.next_question(self.now)).collect()
    }

    /// Lets time go on to each deadline within `ns`; the questions of that time.
    fn wait(&mut self, ns: u64) -> Vec<(u64, Question)> {
        let end = self.now + ns;
        let mut asked = Vec::new();
        while let Some(due) = self.cache.deadline().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            let at = self.now.as_nanos() / MILLISECOND;
            asked.extend(self.questions().into_iter().map(|question| (at, question)));
        }
        self.now = end;
        asked
    }
}

#[test]
fn everybody_is_asked_then_it_is_left_alone_for_a_while() {
    let mut bed = Bed::new();
    let id = bed.cache.find(bed.now, IP).unwrap();
    assert_eq!(bed.look(id), Answer::Wait);
    let asked = bed.wait(5 * SECOND - 1);
    let times: Vec<_> = asked.iter().map(|&(at, _)| at).collect();
    assert_eq!(times, [0, 1000, 2000, 3000, 4000]);
    assert!(asked.iter().all(|&(_, question)| question == Question { ip: IP, mac: None }));
    assert_eq!(bed.look(id), Answer::Wait);
    let epoch = bed.cache.epoch();
    assert_eq!(bed.wait(1), []);
    assert_eq!(bed.look(id), Answer::Unreachable);
    assert_ne!(bed.cache.epoch(), epoch, "whoever waits is told to look");
    assert_eq!(bed.wait(TIMES.hold_down_ns - 1), []);
    assert_eq!((bed.look(id), bed.cache.deadline()), (Answer::Unreachable, None));
    bed.wait(1);
    assert_eq!(bed.look(id), Answer::Wait);
    assert_eq!(bed.questions().len(), 1);
    // Whatever it says by itself is welcome now.
    assert_eq!(bed.hear(Some(MAC), false, true), Heard::Resolved);
    assert_eq!((bed.look(id), bed.state(id)), (Answer::Known(MAC), State::Delay));
}

#[test]
fn nobody_is_asked_about_a_neighbour_that_nobody_talks_to() {
    let (mut bed, id) = Bed::resolved();
    assert_eq!(bed.wait(3600 * SECOND), []);
    assert_eq!(bed.cache.deadline(), None);
    assert_eq!((bed.look(id), bed.state(id)), (Answer::Known(MAC), State::Delay));
}

#[test]
fn a_neighbour_in_use_is_probed_where_it_was_and_then_everywhere() {
    let (mut bed, id) = Bed::resolved();
    bed.wait(2 * TIMES.reachable_ns);
    assert_eq!(bed.look(id), Answer::Known(MAC));
    let start = bed.now.as_nanos() / MILLISECOND;
    let asked = bed.wait(TIMES.delay_ns + 8 * SECOND);
    let seen: Vec<_> = asked.iter().map(|&(at, q)| (at - start, q.mac.is_some())).collect();
    let unicast = [5000, 6000, 7000].map(|at| (at, true));
    let multicast = [8000, 9000, 10000, 11000, 12000].map(|at| (at, false));
    assert_eq!(seen, [&unicast[..], &multicast[..]].concat());
    assert_eq!(bed.look(id), Answer::Unreachable);
}

#[test]
fn an_answer_to_a_probe_is_enough() {
    let (mut bed, id) = Bed::resolved();
    bed.wait(2 * TIMES.reachable_ns);
    let _ = bed.look(id);
    assert_eq!(bed.wait(TIMES.delay_ns), [(65_000, Question { ip: IP, mac: Some(MAC) })]);
    assert_eq!(bed.state(id), State::Probe);
    let epoch = bed.cache.epoch();
    // A host's advertisement may leave its address away when it was asked there.
    assert_eq!(bed.hear(None, true, false), Heard::Nothing);
    assert_eq!((bed.state(id), bed.cache.epoch()), (State::Reachable, epoch));
    assert_eq!(bed.wait(TIMES.reachable_ns / 2), []);
}

#[test]
fn progress_spares_the_question() {
    let (mut bed, id) = Bed::resolved();
    for _ in 0..100 {
        bed.wait(2 * TIMES.reachable_ns);
        assert_eq!(bed.look(id), Answer::Known(MAC));
        bed.wait(SECOND);
        bed.cache.confirm(bed.now, id, OTHER);
        assert_ne!(bed.state(id), State::Reachable, "of another address it says nothing");
        bed.cache.confirm(bed.now, id, MAC);
        assert_eq!(bed.state(id), State::Reachable);
        assert_eq!(bed.wait(10 * SECOND), []);
    }
}

#[test]
fn a_doubt_shortens_the_time() {
    let (mut bed, id) = Bed::resolved();
    bed.cache.doubt(bed.now, id);
    let asked = bed.wait(TIMES.delay_ns);
    assert_eq!(asked, [(5000, Question { ip: IP, mac: Some(MAC) })]);
}

#[test]
fn a_neighbour_that_moves_says_so() {
    let (mut bed, id) = Bed::resolved();
    let epoch = bed.cache.epoch();
    assert_eq!(bed.hear(Some(OTHER), false, true), Heard::Moved);
    assert_ne!(bed.cache.epoch(), epoch);
    // It is used at once, and verified when no sign of arrival comes.
    assert_eq!((bed.look(id), bed.state(id)), (Answer::Known(OTHER), State::Delay));
    assert_eq!(bed.wait(TIMES.delay_ns).len(), 1);
    assert_eq!(bed.hear(Some(OTHER), true, true), Heard::Nothing);
    assert_eq!(bed.state(id), State::Reachable);
}

#[test]
fn a_claim_without_override_only_raises_doubt() {
    let (mut bed, id) = Bed::resolved();
    assert_eq!(bed.hear(Some(OTHER), true, false), Heard::Nothing);
    assert_eq!((bed.look(id), bed.state(id)), (Answer::Known(MAC), State::Delay));
    assert_eq!(bed.hear(Some(OTHER), false, false), Heard::Nothing);
    assert_eq!((bed.look(id), bed.state(id)), (Answer::Known(MAC), State::Delay));
}

#[test]
fn an_answer_without_a_question_is_no_proof() {
    let (mut bed, id) = Bed::resolved();
    assert_eq!(bed.hear(Some(OTHER), true, true), Heard::Moved);
    assert_eq!(bed.state(id), State::Stale);
}

#[test]
fn strangers_are_not_noted_and_groups_not_believed() {
    let mut bed = Bed::new();
    for index in 0..5000u32 {
        let ip = IpAddr::V6(Ipv6Addr::from_bits(u128::from(index)));
        let said = Statement { ip, mac: Some(MAC), solicited: true, overrides: true };
        assert_eq!(bed.cache.hear(bed.now, &said), Heard::Nothing);
    }
    assert!(bed.cache.entries.is_empty());
    let id = bed.cache.find(bed.now, IP).unwrap();
    assert_eq!(bed.questions().len(), 1);
    for mac in [[0xff; 6], [0; 6], [3, 0, 0, 0, 0, 1]] {
        assert_eq!(bed.hear(Some(mac), true, true), Heard::Nothing);
        assert_eq!(bed.look(id), Answer::Wait);
    }
}

#[test]
fn many_are_asked_for_at_once_within_the_bound() {
    let mut bed = Bed::new();
    let ip = |index: u32| IpAddr::V4(Ipv4Addr::from(0xc612_0000 + index));
    for index in 0..1024 {
        let _ = bed.cache.find(bed.now, ip(index));
    }
    let asked = bed.wait(SECOND - 1);
    assert_eq!(asked.len(), QUESTIONS_PER_SECOND as usize);
    assert!(asked.iter().all(|&(at, _)| at == 0), "none waits for another's answer");
    let mut all: Vec<_> = asked.iter().map(|(_, question)| question.ip).collect();
    all.extend(bed.wait(SECOND).iter().map(|(_, question)| question.ip));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 1024, "what the bound held back comes next");
}

#[test]
fn a_full_cache_keeps_what_is_in_use() {
    let (mut bed, id) = Bed::resolved();
    for index in 0..5000u32 {
        bed.now = bed.now + 5 * MILLISECOND;
        assert_eq!(bed.look(id), Answer::Known(MAC));
        let ip = IpAddr::V4(Ipv4Addr::from(0xc612_0000 + index));
        assert_ne!(bed.cache.find(bed.now, ip).unwrap(), id);
        assert!(bed.cache.entries.len() <= COUNT_MAX);
    }
    assert_eq!((bed.cache.entries.len(), bed.cache.by_ip.len()), (COUNT_MAX, COUNT_MAX));
    // Who gave way is not mistaken for who came.
    let first = NeighbourId { index: id.index + 1, generation: 0 };
    assert_eq!(bed.cache.look_up(bed.now, first), None);
}

#[test]
fn a_cache_full_of_neighbours_in_use_takes_no_more() {
    let mut bed = Bed::new();
    let ip = |index: u32| IpAddr::V4(Ipv4Addr::from(0xc612_0000 + index));
    for index in 0..1024 {
        assert!(bed.cache.find(bed.now, ip(index)).is_some());
    }
    assert_eq!(bed.cache.find(bed.now, IP), None);
    bed.now = bed.now + IN_USE_NS + 1;
    assert!(bed.cache.find(bed.now, IP).is_some());
}

#[test]
fn reachable_times_differ_within_bounds() {
    let times: Vec<_> = (0..1000).map(|chance| spread(30 * SECOND, chance)).collect();
    let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    assert!((15 * SECOND..18 * SECOND).contains(least) && *most <= 45 * SECOND);
    assert!(*most > 42 * SECOND);
}
