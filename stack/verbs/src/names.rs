//! Names of types, states, events and statuses, by their numbers; word for word those of
//! rdma-core, as programs print them and scripts look for them.

use std::ffi::{CStr, c_char, c_int};

/// Returns the name that belongs to a number.
fn name(names: &[&'static CStr], number: c_int, unknown: &'static CStr) -> *const c_char {
    let index = usize::try_from(number).ok();
    index.and_then(|index| names.get(index)).unwrap_or(&unknown).as_ptr()
}

const UNKNOWN: &CStr = c"unknown";
const UNKNOWN_EVENT: &CStr = c"UNKNOWN EVENT";

const NODE_TYPES: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const EVENT_TYPES: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

const WC_STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const CM_EVENTS: [&CStr; 18] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
];

const WR_OPCODES: [&CStr; 16] = [
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    UNKNOWN,
    UNKNOWN,
    c"flush",
    c"atomic-write",
];

/// Returns the name of a node type.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    name(&NODE_TYPES, node_type, UNKNOWN)
}

/// Returns the name of a port state.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_port_state_str(port_state: c_int) -> *const c_char {
    name(&PORT_STATES, port_state, UNKNOWN)
}

/// Returns the name of an asynchronous event.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_event_type_str(event_type: c_int) -> *const c_char {
    name(&EVENT_TYPES, event_type, UNKNOWN)
}

/// Returns the name of a completion status.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_wc_status_str(wc_status: c_int) -> *const c_char {
    name(&WC_STATUSES, wc_status, UNKNOWN)
}

/// Returns the name of a connection manager event.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    name(&CM_EVENTS, event, UNKNOWN_EVENT)
}

/// Returns the name of a send opcode.
///
/// Private nodes have it as `ibv_wr_opcode_str`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ferrowarp_wr_opcode_str(wr_opcode: c_int) -> *const c_char {
    name(&WR_OPCODES, wr_opcode, UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stock::{LIBIBVERBS, LIBRDMACM, Stock, text};

    /// A stock library that is older lacks the newest names.
    fn expect_the_names_of_stock(
        library: &CStr,
        function: &CStr,
        ours: extern "C" fn(c_int) -> *const c_char,
        unknown: &CStr,
    ) {
        let Some(stock) = Stock::open(library) else { return };
        let theirs = stock.name_function(function);
        for number in -2..64 {
            let (ours, theirs) = (text(ours(number)), theirs(number));
            let is_newer = theirs == unknown.to_str().expect("ASCII");
            assert!(ours == theirs || is_newer, "{function:?}({number}): {ours}, not {theirs}");
        }
        assert_eq!(text(ours(64)), text(unknown.as_ptr()));
    }

    #[test]
    fn names_are_those_of_the_stock_libraries() {
        let verbs: [(&CStr, extern "C" fn(c_int) -> *const c_char); 4] = [
            (c"ibv_node_type_str", ibv_node_type_str),
            (c"ibv_port_state_str", ibv_port_state_str),
            (c"ibv_event_type_str", ibv_event_type_str),
            (c"ibv_wc_status_str", ibv_wc_status_str),
        ];
        for (function, ours) in verbs {
            expect_the_names_of_stock(LIBIBVERBS, function, ours, UNKNOWN);
        }
        expect_the_names_of_stock(LIBRDMACM, c"rdma_event_str", rdma_event_str, UNKNOWN_EVENT);
    }

    #[test]
    fn opcodes_have_names() {
        for (opcode, name) in
            [(0, "rdma-write"), (4, "rdma-read"), (13, "unknown"), (15, "atomic-write")]
        {
            assert_eq!(text(ferrowarp_wr_opcode_str(opcode)), name);
        }
        assert_eq!(text(ferrowarp_wr_opcode_str(-1)), "unknown");
    }
}
