//! ferrowarp: iWARP (RDMA over TCP) in user space, on DPDK.
//!
//! A [`Context`] is an open device with its addresses. You get everything else from it: protection
//! domains ([`Pd`]), completion queues ([`Cq`]), memory regions ([`Mr`]) and memory windows
//! ([`Mw`]), queue pairs ([`Qp`]), shared receive queues ([`Srq`]) and listeners ([`Listener`]).
//! Names and behavior follow verbs.
//!
//! Posting writes a request to a ring. Polling a completion queue reads completions from another.
//! In between a thread must *drive* the shard: it polls the shard's engine and port.
//!
//! | Mode | Who drives |
//! |---|---|
//! | [`DriveMode::Inline`] | Your own polling calls |
//! | [`DriveMode::Dedicated`] | A thread pinned to a core |
//! | [`DriveMode::Helper`] | A helper thread that takes over while you do not poll |
//! | [`DriveMode::Hot`] | The same, which spins for a while after traffic |
//! | [`DriveMode::Auto`] | One of the last two, by the number of cores |
//!
//! The [guide] leads you through all of this with an example for each step. If you know verbs and
//! librdmacm, [porting] has the counterpart of each call.
//!
//! | Part | Types |
//! |---|---|
//! | Context | [`Context`], [`Config`], [`DriveMode`], [`Limits`], [`ShardHandle`] |
//! | Network | [`InterfaceAddress`], [`Route`], [`StaticNeighbor`], [`TcpSettings`]; [`device`] |
//! | Memory | [`Pd`], [`Buffer`], [`Mr`], [`OwnedMr`], [`SharedMr`], [`Mw`], [`Access`] |
//! | Queues | [`Cq`], [`Qp`], [`Srq`], [`CqOptions`], [`QpOptions`], [`SrqOptions`] |
//! | Requests | [`Post`], [`SendRequest`], [`Sge`], [`WqePayload`], [`AtomicOp`], [`Bind`] |
//! | Completions | [`Wc`], [`WcStatus`], [`WcOpcode`], [`CompChannel`], [`Notify`], [`Spinner`] |
//! | Connections | [`Listener`], [`ListenAddr`], [`ConnRequest`], [`ConnParam`]; module [`cm`] |
//! | Events | [`ConnEvent`], [`EndReason`], [`EventChannel`], [`AsyncEvent`], [`SrqLimit`] |
//! | Reports | [`QpAttrs`], [`Ended`]; module [`stats`] |
//!
//! Two features are off by default. `tokio` adds the module `asynchronous`: tasks that wait for
//! completions and events. `static` links DPDK's archives into the program instead of its shared
//! libraries.
//!
//! # Example
//!
//! Two contexts are connected inside the process. One writes to the other's memory, reads it back
//! and sends a message at the end.
//!
//! ```
//! use std::time::Duration;
//!
//! use ferrowarp::*;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let config = |host: &str| -> Result<Config, Box<dyn std::error::Error>> {
//!         Ok(Config::new("ring".parse()?, host.parse()?, 24))
//!     };
//!     let (left, right) = Context::ring_pair(config("198.18.0.1")?, config("198.18.0.2")?)?;
//!     let timeout = Duration::from_secs(5);
//!
//!     // On each side: a protection domain, a completion queue, memory and a queue pair.
//!     let (pd_l, cq_l) = (left.alloc_pd(), left.create_cq(64)?);
//!     let (pd_r, cq_r) = (right.alloc_pd(), right.create_cq(64)?);
//!     let mr_l = pd_l.register(left.allocate(4096)?, Access::LOCAL_WRITE)?;
//!     let mr_r = pd_r.register(right.allocate(4096)?, Access::ALL)?;
//!     let qp_l = pd_l.create_qp(&QpOptions::new(&cq_l))?;
//!     let qp_r = pd_r.create_qp(&QpOptions::new(&cq_r).max_recv_wr(16))?;
//!     qp_r.post_recv(9, mr_r.sge(2048, 64))?;
//!
//!     // The responder advertises its memory in private data.
//!     let listener = right.listen(4791, 1)?;
//!     qp_l.connect("198.18.0.2:4791".parse()?, ConnParam::new())?;
//!     let request = listener.accept_timeout(timeout).ok_or("no connect request")?;
//!     request.accept(&qp_r, ConnParam::new().private_data(mr_r.remote().to_bytes())?)?;
//!     let info = qp_l.wait_established(timeout)?;
//!     let remote = RemoteMr::from_bytes(&info.private_data).ok_or("no memory region")?;
//!
//!     // Write, read back to another offset, and send.
//!     mr_l.write(0, b"hello");
//!     let mut post = qp_l.post();
//!     post.write(mr_l.sge(0, 5), remote).wr_id(1).signaled();
//!     post.read(mr_l.sge(100, 5), remote).wr_id(2).signaled();
//!     post.send_inline(b"done").wr_id(3).signaled();
//!     post.ring()?;
//!     let (mut here, mut there) = (Vec::new(), Vec::new());
//!     while here.len() < 3 || there.is_empty() {
//!         cq_l.poll_with(8, |wc| here.push(wc));
//!         cq_r.poll_with(8, |wc| there.push(wc));
//!     }
//!     assert!(here.iter().all(|wc| wc.status == WcStatus::Success));
//!     assert_eq!((there[0].wr_id, there[0].byte_len), (9, 4));
//!     let mut bytes = [0; 5];
//!     mr_l.read(100, &mut bytes);
//!     assert_eq!(&bytes, b"hello");
//!     Ok(())
//! }
//! ```
//!
//! # Examples to copy
//!
//! The folder `examples` of this crate has programs of at most 120 lines. Each has a server and a
//! client, for two processes and any device.
//!
//! | Example | Shows |
//! |---|---|
//! | `write_read` | One-sided operations: RDMA Write, RDMA Read, and the Send that reports them |
//! | `send_recv` | Messages with credits, so that each finds a receive buffer |
//! | `server` | Many clients in one thread that sleeps in `poll` on the channels' descriptors |
//! | `tokio` | A task for each connection (feature `tokio`) |
//! | `key_value` | RDMA Read of memory that changes: each record has a checksum |
//! | `block` | A shared receive queue; RDMA of blocks; a file read into registered memory |
//!
//! # Atomic operations and immediate data
//!
//! [`Post::atomic`] changes a word of eight bytes at the peer and returns its previous value.
//! [`Post::immediate`] and [`Post::write_immediate`] consume a receive of the peer. Its
//! completion carries eight bytes ([`Wc::immediate`]) and reports that everything written before is
//! placed. RFC 7306 defines both. A peer need not support it: [`Config::extensions`].
//!
//! The processor's own atomic instructions execute atomic operations. No update is lost between
//! queue pairs, contexts that register the same memory, and local threads that use [`Mr::atomic`]
//! or their own `AtomicU64`. RDMA Writes and plain copies to the word are not atomic with respect
//! to them. The word is a number in the byte order of the machine that holds it. Operands and
//! returned value are numbers.
//!
//! ```
//! # use std::time::Duration;
//! use ferrowarp::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let config = |host: &str| -> Result<Config, Box<dyn std::error::Error>> {
//! #     Ok(Config::new("ring".parse()?, host.parse()?, 24))
//! # };
//! # let (left, right) = Context::ring_pair(config("198.18.0.1")?, config("198.18.0.2")?)?;
//! # let timeout = Duration::from_secs(5);
//! # let (pd_l, cq_l) = (left.alloc_pd(), left.create_cq(64)?);
//! # let (pd_r, cq_r) = (right.alloc_pd(), right.create_cq(64)?);
//! # let qp_l = pd_l.create_qp(&QpOptions::new(&cq_l))?;
//! # let qp_r = pd_r.create_qp(&QpOptions::new(&cq_r))?;
//! # let listener = right.listen(4791, 1)?;
//! # qp_l.connect("198.18.0.2:4791".parse()?, ConnParam::new())?;
//! # let request = listener.accept_timeout(timeout).ok_or("no connect request")?;
//! # request.accept(&qp_r, ConnParam::new())?;
//! # qp_l.wait_established(timeout)?;
//! // `left` and `right` are connected as above. The counter is on the right.
//! let counter = pd_r.register(right.allocate(8)?, Access::REMOTE_ATOMIC)?;
//! let before = pd_l.register(left.allocate(8)?, Access::LOCAL_WRITE)?;
//! qp_r.post_recv(9, [])?;
//! counter.atomic(0, AtomicOp::fetch_add(40));
//!
//! let mut post = qp_l.post();
//! post.atomic(AtomicOp::fetch_add(2), before.sge(0, 8), counter.remote()).wr_id(1).signaled();
//! // Fence: it is sent after the addition has completed.
//! post.immediate(*b"counted!").wr_id(2).signaled().fence();
//! post.ring()?;
//! let (mut here, mut there) = (Vec::new(), Vec::new());
//! while here.len() < 2 || there.is_empty() {
//!     cq_l.poll_with(8, |wc| here.push(wc));
//!     cq_r.poll_with(8, |wc| there.push(wc));
//! }
//! assert_eq!((before.load_word(0), counter.load_word(0)), (40, 42));
//! assert_eq!((there[0].opcode, there[0].wr_id), (WcOpcode::RecvImmediate, 9));
//! assert_eq!(there[0].immediate(), Some(*b"counted!"));
//! # Ok(())
//! # }
//! ```
//!
//! # Waiting for completions
//!
//! A [`CompChannel`] reports completions on queues that you armed for it ([`Cq::req_notify`]): any
//! completion, or only solicited ones and errors. You can wait with [`CompChannel::wait`] or poll
//! its file descriptor with others.
//!
//! # Clean-up
//!
//! The order of clean-up does not matter: every handle keeps alive the objects that it needs.
//! Successful completion promises delivery. Closing or dropping lingers for a bounded time until
//! the peer has acknowledged everything that completed.
//!
//! # Left to your program
//!
//! - *Advertising.* No message of the protocol carries an STag, an address or a length to the peer.
//!   Send them in private data or in a Send.
//! - *Flow control.* The protocol does not count receive buffers: a Send that finds none ends the
//!   connection. Post before the peer sends, or agree on credits. [`Srq::arm`] gives an early
//!   warning. Queue pairs that share a receive queue may empty it for each other, unless
//!   [`Srq::cap`] limits the buffers that each may hold.
//! - *Defined contents.* A receive buffer is defined once its receive completes, and the sink of an
//!   RDMA Read once the Read completes. The target of an RDMA Write is defined when a Send posted
//!   after it completes at its receiver. Polling the bytes is no proof, except for the last byte of
//!   a Write that arrives in order ([`Mr::load_last`]).
//! - *Completion of a Write at the peer.* Post a Send after it and wait for the Send at the peer.
//!   Or post an RDMA Read after it and wait for the Read locally.
//! - *Order of Reads and later requests.* A Send or Write posted after an RDMA Read may take effect
//!   before the Read does. [`SendRequest::fence`] delays it until all earlier Reads have
//!   completed.
//! - *Overlaps.* If outstanding operations write the same bytes, or your program writes them too,
//!   any of the results may remain.
//! - *IRD and ORD.* [`ConnParam`] sets how many Reads the local peer serves and issues at a time.
//!   MPA revision 2 negotiates them. With other revisions make sure that neither peer issues more
//!   than the other serves.
//! - *Closing.* [`Qp::close`] at either peer ends the connection when the requests posted there are
//!   done. Only your program knows when the remote peer is done with its own. [`Qp::half_close`]
//!   and [`ConnParam::half_close`] let each peer finish separately. [`Qp::disconnect`] flushes
//!   outstanding requests. If the peer violates the protocol, the stack ends the connection with a
//!   Terminate.
//! - *Exposed memory.* Every region and window belongs to a protection domain, or to one queue pair
//!   of it. You can register only memory of this process: a [`Buffer`], memory that a value of
//!   yours owns ([`Pd::register_owned`], [`Pd::register_shared`]), or memory that you guarantee
//!   ([`Pd::register_raw`]).
//! - *Authentication.* The stack does not authenticate the peer. Do so by other means before you
//!   grant it access rights.

#![warn(missing_debug_implementations)]

mod clock;
mod config;
mod context;
mod cores;
pub mod device;
mod error;
mod events;
mod fork;
pub mod guide;
mod handle;
mod limits;
mod memory;
mod poller;
pub mod porting;
mod shard;
pub mod stats;
mod tcp;
mod threads;

/// Details of connection management: kinds of startup, limits of Reads, private data, Terminates.
pub mod cm {
    pub use ferrowarp_proto::bounded_vec::BoundedVec;
    pub use ferrowarp_proto::verbs::cm::{
        Abort, PRIVATE_DATA_LEN_MAX, PrivateData, ReadDepths, Rtr, RtrKinds, Start, Terminate,
        Version, dscp_of_tos,
    };
}

#[cfg(feature = "tokio")]
pub use self::handle::asynchronous;
// req: RDMAP-011, DDP-008, DDP-009, DDP-150, RDMAP-201, RDMAP-202, RDMAP-203
// req: RDMAP-204, RDMAP-140, RDMAP-355, RDMAP-216, RDMAP-356, RDMAP-200, RDMAP-205
// req: RDMAP-232, RDMAP-234, RDMAP-236, RDMAP-242, DDP-125, DDP-191, DDP-199
// req: RDMAP-336, DDP-193, RDMAP-339
pub use self::{
    config::{Config, DriveMode},
    context::Context,
    error::{
        CreateError, LimitError, MemoryError, OpenError, RegisterRefused, ReqNotifyError,
        ResizeError,
    },
    events::AsyncEvent,
    handle::{
        comp_channel::CompChannel,
        cq::{Cq, CqOptions},
        event_channel::EventChannel,
        listener::{ConnRequest, Listener},
        mr::{Mr, MrOptions, OwnedMr, Region, RemoteAddr, RemoteMr, ReregOptions, SharedMr},
        mw::Mw,
        pd::Pd,
        qp::{Post, PostRefused, Qp, QpOptions, SendRequest},
        shard::ShardHandle,
        srq::{Srq, SrqOptions},
    },
    limits::Limits,
    memory::Buffer,
    shard::SrqLimit,
    tcp::{CongestionControl, EcnMode, Keepalive, TcpSettings},
    threads::Spinner,
};
pub use ferrowarp_proto::{
    bounded_vec::LengthError,
    ddp::memory::Access,
    ddp::regions::{MwType, RegisterError, Stag},
    ended::Ended,
    engine::ConnectionStatus,
    net::neighbor::StaticNeighbor,
    net::routing::{InterfaceAddress, Route},
    rdmap::operation::{
        AtomicOp, INLINE_LEN_MAX, ImmediateData, MESSAGE_LEN_MAX, SGE_COUNT_MAX, Sge, immediate_u32,
    },
    rdmap::send_queue::{WqePayload, wqe::SendFlags},
    tcp::State as TcpState,
    verbs::cm::{CmError, ConnEvent, ConnInfo, ConnParam, ConnectError, EndReason, ListenAddr},
    verbs::qp::QpState,
    verbs::qp_attrs::QpAttrs,
    verbs::srq::{SrqError, SrqId},
    verbs::wc::Notify,
    verbs::wc::{CqId, QpId, Wc, WcData, WcOpcode, WcStatus},
    verbs::wr::{Bind, PostError},
};
