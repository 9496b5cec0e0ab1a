//! Rows of the Terminate table: one for each way to violate a rule.

/// HdrCt bits of the Terminate: which headers of the terminated segment are copied.
pub(super) const NONE: &str = "";
pub(super) const MD: &str = "MD";
pub(super) const MDR: &str = "MDR";

/// Name; valid segments received before; header and payload of the invalid segment; first two bytes
/// of the Terminate Control field (layer and error type, error code); HdrCt bits.
pub(super) type Row =
    (&'static str, &'static [&'static str], &'static str, &'static str, &'static str, &'static str);

/// A Send of one byte into the first buffer.
const SEND_1: &str = "41 43 00000000 00000000 00000001 00000000 61";
/// A zero-length Send into the second buffer.
const SEND_2: &str = "41 43 00000000 00000000 00000002 00000000";
/// Valid Read Requests.
pub(super) const READ_1: &str = "41 41 00000000 00000001 00000001 00000000 \
     00000001 0000000000000002 00000001 open 0000000000000100";
const READ_2: &str = "41 41 00000000 00000001 00000002 00000000 \
     00000001 0000000000000002 00000001 open 0000000000000100";
/// The response to the outstanding Read.
pub(super) const RESPONSE: &str = "c1 42 open 0000000000000180 6162636465666768";
/// DDP and RDMAP headers of a Read Request.
const READ: &str = "41 41 00000000 00000001 00000001 00000000";

/// Region `open` has offsets 0x100 to 0x1ff. Three receive buffers are posted: of 4 bytes, of 64
/// bytes, and one in an invalidated region. One Read of 8 bytes is outstanding; its sink is offset
/// 0x180 of `open`. IRD is 2.
#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    // DDP, Tagged Buffer Errors (RFC 5041 section 7.2).
    ("STag 0", &[], "c1 40 00000000 0000000000000100", "78", "11 00", MD),
    ("an STag that was invalidated", &[], "c1 40 gone 0000000000000100", "78", "11 00", MD),
    ("an STag without write access", &[], "c1 40 readable 0000000000000200", "78", "11 00", MD),
    ("a segment between others", &[], "81 40 gone 0000000000000100", "78", "11 00", MD),
    ("before the region", &[], "c1 40 open 00000000000000ff", "7879", "11 01", MD),
    ("beyond its end", &[], "c1 40 open 00000000000001ff", "7879", "11 01", MD),
    ("behind its end", &[], "c1 40 open 0000000000000200", "78", "11 01", MD),
    ("another domain's", &[], "c1 40 foreign_pd 0000000000000280", "78", "11 02", MD),
    ("around the end of all offsets", &[], "c1 40 open fffffffffffffffe", "78797a7b", "11 03", MD),
    ("DV, tagged", &[], "c0 40 open 0000000000000100", "78", "11 04", MD),
    ("DV 2, tagged", &[], "c2 40 open 0000000000000100", "78", "11 04", MD),
    ("DV 3, tagged", &[], "83 40 open 0000000000000100", "78", "11 04", MD),
    ("DV later on", &[SEND_1], "c0 40 open 0000000000000100", "78", "11 04", MD),
    ("a response to another STag", &[], "c1 42 gone 0000000000000180", "78*8", "11 00", MD),
    ("a response at another offset", &[], "c1 42 open 0000000000000181", "78*8", "11 01", MD),
    ("a response too long", &[], "81 42 open 0000000000000180", "78*9", "11 01", MD),
    ("a response too short", &[], "c1 42 open 0000000000000180", "78*7", "11 01", MD),
    ("a response that wraps", &[], "c1 42 open fffffffffffffffc", "78*8", "11 03", MD),
    // DDP, Untagged Buffer Errors.
    ("queue 4", &[], "41 43 00000000 00000004 00000001 00000000", "78", "12 01", MD),
    ("the last queue", &[], "41 43 00000000 ffffffff 00000001 00000000", "78", "12 01", MD),
    ("no buffer", &[], "41 43 00000000 00000000 00000004 00000000", "78", "12 02", MD),
    ("no buffer, no bytes", &[], "41 43 00000000 00000000 00000004 00000000", "", "12 02", MD),
    ("Reads beyond IRD", &[READ_1, READ_2], "41 41 00000000 00000001 00000003 00000000",
        "00000001 0000000000000002 00000001 open 0000000000000100", "12 02", MD),
    ("MSN 0", &[], "41 43 00000000 00000000 00000000 00000000", "78", "12 03", MD),
    ("a missing message", &[], "41 43 00000000 00000000 00000002 00000000", "78", "12 03", MD),
    ("a message twice", &[SEND_1], "41 43 00000000 00000000 00000001 00000000", "61", "12 03", MD),
    ("a missing Read", &[], "41 41 00000000 00000001 00000002 00000000",
        "00000001 0000000000000002 00000001 open 0000000000000100", "12 03", MD),
    ("MO at once", &[], "41 43 00000000 00000000 00000001 00000001", "78", "12 04", MD),
    ("MO at the buffer's end", &[], "41 43 00000000 00000000 00000001 00000004", "78", "12 04", MD),
    ("MO that wraps", &[], "41 43 00000000 00000000 00000001 ffffffff", "7879", "12 04", MD),
    ("a gap", &["01 43 00000000 00000000 00000001 00000000 61"],
        "41 43 00000000 00000000 00000001 00000002", "78", "12 04", MD),
    ("MO of a Read", &[], "41 41 00000000 00000001 00000001 00000004",
        "00000001 0000000000000002 00000001 open 0000000000000100", "12 04", MD),
    ("too long", &[], "41 43 00000000 00000000 00000001 00000000", "78*5", "12 05", MD),
    ("too long at last", &["01 43 00000000 00000000 00000001 00000000 616263"],
        "41 43 00000000 00000000 00000001 00000003", "7879", "12 05", MD),
    ("too long by far", &[], "41 43 00000000 00000000 00000001 00000000", "78*1400", "12 05", MD),
    ("a Read of two segments", &[], "01 41 00000000 00000001 00000001 00000000",
        "00000001 0000000000000002 00000001 open", "12 05", MD),
    ("a Read with a tail", &[], READ,
        "00000001 0000000000000002 00000001 open 0000000000000100 00", "12 05", MD),
    ("DV, untagged", &[], "40 43 00000000 00000000 00000001 00000000", "78", "12 06", MD),
    ("DV 2, untagged", &[], "42 43 00000000 00000000 00000001 00000000", "78", "12 06", MD),
    ("DV 3, one byte", &[], "43", "", "12 06", MD),
    ("a Terminate of another DV", &[], "40 47 00000000 00000002 00000001 00000000",
        "11 00 0000", "12 06", MD),
    // DDP, Local Catastrophic: a receive buffer that is not registered as its request claims.
    ("a bad buffer", &[SEND_1, SEND_2], "41 43 00000000 00000000 00000003 00000000", "78",
        "10 00", NONE),
    // RDMAP, Remote Protection Errors (RFC 5040 Figure 9).
    ("Read: no STag", &[], READ,
        "00000001 0000000000000002 00000001 gone 0000000000000100", "01 00", MDR),
    ("Read: before the region", &[], READ,
        "00000001 0000000000000002 00000001 open 00000000000000ff", "01 01", MDR),
    ("Read: beyond its end", &[], READ,
        "00000001 0000000000000002 00000101 open 0000000000000100", "01 01", MDR),
    ("Read: no access right", &[], READ,
        "00000001 0000000000000002 00000001 writable 0000000000000240", "01 02", MDR),
    ("Read: another domain's", &[], READ,
        "00000001 0000000000000002 00000001 foreign_pd 0000000000000280", "01 03", MDR),
    ("Read: around the end", &[], READ,
        "00000001 0000000000000002 00000010 open fffffffffffffff8", "01 04", MDR),
    ("the second Read", &[READ_1], "41 41 00000000 00000001 00000002 00000000",
        "00000001 0000000000000002 00000001 gone 0000000000000100", "01 00", MDR),
    ("Invalidate: another domain's", &[], "41 44 foreign_pd 00000000 00000001 00000000", "78",
        "01 09", MD),
    ("Invalidate with event: another domain's", &[],
        "41 46 foreign_pd 00000000 00000001 00000000", "", "01 09", MD),
    // RDMAP, Remote Operation Errors.
    ("RV 0", &[], "c1 00 open 0000000000000100", "78", "02 05", MD),
    ("RV 2", &[], "41 83 00000000 00000000 00000001 00000000", "78", "02 05", MD),
    ("RV 3 later on", &[SEND_1], "c1 c0 open 0000000000000100", "78", "02 05", MD),
    ("RV of a Read", &[], "41 c1 00000000 00000001 00000001 00000000",
        "00000001 0000000000000002 00000001 open 0000000000000100", "02 05", MDR),
    ("RV of a Terminate", &[], "41 87 00000000 00000002 00000001 00000000", "11 00 0000",
        "02 05", MD),
    ("a tagged Read Request", &[], "c1 41 open 0000000000000100", "78", "02 06", MD),
    ("a tagged Send", &[], "c1 43 open 0000000000000100", "78", "02 06", MD),
    ("a tagged Send with Invalidate", &[], "c1 44 open 0000000000000100", "78", "02 06", MD),
    ("a tagged Send with event", &[], "c1 45 open 0000000000000100", "78", "02 06", MD),
    ("a tagged Send with both", &[], "c1 46 open 0000000000000100", "78", "02 06", MD),
    ("a tagged Terminate", &[], "c1 47 open 0000000000000100", "11 00 0000", "02 06", MD),
    ("a tagged reserved opcode", &[], "c1 4f open 0000000000000100", "78", "02 06", MD),
    ("opcode 12", &[], "41 4c 00000000 00000000 00000001 00000000", "78", "02 06", MD),
    ("opcode 15", &[], "41 4f 00000000 00000000 00000001 00000000", "78", "02 06", MD),
    ("an untagged Write", &[], "41 40 00000000 00000000 00000001 00000000", "78", "02 06", MD),
    ("an untagged Response", &[], "41 42 00000000 00000000 00000001 00000000", "78", "02 06", MD),
    ("a Response without a request", &[RESPONSE], "c1 42 open 0000000000000180", "78", "02 06", MD),
    ("an empty one", &[RESPONSE], "c1 42 00000000 0000000000000000", "", "02 06", MD),
    ("a Send on queue 1", &[], "41 43 00000000 00000001 00000001 00000000", "78", "02 06", MD),
    ("a Send on queue 2", &[], "41 45 00000000 00000002 00000001 00000000", "78", "02 06", MD),
    ("a Read on queue 0", &[], "41 41 00000000 00000000 00000001 00000000",
        "00000001 0000000000000002 00000001 open 0000000000000100", "02 06", MD),
    ("a Send where a Read belongs", &[], "41 44 00000000 00000001 00000001 00000000",
        "00000001 0000000000000002 00000001 open 0000000000000100", "02 06", MD),
    ("a Terminate on queue 0", &[], "41 47 00000000 00000000 00000001 00000000", "11 00 0000",
        "02 06", MD),
    ("nothing at all", &[], "", "", "02 07", NONE),
    ("one byte", &[], "c1", "", "02 07", MD),
    ("a tagged header cut short", &[], "c1 40 open 00000000000001", "", "02 07", MD),
    ("an untagged header cut short", &[], "41 43 00000000 00000000 00000001 000000", "",
        "02 07", MD),
    ("Invalidate: no STag", &[], "41 44 gone 00000000 00000001 00000000", "78", "02 09", MD),
    ("Invalidate: STag 0", &[], "41 46 00000000 00000000 00000001 00000000", "78", "02 09", MD),
    ("a Read cut short", &[], READ,
        "00000001 0000000000000002 00000001 open 00000000000001", "02 ff", MD),
    ("an empty Read", &[], READ, "", "02 ff", MD),
];
