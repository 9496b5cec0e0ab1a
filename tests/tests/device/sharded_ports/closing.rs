//! The end of a context with connections on all shards: its peers are told, and nothing is left.

use ferrowarp_tests::{netns, test_name};

use super::*;
use crate::tap::ready;

const INTERFACE: &str = "fw0";
const PORT: u16 = 4791;

#[test]
fn closing_ends_the_connections_of_all_shards() {
    if !ready(test_name!()) {
        return;
    }
    for is_dropped in [false, true] {
        let stack = Stack::on_tap_with(INTERFACE, |config| config.shards = 2);
        let listener = stack.context.listen(PORT, 4).unwrap();
        let mut links = connect_many(&stack, 5000, 4);
        links.extend(accept_many(&stack, &listener, 8));
        exchange(&stack, &mut links, 1);
        let counts = by_shard(&stack, &links);
        assert!(counts.iter().all(|&count| count >= 2), "{counts:?}");
        let (qps, peers): (Vec<_>, Vec<_>) =
            links.into_iter().map(|TestConnection { qp, peer, .. }| (qp, peer)).unzip();
        // The peers close when they see a FIN.
        let peers = std::thread::spawn(move || {
            for (number, mut peer) in peers.into_iter().enumerate() {
                while peer.serve_one().unwrap_or_else(|error| panic!("peer {number}: {error}")) {}
                assert!(peer.has_received_fin() && peer.terminate.is_none(), "peer {number}");
            }
        });
        if is_dropped {
            drop((qps, listener, stack));
        } else {
            stack.context.clone().close();
            assert_eq!(stack.context.connection_count(), 0);
            assert!(qps.iter().all(|qp| qp.state() == ferrowarp::QpState::Error));
            drop((qps, listener, stack));
        }
        peers.join().expect("each sees a FIN");
        assert_none_reset();
        wait_until("the interface is gone", || netns::ip(&["link", "show", INTERFACE]).is_err());
    }
}
