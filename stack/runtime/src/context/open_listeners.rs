//! Listeners of a context.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use ferrowarp_proto::verbs::cm::ListenAddr;

/// Listeners that are open, and the port that was chosen last for one.
#[derive(Default)]
pub(crate) struct OpenListeners {
    /// By port.
    addrs: BTreeSet<ListenAddr>,
    last_chosen: u16,
}

impl OpenListeners {
    pub(crate) fn insert(&mut self, addr: ListenAddr) {
        self.addrs.insert(addr);
    }

    pub(crate) fn remove(&mut self, addr: ListenAddr) {
        self.addrs.remove(&addr);
    }

    /// Gives `addr` the first port on which it overlaps no other listener, after the one that was
    /// chosen last: a port that was just given up is not reused.
    pub(crate) fn choose_port(
        &mut self,
        addr: ListenAddr,
        ports: RangeInclusive<u16>,
    ) -> Option<ListenAddr> {
        let after_last = ports.clone().skip_while(|&port| port <= self.last_chosen);
        let mut candidates = after_last.chain(ports).map(|port| addr.with_port(port));
        let chosen = candidates.find(|&candidate| {
            let of_port = self.addrs.range(ListenAddr::from(candidate.port())..);
            let mut of_port = of_port.take_while(|open| open.port() == candidate.port());
            !of_port.any(|open| open.overlaps(candidate))
        })?;
        self.last_chosen = chosen.port();
        Some(chosen)
    }
}
