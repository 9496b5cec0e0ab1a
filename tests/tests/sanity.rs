//! What a mutant of a single rule must leave alone: a connection comes up, and a message arrives
//! each way. `scripts/conformance --mutate` takes one that fails here for too coarse to prove that
//! its rule is guarded.

use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_tests::compliance::messages::{bed, opcodes, send, statuses};
use ferrowarp_tests::peer::opcode;

#[test]
fn a_message_arrives_each_way() {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    bed.put_ulpdu(&send(1, b"ping"));
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Success)]);
    bed.send(2, 0, 4);
    assert_eq!(opcodes(&mut bed), [opcode::SEND]);
}
