//! Behavior that a mutant of a single rule must preserve: a connection is established, and a
//! message is delivered each way. `scripts/conformance --mutate` rejects a mutant that fails here
//! as too coarse to prove that its rule is guarded.

use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_tests::compliance::messages::{connected, send, sent_opcodes, wc_statuses};
use ferrowarp_tests::peer::opcode;

#[test]
fn send_is_delivered_each_way() {
    let mut fx = connected();
    fx.post_recv(1, 0, 64);
    fx.inject_ulpdu(&send(1, b"ping"));
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Success)]);
    fx.post_send(2, 0, 4);
    assert_eq!(sent_opcodes(&mut fx), [opcode::SEND]);
}
