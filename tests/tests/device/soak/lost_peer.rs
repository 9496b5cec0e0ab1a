//! A context that disappears while its peer writes to it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ferrowarp::{Access, ConnEvent, ConnParam, Context, QpOptions, WcStatus};

use super::config;
use super::tallies::Tallies;

/// Connections of the context.
const CONNECTIONS: usize = 4;
/// Writes outstanding on each, and their bytes.
const WRITES: (usize, u32) = (8, 4096);
/// Port of its listener.
const PORT: u16 = 4791;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Opens two contexts and connects them; drops the right one while the left one's Writes are under
/// way, in every other run without a word to the peer; then drops the left one.
pub(crate) fn run(tallies: &Tallies) -> Result<()> {
    let is_silent = tallies.peers_lost.load(Ordering::Relaxed) % 2 == 1;
    let of_host = |host| {
        let mut config = config(host, 2 * CONNECTIONS);
        config.pools.windows = 1;
        if !is_silent {
            config.drop_linger = Duration::from_millis(200);
        }
        config
    };
    let (left, right) = Context::ring_pair(of_host(1), of_host(2))?;
    let (cq_l, cq_r) = (left.create_cq(256)?, right.create_cq(64)?);
    let (pd_l, pd_r) = (left.alloc_pd(), right.alloc_pd());
    let source = pd_l.register(left.allocate(WRITES.1 as usize)?, Access::LOCAL_READ)?;
    let sink = pd_r.register(right.allocate(WRITES.1 as usize)?, Access::REMOTE_WRITE)?;
    let listener = right.listen(PORT, CONNECTIONS)?;
    let (mut actives, mut passives) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let active = pd_l.create_qp(&QpOptions::new(&cq_l))?;
        active.connect(([198, 18, 0, 2], PORT).into(), ConnParam::default())?;
        let request = listener.accept_timeout(TIMEOUT).context("lost peer: no request")?;
        let passive = pd_r.create_qp(&QpOptions::new(&cq_r))?;
        request.accept(&passive, ConnParam::default())?;
        active.wait_established(TIMEOUT)?;
        passive.wait_established(TIMEOUT)?;
        actives.push(active);
        passives.push(passive);
    }
    for active in &actives {
        let mut post = active.post();
        for _ in 0..WRITES.0 {
            post.write(source.sge(0, WRITES.1), sink.remote()).signaled();
        }
        post.ring().context("lost peer")?;
    }
    left.drive();
    // The last handles of the right context.
    drop((passives, listener, sink, cq_r, pd_r));
    drop(right);
    let start = Instant::now();
    let (mut completions, mut ended) = (Vec::new(), 0);
    // A peer that is gone without a word is given up after minutes.
    while !is_silent && ended < CONNECTIONS {
        left.drive();
        cq_l.poll_with(32, |wc| completions.push(wc));
        for event in actives.iter().filter_map(ferrowarp::Qp::next_event) {
            ended += usize::from(matches!(event, ConnEvent::Disconnected { .. }));
        }
        ensure!(start.elapsed() < TIMEOUT, "lost peer: {ended} of {CONNECTIONS} have ended");
    }
    let other = completions.iter().find(|wc| {
        !matches!(wc.status, WcStatus::Success | WcStatus::Flushed | WcStatus::RemoteAccess)
    });
    ensure!(other.is_none(), "lost peer: {other:?}");
    tallies.peers_lost.fetch_add(1, Ordering::Relaxed);
    Ok(())
}
