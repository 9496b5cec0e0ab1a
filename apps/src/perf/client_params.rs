//! Connection parameters and announcement of the client of iwperf, and the addresses to which it
//! connects.

use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;

use anyhow::Context as _;
use ferrowarp::ConnParam;

use crate::device::CONNECTIONS_PER_PORT;
use crate::endpoint::conn_param;
use crate::perf::control::{Hello, Region};
use crate::perf::iwperf_options::TestArgs;
use crate::perf::kind::Test;
use crate::perf::private_data::ConnRole;
use crate::perf::worker::Worker;

/// Returns the parameters of a connection request.
pub(super) fn connect_param(args: &TestArgs, purpose: ConnRole) -> anyhow::Result<ConnParam> {
    let mut param = conn_param(!args.no_crc, args.markers, args.outs, &purpose.emit())?;
    args.mpa.apply_to(&mut param);
    args.reads.apply_to(&mut param);
    Ok(param)
}

/// Returns the address to connect data connection `index` of all workers to: one port has fewer
/// source ports than connections are possible.
pub(super) fn data_remote(remote: SocketAddr, index: u32) -> anyhow::Result<SocketAddr> {
    let more = u16::try_from(index / CONNECTIONS_PER_PORT)?;
    let port = remote.port().checked_add(more);
    let port = port.context("no port behind the server's for so many -q: use a lower -p")?;
    Ok(SocketAddr::new(remote.ip(), port))
}

/// Returns a number that names a session; random, so that concurrent sessions are distinct.
pub(super) fn random_token() -> u32 {
    u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or(1)
}

/// Returns what a worker announces to the responder.
pub(super) fn hello(test: Test, args: &TestArgs, worker: &Worker) -> Hello {
    let first_token = worker.team.as_ref().filter(|_| worker.index == 0).map(|team| team.token);
    Hello {
        test,
        flags: args.flags(),
        qps: worker.qps,
        tx_depth: args.tx_depth,
        rx_depth: args.rx_depth(test),
        token: first_token.unwrap_or_else(random_token),
        span: args.span(test),
        tx: Region::default(),
        rx: Region::default(),
        inline_size: args.queues.inline_size.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_beyond_those_of_a_port_go_to_the_next() {
        let remote = |port| SocketAddr::new([198, 18, 0, 2].into(), port);
        for (index, port) in [(0, 18515), (32_767, 18515), (32_768, 18516), (65_535, 18516)] {
            assert_eq!(data_remote(remote(18515), index).unwrap(), remote(port), "{index}");
        }
        assert_eq!(data_remote(remote(65_535), 32_767).unwrap(), remote(65_535));
        let error = data_remote(remote(65_535), 32_768).unwrap_err().to_string();
        assert!(error.contains("use a lower -p"), "{error}");
    }
}
