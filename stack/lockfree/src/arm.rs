//! Arm word of a completion queue: the completion event that the application has requested.
//!
//! Arming and notifying take no lock. The application writes the word and then polls; a producer
//! publishes its completions and then loads the word. With a fence between the two steps on both
//! sides at least one of them sees the other: the completion is found by polling, or it is
//! notified, or both. Any number of shards may produce to the queue: the one that clears the word
//! notifies. Queues without a completion channel have no arm word and pay for no fence.

use ferrowarp_proto::verbs::wc::Notify;

use crate::sync::{AtomicU32, Ordering, fence};

/// Requested notification. The values are ordered: a higher one includes the lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
enum Request {
    NotArmed,
    /// The next solicited completion, or the next in error.
    Solicited,
    /// The next completion.
    NextComp,
}

/// Pending notification request of a completion queue. See the module's text.
#[derive(Debug, Default)]
pub struct ArmWord {
    requested: AtomicU32,
}

/// Lowest request level that covers what a producer has published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CompEvent(Request);

impl CompEvent {
    /// A completion that is solicited or in error, if `solicited`; any other is covered only by a
    /// request for the next completion.
    #[inline]
    pub const fn completion(solicited: bool) -> Self {
        Self(if solicited { Request::Solicited } else { Request::NextComp })
    }

    /// Event that every request covers: an overrun, or the end of the queue.
    pub const ANY: Self = Self(Request::Solicited);
}

impl ArmWord {
    /// Requests notification of the next such completion published from now on. A pending request
    /// for solicited completions is raised to the next completion, never lowered. The caller polls
    /// the queue afterwards, to find what was published before the request became visible. True if
    /// no request was pending.
    pub fn arm(&self, notify: Notify) -> bool {
        let requested_level = match notify {
            Notify::Solicited => Request::Solicited,
            Notify::Next => Request::NextComp,
        };
        let before = self.requested.fetch_max(requested_level as u32, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        before == Request::NotArmed as u32
    }

    /// Called by a producer after it has published what `covers` describes. True if a pending
    /// request covers it; the request is cleared, and this producer, and no other, notifies.
    // req: RDMAP-017, RDMAP-174
    #[inline]
    pub fn claim(&self, covers: CompEvent) -> bool {
        fence(Ordering::SeqCst);
        let mut requested_level = self.requested.load(Ordering::Relaxed);
        while requested_level >= covers.0 as u32 {
            let claimed = self.requested.compare_exchange(
                requested_level,
                Request::NotArmed as u32,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            match claimed {
                Ok(_) => return true,
                Err(now) => requested_level = now,
            }
        }
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const UNSOLICITED: CompEvent = CompEvent::completion(false);
    const SOLICITED_COMP: CompEvent = CompEvent::completion(true);

    #[test]
    fn each_request_notifies_once() {
        let word = ArmWord::default();
        assert!(!word.claim(SOLICITED_COMP), "nothing was requested");
        assert!(word.arm(Notify::Next));
        assert!(word.claim(UNSOLICITED) && !word.claim(UNSOLICITED));
        assert!(word.arm(Notify::Solicited));
        assert!(!word.claim(UNSOLICITED), "not solicited");
        assert!(word.claim(SOLICITED_COMP) && !word.claim(CompEvent::ANY));
    }

    #[test]
    fn next_comp_overrides_solicited() {
        for requests in [[Notify::Next, Notify::Solicited], [Notify::Solicited, Notify::Next]] {
            let word = ArmWord::default();
            assert_eq!(requests.map(|requested_level| word.arm(requested_level)), [true, false]);
            assert!(word.claim(UNSOLICITED) && !word.claim(SOLICITED_COMP));
        }
    }
}

#[cfg(all(test, loom))]
mod proofs {
    use loom::thread;

    use super::*;
    use crate::spsc::{Peek, Producer, ring};
    use crate::sync::Arc;

    const UNSOLICITED: CompEvent = CompEvent::completion(false);
    const SOLICITED_COMP: CompEvent = CompEvent::completion(true);

    /// Acts as a shard that produces to the queue. True if it notified.
    fn produce(word: &ArmWord, ring: &mut Producer<u32>, covers: CompEvent) -> bool {
        ring.push(1).unwrap();
        ring.publish();
        word.claim(covers)
    }

    /// Arm, then poll, then sleep: true if the application would sleep.
    fn sleeps(word: &ArmWord, notify: Notify, rings: &[Peek]) -> bool {
        assert!(word.arm(notify));
        rings.iter().all(Peek::is_empty)
    }

    /// An application that sleeps is notified of a completion of any shard, by one shard per
    /// request.
    #[test]
    fn no_completion_of_two_shards_is_missed() {
        loom::model(|| {
            let word = Arc::new(ArmWord::default());
            let ((mut here, taken_here), (mut there, taken_there)) = (ring(1), ring(1));
            let peeks = [taken_here.peek(), taken_there.peek()];
            let shard = {
                let word = Arc::clone(&word);
                thread::spawn(move || produce(&word, &mut there, UNSOLICITED))
            };
            let application = {
                let word = Arc::clone(&word);
                thread::spawn(move || sleeps(&word, Notify::Next, &peeks))
            };
            let notified = [produce(&word, &mut here, UNSOLICITED), shard.join().unwrap()];
            let sleeps = application.join().unwrap();
            let count = notified.into_iter().filter(|&notified| notified).count();
            assert!(count <= 1, "one request, {count} notifications");
            assert!(!sleeps || count == 1, "waiting, and never notified");
            // A request that no producer claimed is still pending, and only that.
            assert_eq!(word.claim(CompEvent::ANY), count == 0);
        });
    }

    /// An unsolicited completion of one shard does not consume the request for a solicited one,
    /// which the other shard produces.
    #[test]
    fn unsolicited_completion_keeps_a_request_for_solicited() {
        loom::model(|| {
            let word = Arc::new(ArmWord::default());
            let ((mut here, _taken_here), (mut there, taken_there)) = (ring(1), ring(1));
            let peek = [taken_there.peek()];
            let shard = {
                let word = Arc::clone(&word);
                thread::spawn(move || produce(&word, &mut there, SOLICITED_COMP))
            };
            let application = {
                let word = Arc::clone(&word);
                thread::spawn(move || sleeps(&word, Notify::Solicited, &peek))
            };
            assert!(!produce(&word, &mut here, UNSOLICITED), "not solicited");
            let notified = shard.join().unwrap();
            assert!(!application.join().unwrap() || notified, "waiting, and never notified");
            assert_eq!(word.claim(CompEvent::ANY), !notified);
        });
    }

    /// A queue that overruns publishes no completion: an application that arms it and then checks
    /// for an overrun, or sleeps, finds out.
    #[test]
    fn no_overrun_is_missed() {
        loom::model(|| {
            let word = Arc::new(ArmWord::default());
            let overrun = Arc::new(AtomicU32::new(0));
            let shards = [(); 2].map(|()| {
                let (word, overrun) = (Arc::clone(&word), Arc::clone(&overrun));
                thread::spawn(move || {
                    overrun.store(1, Ordering::Relaxed);
                    word.claim(CompEvent::ANY)
                })
            });
            assert!(word.arm(Notify::Solicited));
            let seen = overrun.load(Ordering::Relaxed) == 1;
            let notified = shards.map(|shard| shard.join().unwrap());
            let count = notified.into_iter().filter(|&notified| notified).count();
            assert!(count <= 1, "one request, {count} notifications");
            assert!(seen || count == 1, "waiting, and never notified");
        });
    }

    /// A request is raised while a producer loads it: an application that sleeps then is notified
    /// of a completion that only the raised request covers.
    #[test]
    fn raised_request_level_is_seen() {
        loom::model(|| {
            let word = Arc::new(ArmWord::default());
            assert!(word.arm(Notify::Solicited));
            let (mut here, taken) = ring(1);
            let peek = taken.peek();
            let application = {
                let word = Arc::clone(&word);
                thread::spawn(move || {
                    assert!(!word.arm(Notify::Next));
                    peek.is_empty()
                })
            };
            let notified = produce(&word, &mut here, UNSOLICITED);
            let sleeps = application.join().unwrap();
            assert!(!sleeps || notified, "waiting, and never notified");
        });
    }
}
