//! Neighbour cache: IP address to hardware address, with bounded questions and no lost packets.
//!
//! Whoever needs an address asks again in a later pass; nothing is queued here and nothing is
//! dropped. States follow RFC 4861 section 7.3.2 as far as ARP knows them.

use core::net::IpAddr;
use std::collections::HashMap;

use crate::net::keyed::KeyedHash;
use crate::time::{Instant, SECOND};

/// Entries at most; the oldest unconfirmed one gives way.
const COUNT_MAX: usize = 1024;
/// Questions before the address counts as unreachable.
const QUESTION_COUNT_MAX: u8 = 10;
/// Between two questions.
const QUESTION_INTERVAL_NS: u64 = SECOND / 5;
/// How long an answer is believed before it is asked for again while in use.
const FRESH_NS: u64 = 60 * SECOND;

/// What the cache says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is known.
    Known([u8; 6]),
    /// It is not known: send a question now, look again later.
    Ask,
    /// A question is out: look again later.
    Wait,
    /// Nobody answered.
    Unreachable,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Option<[u8; 6]>,
    /// When it was confirmed, or the last question was sent.
    at: Instant,
    questions: u8,
}

/// The cache.
#[derive(Debug)]
pub struct Neighbours {
    entries: HashMap<IpAddr, Entry, KeyedHash>,
}

impl Neighbours {
    /// An empty cache.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { entries: HashMap::with_hasher(KeyedHash::new(seed)) }
    }

    /// The hardware address of `ip`, or what to do to learn it.
    pub fn look_up(&mut self, now: Instant, ip: IpAddr) -> Answer {
        if let Some(entry) = self.entries.get_mut(&ip) {
            if let Some(mac) = entry.mac {
                if now.since(entry.at) < FRESH_NS {
                    return Answer::Known(mac);
                }
                // Stale: ask again, and be without it only if nobody answers.
                entry.mac = None;
                entry.questions = 0;
            } else if now.since(entry.at) < QUESTION_INTERVAL_NS {
                return Answer::Wait;
            } else if entry.questions >= QUESTION_COUNT_MAX {
                self.entries.remove(&ip);
                return Answer::Unreachable;
            }
            entry.at = now;
            entry.questions += 1;
            return Answer::Ask;
        }
        self.make_room();
        self.entries.insert(ip, Entry { mac: None, at: now, questions: 1 });
        Answer::Ask
    }

    /// Notes an answer, or an address learnt from a question to us. Unknown addresses are only
    /// noted when `wanted` (we are about to talk to them), so that a flood cannot fill the cache.
    pub fn learn(&mut self, now: Instant, ip: IpAddr, mac: [u8; 6], wanted: bool) {
        let usable = mac[0] & 1 == 0 && mac != [0; 6];
        let is_known = self.entries.contains_key(&ip);
        if !usable || !(wanted || is_known) {
            return;
        }
        if !is_known {
            self.make_room();
        }
        self.entries.insert(ip, Entry { mac: Some(mac), at: now, questions: 0 });
    }

    fn make_room(&mut self) {
        if self.entries.len() < COUNT_MAX {
            return;
        }
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.at).map(|(&ip, _)| ip);
        if let Some(ip) = oldest {
            self.entries.remove(&ip);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 9));
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    #[test]
    fn questions_are_spaced_and_end() {
        let mut cache = Neighbours::new(1);
        let mut now = Instant::ZERO;
        for _ in 0..QUESTION_COUNT_MAX {
            assert_eq!(cache.look_up(now, IP), Answer::Ask);
            assert_eq!(cache.look_up(now, IP), Answer::Wait);
            now = now + QUESTION_INTERVAL_NS;
        }
        assert_eq!(cache.look_up(now, IP), Answer::Unreachable);
        assert_eq!(cache.look_up(now, IP), Answer::Ask);
    }

    #[test]
    fn an_answer_is_believed_for_a_while() {
        let mut cache = Neighbours::new(1);
        assert_eq!(cache.look_up(Instant::ZERO, IP), Answer::Ask);
        cache.learn(Instant::ZERO, IP, MAC, false);
        assert_eq!(cache.look_up(Instant::ZERO + (FRESH_NS - 1), IP), Answer::Known(MAC));
        assert_eq!(cache.look_up(Instant::ZERO + FRESH_NS, IP), Answer::Ask);
    }

    #[test]
    fn a_full_cache_keeps_the_others_when_one_is_heard_again() {
        let mut cache = Neighbours::new(1);
        for index in 0..1024u32 {
            let ip = IpAddr::V4(Ipv4Addr::from(0xc612_0000 + index));
            cache.learn(Instant::ZERO, ip, MAC, true);
        }
        for _ in 0..10 {
            cache.learn(Instant::ZERO, IP, MAC, true);
        }
        assert_eq!(cache.entries.len(), COUNT_MAX);
    }

    #[test]
    fn a_flood_neither_fills_the_cache_nor_poisons_it() {
        let mut cache = Neighbours::new(1);
        cache.learn(Instant::ZERO, IP, MAC, false);
        assert_eq!(cache.look_up(Instant::ZERO, IP), Answer::Ask);
        for index in 0..5000u32 {
            let ip = IpAddr::V4(Ipv4Addr::from(0xc612_0000 + index));
            let _ = cache.look_up(Instant::from_nanos(u64::from(index)), ip);
        }
        assert!(cache.entries.len() <= COUNT_MAX);
        cache.learn(Instant::ZERO, IP, [0xff; 6], true);
        assert_ne!(cache.look_up(Instant::ZERO, IP), Answer::Known([0xff; 6]));
    }
}
