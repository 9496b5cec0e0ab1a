//! Sans-IO iWARP: RDMAP over DDP over MPA over TCP.
//!
//! The crate has no device, no clock and no random numbers. You pass it the time and a seed. It
//! receives and sends frames through [`device::Device`] and reaches registered memory through
//! [`ddp::memory::Memory`]. So the stack also runs in virtual time.
//!
//! | Module | Part |
//! |---|---|
//! | [`wire`] | Header formats: bytes to values and back |
//! | [`net`], `tcp`, [`mpa`], [`ddp`] | Four siblings over [`wire`]. None calls another |
//! | [`rdmap`] | Operations, over [`ddp`] |
//! | [`verbs`] | Queue pairs, completions and shared receive queues, over [`rdmap`] |
//! | `connection` | One TCP connection with the layers above it |
//! | [`engine`] | The table of connections and the passes over them |
//! | [`steering`] | Several engines over the queues of one port |
//!
//! # Terms
//!
//! | Term | Meaning | Source |
//! |---|---|---|
//! | segment | data and header that TCP sends in one packet | RFC 9293 |
//! | record | bytes passed to TCP in one write; retransmissions keep boundaries | this crate |
//! | EMSS | largest payload of a segment, options subtracted | draft-culley-iwarp-mpa-02 |
//! | FPDU | length, ULPDU, padding and CRC on the stream | RFC 5044 section 4 |
//! | ULPDU | payload of an FPDU: one DDP segment | RFC 5044 |
//! | MULPDU | largest ULPDU whose FPDU fits a segment | RFC 5044 section 4.5 |
//! | initiator, responder | sends the request frame, the reply frame | RFC 5044 section 7.1 |
//! | tagged, untagged | addressed by STag and TO, or by queue, MSN and MO | RFC 5041 section 4 |
//! | STag, TO | names a region or window; offset in it (verbs: lkey, rkey; address) | RFC 5041 |
//! | QN, MSN, MO | queue, message in the queue, offset in the message | RFC 5041 section 4.3 |
//! | place | write bytes to memory, in any order | RFC 5041 section 5 |
//! | deliver | notify the layer above of a message, in order and once | RFC 5041 section 5 |
//! | Data Source, Data Sink | sender and receiver of the data of an operation | RFC 5041 |
//! | requester, responder | issues, and answers, Read and Atomic Requests | RFC 5040, RFC 7306 |
//! | IRD, ORD | limit on Reads and atomics answered, and issued, at a time | RFC 5040 section 6 |
//! | Terminate | message that ends a stream and names the error | RFC 5040 section 4.8 |
//!
//! Words with more than one meaning:
//!
//! | Word | Meanings |
//! |---|---|
//! | segment | of TCP unless the text names another; in `rdmap` a DDP segment: a ULPDU |
//! | phase | of a connection: startup, full operation; of a byte: distance from a marker |
//! | request | MPA request frame; work request (`verbs`); Read Request (`rdmap`) |
//! | event | from TCP to its connection; from connection or queue pair to the application |
//! | context | shared state of all connections; in the crate above the verbs' device context |
//! | responder | of MPA startup; of RDMA Reads and atomics |
//!
//! # Terms by module
//!
//! TCP:
//!
//! | Term | Source | Module |
//! |---|---|---|
//! | header formats, options | RFC 9293 section 3.1, RFC 7323 section 2 | [`wire::tcp`] |
//! | modular sequence numbers | RFC 9293 section 3.4 | [`wire::seq`] |
//! | Internet checksum | RFC 1071 | [`wire::checksum`] |
//! | state machine, synchronized state | RFC 9293 section 3.3.2 | `tcp::connection_state` |
//! | header prediction, fast path | RFC 7323 section 5.6 | `tcp::header_prediction` |
//! | SEGMENT ARRIVES | RFC 9293 section 3.10.7 | `tcp::rx::input` |
//! | PAWS | RFC 7323 section 5 | `tcp::rx::input` |
//! | SND.UNA, SND.NXT, SND.WND | RFC 9293 section 3.3.1 | `tcp::tx::send` |
//! | RCV.NXT, RCV.WND | RFC 9293 section 3.3.1 | `tcp::rx::window` |
//! | delayed ACK | RFC 9293 section 3.8.6.3 | `tcp::rx::window`, `tcp::timer` |
//! | window scale option, scaling | RFC 7323 section 2 | `tcp::open`, `tcp::rx::window` |
//! | out-of-order queue | RFC 9293 section 3.10.7.4 | `tcp::rx::assembler`, `tcp::rx::ooo_queue` |
//! | SACK blocks sent | RFC 2018 section 4 | `tcp::rx::assembler` |
//! | D-SACK blocks sent | RFC 2883 section 4 | `tcp::rx::window` |
//! | receive window autotuning (auto-tuning, DRS) | | `tcp::rx::autotune` |
//! | SACK scoreboard | RFC 2018, RFC 6675 | `tcp::recovery::scoreboard` |
//! | SRTT, RTTVAR, RTO | RFC 6298 | `tcp::rtt`, `tcp::timer` |
//! | Karn's algorithm | RFC 6298 section 3 | `tcp::rx::ack` |
//! | RACK | RFC 8985 section 6 | `tcp::recovery::rack` |
//! | tail loss probe (TLP), probe timeout (PTO) | RFC 8985 section 7 | `tcp::recovery::tlp` |
//! | fast retransmit, fast recovery | RFC 5681, RFC 6582 | `tcp::recovery::fast_recovery` |
//! | Eifel, F-RTO, undo | RFC 3522, RFC 5682 | `tcp::recovery::undo` |
//! | proportional rate reduction (PRR) | RFC 9937 | `tcp::recovery::prr` |
//! | cwnd, ssthresh, initial window | RFC 5681, RFC 6928 | `tcp::congestion` |
//! | CUBIC | RFC 9438 | `tcp::congestion::cubic` |
//! | HyStart++ | RFC 9406 | `tcp::congestion::hystart` |
//! | DCTCP | RFC 8257 | `tcp::congestion::dctcp` |
//! | ECN: ECT, CE, ECE, CWR | RFC 3168 section 6.1 | `tcp::ecn` |
//! | pacing | | `tcp::tx::pacing` |
//! | SWS avoidance, no Nagle | RFC 9293 section 3.8.6.2.1 | `tcp::tx::transmit_plan` |
//! | silly window syndrome (SWS), receiver | RFC 9293 section 3.8.6.2.2 | `tcp::rx::window` |
//! | zero-window probe, persist timer | RFC 9293 section 3.8.6.1 | `tcp::timer` |
//! | keep-alive (keepalive); R1, R2 | RFC 9293 sections 3.8.4, 3.8.3 | `tcp::timer` |
//! | challenge ACK | RFC 5961 | `tcp::challenge` |
//! | TIME-WAIT, its reuse | RFC 9293 section 3.3.2, RFC 6191 | `tcp::close`, `tcp::open` |
//! | path MTU discovery, PLPMTUD | RFC 1191, RFC 8201, RFC 4821, RFC 8899 | `tcp::pmtu` |
//! | initial sequence number | RFC 6528 section 3 | `connection::setup::secrets` |
//! | ephemeral port selection | RFC 6056 section 3.3.3 | `connection::setup::secrets` |
//! | SYN cookie | RFC 4987 section 3.6 | `connection::setup::syn_cookie` |
//! | backlog, half-open connections | RFC 4987 | `connection::setup` |
//!
//! IP and below:
//!
//! | Term | Source | Module |
//! |---|---|---|
//! | extension headers, fragment header | RFC 8200 section 4 | [`wire::ip`] |
//! | reassembly | RFC 791, RFC 8200 section 4.5 | [`net::fragments`] |
//! | neighbor unreachability detection | RFC 4861 section 7.3 | [`net::neighbor`] |
//! | reachability confirmation | RFC 4861 section 7.3.1 | `net::next_hop` |
//! | Neighbor Solicitation, Advertisement | RFC 4861 section 7.2 | [`net::ndp`] |
//! | ARP, announcement | RFC 826, RFC 5227 | [`net::arp`] |
//! | multicast listener report (MLD) | RFC 3810 | [`net::mld`], `net::memberships` |
//! | next hop, source address selection | RFC 6724 section 5 | [`net::routing`] |
//! | ICMP error | RFC 792, RFC 4443, RFC 5927 | [`net::icmp_error`], `engine::rx_icmp` |
//! | receive-side scaling (RSS): Toeplitz hash, redirection table | | [`steering::toeplitz`] |
//! | owner of a four-tuple among shards | | [`steering::owners`], `engine::shards` |
//! | Time Exceeded sent | RFC 792, RFC 8200 section 4.5 | [`net::icmp_tx`] |
//!
//! MPA:
//!
//! | Term | Source | Module |
//! |---|---|---|
//! | MPA Request, MPA Reply Frame | RFC 5044 section 7.1 | [`wire::mpa`], [`mpa::startup`] |
//! | MPA Request received, Reply received | | `connection::setup::accept`, `connect` |
//! | IRD and ORD negotiation | RFC 6581 section 9.1 | [`mpa::startup`] |
//! | start of full operation | RFC 5044 section 7.1 | `connection::setup::mpa_start` |
//! | FPDU format, PAD | RFC 5044 section 4.1 | [`mpa::fpdu`] |
//! | MULPDU | RFC 5044 section 4.5 | [`mpa::framing`] |
//! | marker, FPDUPTR check | RFC 5044 section 4.3 | [`mpa::markers`] |
//! | CRC32C | RFC 5044 section 4.4 | [`mpa::crc`] |
//! | FPDU reception, partial FPDU | RFC 5044 section 4 | [`mpa::deframer`], [`mpa::fpdu_pool`] |
//!
//! DDP and RDMAP:
//!
//! | Term | Source | Module |
//! |---|---|---|
//! | DDP header: T, L, DV, RsvdULP | RFC 5041 section 4 | [`wire::ddp`] |
//! | STag validation, bounds check, PD association | RFC 5041 7.1, 8.2 | [`ddp::regions`] |
//! | access rights of an STag | RFC 5041 section 7.1 | `ddp::access` |
//! | placement of tagged segments | RFC 5041 section 5.1 | [`ddp::memory`] |
//! | segmentation of a message | RFC 5041 section 5.2 | [`rdmap::segment`] |
//! | copy to and from registered memory | | [`ddp::memory`] |
//! | memory window: binding, Invalidate | RFC 5040 section 4, verbs | `ddp::regions::windows` |
//! | STag invalidation | RFC 5040 section 5.3, RFC 5041 section 8.3 | [`ddp::regions`] |
//! | queue number, MSN, MO | RFC 5041 sections 4.3, 7.1 | [`ddp::untagged`] |
//! | out-of-order placement | RFC 5041 section 5.3 | `connection::rx_ooo`, [`mpa::deframer`] |
//! | opcode, Read Request header | RFC 5040 section 4 | [`wire::rdmap`] |
//! | RDMAP stream | RFC 5040 section 5 | [`rdmap::stream`] |
//! | ORD, send queue, fence | RFC 5040 sections 5.5, 6 | [`rdmap::requester`] |
//! | IRD queue (inbound RDMA Read), Read Response | RFC 5040 section 5.2 | [`rdmap::responder`] |
//! | Read Response received, placement | RFC 5040 5.2 | [`rdmap::requester`], [`rdmap::stream`] |
//! | RTR (ready to receive), zero-length FPDU | RFC 6581 section 9.2 | [`rdmap::stream::rtr`] |
//! | Terminate sent, received | RFC 5040 section 4.8 | `rdmap::stream` (`outbound`, `inbound`) |
//! | Terminate table: error codes | RFC 5040 section 4.8 | [`rdmap::fault`] |
//! | Terminate header, HdrCt bits | RFC 5040 section 4.8 | [`wire::terminate`] |
//! | Terminate after a local one | RFC 5040 section 4.8 | `connection::close::terminate_drain` |
//! | Atomic Request, Response | RFC 7306 section 4 | [`wire::rdmap_extensions`], [`ddp::atomic`] |
//! | Immediate Data | RFC 7306 section 5 | [`wire::rdmap_extensions`], `rdmap::stream::inbound` |
//! | graceful teardown, half-close | RFC 5041 section 6.2.1 | `connection::close::graceful` |
//! | abortive teardown | RFC 5041 section 6.2 | `connection::close::end` |
//!
//! Verbs:
//!
//! | Term | Module |
//! |---|---|
//! | work queue (SQ, RQ) | [`work_queue`], [`rdmap::send_queue`], [`ddp::recv_queue`] |
//! | work request, queue pair | [`verbs::wr`], [`verbs::qp`], `verbs::queue_pair` |
//! | work completion | [`verbs::wc`] |
//! | memory registration | [`ddp::regions`] |
//! | arming (`ibv_req_notify_cq`), solicited event | [`verbs::wc`]; lockfree's `arm.rs` |
//! | CQ overrun | `verbs::resources`, [`verbs::cm`] |
//! | error state, flush | [`verbs::qp`], `verbs::queue_pair`, `verbs::qp_table` |
//! | shared receive queue (SRQ) | `verbs::srq` |
//! | scatter/gather list | [`ddp::sgl`] |
//! | connection management | [`verbs::cm`] |
//! | peculiarities of drivers | the runtime's `device/quirks.rs` |
//! | workarounds for peers | `connection::quirks` |
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    expect(clippy::cast_possible_truncation, reason = "test data is made of small numbers")
)]

pub mod bounded_vec;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod counters;
pub mod ddp;
pub mod device;
pub mod ended;
pub mod engine;
pub mod mpa;
pub mod net;
pub mod rdmap;
mod setters;
pub(crate) mod slab;
#[cfg(test)]
pub(crate) mod state_machine;
pub mod steering;
pub mod tcp;
pub mod time;
pub mod verbs;
pub(crate) mod wheel;
pub mod wire;
pub mod work_queue;
