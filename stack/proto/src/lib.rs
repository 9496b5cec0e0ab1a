//! Sans-IO iWARP: RDMAP over DDP over MPA over TCP, with no device, no clock and no chance of its
//! own. Frames come in through [`device::Device`], registered memory through
//! [`ddp::memory::Memory`], time and seeds as arguments; the whole runs as well in virtual time.
//!
//! Layers, each using only those to its left:
//! `wire -> net, tcp -> mpa -> ddp -> rdmap -> verbs -> engine`.
//!
//! # Words
//!
//! | Here | Meaning | Source |
//! |---|---|---|
//! | segment | what TCP puts in one packet | RFC 9293 |
//! | record | bytes handed to TCP at once; boundaries survive retransmission | |
//! | EMSS | largest payload of a segment, options taken off | draft-culley-iwarp-mpa-02 |
//! | FPDU | length, ULPDU, padding, CRC on the stream | RFC 5044 section 4 |
//! | ULPDU | what MPA carries: one DDP segment | RFC 5044 |
//! | MULPDU | largest ULPDU whose FPDU fits a segment | RFC 5044 section 4.5 |
//! | initiator, responder | who sends the request frame, who the reply | RFC 5044 section 7.1 |
//! | tagged, untagged | addressed by STag and offset, or by queue | RFC 5041 section 4 |
//! | STag, TO | names a region; offset in it (verbs: lkey and rkey; address) | RFC 5041 |
//! | QN, MSN, MO | queue, message in it, offset in the message | RFC 5041 section 4.3 |
//! | place | put bytes into memory, in whatever order they come | RFC 5041 section 5 |
//! | deliver | tell the layer above, in order and once | RFC 5041 section 5 |
//! | Data Source, Data Sink | where bytes come from, where they go | RFC 5041 |
//! | IRD, ORD | Reads served, and issued, at a time | RFC 5040 section 6 |
//! | Terminate | the message that ends a stream and says why | RFC 5040 section 4.8 |
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    expect(clippy::cast_possible_truncation, reason = "test data is made of small numbers")
)]

pub mod ddp;
pub mod device;
pub mod engine;
pub mod mpa;
pub mod net;
pub mod rdmap;
pub mod tcp;
pub mod time;
pub mod verbs;
pub mod wire;
