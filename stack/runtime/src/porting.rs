//! Porting from verbs and librdmacm: each call next to its counterpart.
//!
//! Names and behavior follow verbs, and a search for a name such as `ibv_req_notify_cq` finds its
//! counterpart. The tables go through a program from start to end. The code after each table has
//! all of its calls.
//!
//! # Differences
//!
//! - *You drive the stack.* No card does the work: a thread must, and by default your polling calls
//!   do ([`DriveMode`]).
//! - *Only reliable connections.* There are no datagrams, no address handles and no GRH: a receive
//!   buffer begins with the message. Peers are IP addresses and TCP ports. GIDs, LIDs, partition
//!   keys and paths do not exist.
//! - *One key.* `lkey` and `rkey` of a region are the same [`Stag`]. It is random, and a window
//!   gets a new one with each binding. You never compute one, but may choose the low 8 bits for a
//!   window. [`RemoteMr`] carries address, length and STag to the peer.
//! - *Access rights.* The local stack may always read a region. Remote rights of a region do not
//!   need [`Access::LOCAL_WRITE`]. The sink of an RDMA Read needs only that right.
//! - *Inline data.* A request is encoded once into the send queue, inline data with it. You may
//!   reuse the source at once. 96 bytes fit by default, and [`INLINE_LEN_MAX`] at most
//!   ([`QpOptions::max_inline_data`]).
//! - *Immediate data is a message.* It has eight bytes (RFC 7306). [`immediate_u32`] makes them of
//!   the four bytes that verbs has. [`Post::write_immediate`] is `IBV_WR_RDMA_WRITE_WITH_IMM`. A
//!   Send carries no immediate data: instead of `IBV_WR_SEND_WITH_IMM` post a Send and then
//!   [`Post::immediate`]. They consume two receives.
//! - *No receiver-not-ready.* A Send that finds no receive ends the connection. `rnr_retry_count`
//!   and `retry_count` have no counterpart: TCP retransmits.
//! - *Signaling.* There is no `sq_sig_all`: [`SendRequest::signaled`] marks each request that is to
//!   have a completion.
//! - *The connection moves the queue pair through its states.* Only the steps to the error state
//!   and to reset are calls.
//! - *No acknowledgment of events.* You own each event that you take.
//! - *Any order of clean-up.* A handle keeps alive what it needs. Dropping it is the destroy call.
//! - *No fork initialization.* Registered memory needs no `ibv_fork_init`. A child calls `exec` or
//!   `_exit` ([`Context`], *Fork*).
//! - *Errors.* A call returns a `Result`. [`PostRefused`] has the number of requests that were
//!   posted, where verbs has `bad_wr`.
//!
//! # Device and memory
//!
//! | verbs | ferrowarp |
//! |---|---|
//! | `ibv_fork_init` | none |
//! | `ibv_get_device_list` | none: you name the device ([`DeviceSpec`](device::DeviceSpec)) |
//! | `ibv_open_device` | `Context::open(config)?` |
//! | `ibv_query_device` | `context.config()` has the limits |
//! | `ibv_query_port` | `context.link_is_up()`, `context.capabilities().mtu` |
//! | loopback, to an address of the device | `qp.connect` to it; [`Config::hairpin_mtu`] |
//! | `sin6_scope_id` | that of the device's interface, or 0 |
//! | `ip neigh add`, `ip route add ... mtu` | [`Config::neighbor`], [`Route::mtu`] |
//! | `ibv_close_device` | `context.close()` |
//! | `ibv_alloc_pd` | `context.alloc_pd()` |
//! | `ibv_dealloc_pd` | `drop(pd)` |
//! | `ibv_reg_mr` | `pd.register(buffer, Access::REMOTE_WRITE)?` |
//! | the same, for memory that a value owns | `pd.register_owned(vec, Access::LOCAL_WRITE)?` |
//! | the same, for memory that nobody writes | `pd.register_shared(arc, Access::REMOTE_READ)?` |
//! | the same, for an address | `pd.register_raw(start, len, Access::LOCAL_WRITE)` |
//! | `ibv_reg_mr_iova` | `MrOptions::new(Access::REMOTE_READ).iova(1 << 32)` |
//! | `IBV_ACCESS_ZERO_BASED` | `MrOptions::new(Access::REMOTE_READ).zero_based()` |
//! | `EFAULT` | `MemoryError::NotMapped { .. }` |
//! | `ibv_rereg_mr` with new access rights | `mr.enable(Access::REMOTE_READ)` |
//! | the same, with a new domain | `mr.reregister(&ReregOptions::new().pd(&pd))?` |
//! | the same, with new memory | `mr.reregister_buffer(buffer, &ReregOptions::new())?` |
//! | `EBUSY` | `MemoryError::WindowsBound` |
//! | `ibv_dereg_mr` | `mr.deregister()` returns the buffer |
//! | `mr->lkey`, `mr->rkey` | `mr.lkey()`, `mr.rkey()`; `mr.remote()` for the peer |
//! | `mr->addr`, `mr->length` | `mr.as_mut_ptr()`, `mr.len()` |
//! | `pread` to registered memory | `mr.pread(&file, 0, 4096, 0)?` |
//! | `ibv_alloc_mw` with `IBV_MW_TYPE_2` | `pd.allocate_window()?` |
//! | the same, with `IBV_MW_TYPE_1` | `pd.allocate_window_of(MwType::Type1)?` |
//! | `ibv_bind_mw` | `mw.bind(&mr, 0, 64, Access::REMOTE_READ, false)`, and post it |
//! | the same, with `ibv_inc_rkey` | `mw.bind_with_key(key, &mr, 0, 64, rights, false)` |
//! | `ibv_dealloc_mw` | `drop(mw)`; `mw.revoke()` only unbinds |
//!
//! ```no_run
//! # use ferrowarp::*;
//! # fn device(config: Config, file: std::fs::File) -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::open(config)?;
//! assert!(context.config().qps_max > 0);
//! assert!(context.link_is_up() && context.capabilities().mtu >= 1500);
//! let pd = context.alloc_pd();
//! let buffer = context.allocate(4096)?;
//! let mut mr = pd.register(buffer, Access::REMOTE_WRITE)?;
//! assert_eq!(mr.lkey(), mr.rkey());
//! let for_the_peer = mr.remote().to_bytes();
//! let high = MrOptions::new(Access::REMOTE_READ).iova(1 << 32);
//! let at_0 = MrOptions::new(Access::REMOTE_READ).zero_based();
//! assert_eq!(pd.register(context.allocate(64)?, high)?.sge(8, 8).addr, (1 << 32) + 8);
//! assert_eq!((mr.as_mut_ptr().addr() as u64, mr.len()), (mr.addr(), 4096));
//! mr.pread(&file, 0, 4096, 0)?;
//! mr.enable(Access::REMOTE_READ);
//! if let Err(MemoryError::WindowsBound) = mr.reregister(&ReregOptions::new()) {
//!     println!("invalidate or revoke the windows first");
//! }
//! mr.reregister(&ReregOptions::new().pd(&pd))?;
//! let buffer = context.allocate(8192)?;
//! let previous = mr.reregister_buffer(buffer, &ReregOptions::new())?;
//! let mut mw = pd.allocate_window()?;
//! let bind = mw.bind(&mr, 0, 64, Access::REMOTE_READ, false);
//! let [.., key] = mw.rkey().wrapping_add(1).to_be_bytes();
//! let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
//! let bind = mw.bind_with_key(key, &mr, 0, 64, rights, false);
//! assert_eq!(pd.allocate_window_of(MwType::Type1)?.mw_type(), MwType::Type1);
//! mw.revoke();
//! drop(mw);
//! let buffer = mr.deregister();
//! drop(pd);
//! context.close();
//! # let _ = (for_the_peer, bind, buffer, at_0, previous);
//! # Ok(())
//! # }
//! # fn owned(pd: &Pd, vec: Vec<u8>, arc: std::sync::Arc<[u8]>) -> Result<(), MemoryError> {
//! let (owned, shared) = (
//!     pd.register_owned(vec, Access::LOCAL_WRITE)?,
//!     pd.register_shared(arc, Access::REMOTE_READ)?,
//! );
//! # let _ = (owned, shared);
//! # Ok(())
//! # }
//! # fn own(pd: &Pd, start: *mut u8, len: usize) -> Result<Mr, MemoryError> {
//! // SAFETY: the memory stays mapped and nobody borrows it.
//! let mr = match unsafe { pd.register_raw(start, len, Access::LOCAL_WRITE) } {
//!     Err(MemoryError::NotMapped { .. }) => panic!("no such memory"),
//!     registered => registered?,
//! };
//! # Ok(mr)
//! # }
//! ```
//!
//! # Queues
//!
//! | verbs | ferrowarp |
//! |---|---|
//! | `ibv_create_comp_channel` | `context.create_comp_channel()?` |
//! | `ibv_create_cq` | `context.create_cq(64)?` |
//! | the same, with time stamps | `CqOptions::new(64).timestamps(true)` |
//! | the same, with a channel | `context.create_cq_on(&channel, 64)?` |
//! | `ibv_resize_cq` | `cq.resize(128)?` |
//! | `ibv_create_srq` | `pd.create_srq(32)?` |
//! | the same, with attributes | `pd.create_srq_with(&SrqOptions::new(32).max_sge(2))?` |
//! | `ibv_modify_srq` with `IBV_SRQ_LIMIT` | `srq.arm(8)?` |
//! | `ibv_create_qp`, `rdma_create_qp` | `pd.create_qp(&QpOptions::new(&cq).srq(&srq))?` |
//! | the same, with a capacity | `QpOptions::new(&cq).max_send_wr(128).max_send_sge(2)` |
//! | `ibv_modify_qp` to INIT, RTR, RTS | none: the connection does it |
//! | `ibv_modify_qp` to ERR | `qp.to_error()?` |
//! | `ibv_modify_qp` to RESET | `qp.reset()?` |
//! | `ibv_query_qp` | `qp.attrs()`; `qp.state()` is one load |
//! | `qp_context` | `qp.user_data()`, `qp.set_user_data(1)` |
//! | `ibv_destroy_qp`, `rdma_destroy_qp` | `drop(qp)` |
//! | `ibv_destroy_srq`, `ibv_destroy_cq` | `drop(srq)`, `drop(cq)` |
//!
//! | `ibv_qp_state` | ferrowarp |
//! |---|---|
//! | `IBV_QPS_RESET`, `IBV_QPS_INIT` | `QpState::Idle` |
//! | `IBV_QPS_RTR` | `QpState::Connecting` |
//! | `IBV_QPS_RTS` | `QpState::Rts` |
//! | `IBV_QPS_SQD` | `QpState::Closing`: no new requests |
//! | `IBV_QPS_ERR`, `IBV_QPS_SQE` | `QpState::Error` |
//!
//! ```no_run
//! # use ferrowarp::*;
//! # fn queues(context: &Context, pd: &Pd) -> Result<(), Box<dyn std::error::Error>> {
//! let channel = context.create_comp_channel()?;
//! let cq = context.create_cq_on(&channel, 64)?;
//! cq.resize(128)?;
//! let srq = pd.create_srq_with(&SrqOptions::new(32).max_sge(2))?;
//! srq.arm(8)?;
//! let mut qp = pd.create_qp(&QpOptions::new(&cq).srq(&srq))?;
//! let attrs = qp.attrs().ok_or("the context is closed")?;
//! println!("{} requests of {}", attrs.send_depth, attrs.max_send_wr);
//! qp.set_user_data(1);
//! assert_eq!(qp.user_data(), 1);
//! let text = match qp.state() {
//!     QpState::Idle => "created",
//!     QpState::Connecting => "being connected",
//!     QpState::Rts => "connected",
//!     QpState::Closing => "being closed",
//!     QpState::Error => "ended",
//! };
//! qp.to_error()?;
//! qp.reset()?;
//! drop(qp);
//! drop(srq);
//! drop(cq);
//! // Without a channel, and with other lengths of requests.
//! let (cq, srq) = (context.create_cq(64)?, pd.create_srq(32)?);
//! let stamped = context.create_cq_with(&CqOptions::new(64).timestamps(true))?;
//! let options = QpOptions::new(&cq).max_send_wr(128).max_send_sge(2);
//! let qp = pd.create_qp(&options)?;
//! # let _ = (text, srq, qp, stamped);
//! # Ok(())
//! # }
//! ```
//!
//! # Requests
//!
//! | verbs | ferrowarp |
//! |---|---|
//! | `ibv_post_send`, `ibv_wr_start` | `qp.post()`, and the requests follow |
//! | `ibv_wr_complete` | `post.ring()?` |
//! | `IBV_WR_SEND` | `post.send(mr.sge(0, 8))` |
//! | `IBV_WR_SEND_WITH_INV` | `post.send(mr.sge(0, 8)).with_invalidate(stag)` |
//! | `IBV_WR_SEND_WITH_IMM` | `post.immediate(*b"8 bytes.")`, after a Send |
//! | `IBV_WR_RDMA_WRITE` | `post.write(mr.sge(0, 8), remote)` |
//! | `IBV_WR_RDMA_WRITE_WITH_IMM` | `post.write_immediate(mr.sge(0, 8), remote, data)` |
//! | `imm_data` | `immediate_u32(7)` |
//! | `IBV_WR_RDMA_READ` | `post.read(mr.sge(8, 8), remote)` |
//! | `IBV_WR_ATOMIC_FETCH_AND_ADD` | `post.atomic(AtomicOp::fetch_add(1), sink, remote)` |
//! | `IBV_WR_ATOMIC_CMP_AND_SWP` | `post.atomic(AtomicOp::cmp_swap(1, 2), sink, remote)` |
//! | `IBV_WR_BIND_MW` | `post.bind(bind)` |
//! | `IBV_WR_LOCAL_INV` | `post.invalidate(stag)` |
//! | `IBV_SEND_INLINE` | `post.send_inline(b"hello")`, `post.write_inline(b"hello", remote)` |
//! | `wr_id` | `.wr_id(1)` |
//! | `IBV_SEND_SIGNALED`, `IBV_SEND_FENCE` | `.signaled()`, `.fence()` |
//! | `IBV_SEND_SOLICITED` | `.solicited()` |
//! | several entries in `sg_list` | `post.send(&[mr.sge(0, 8), mr.sge(64, 8)])` |
//! | `ibv_post_recv` | `qp.post_recv(9, mr.sge(0, 64))?` |
//! | `ibv_post_srq_recv` | `srq.post_recv(9, mr.sge(0, 64))?` |
//!
//! ```no_run
//! # use ferrowarp::*;
//! # fn requests(qp: &Qp, srq: &Srq, mr: &Mr, remote: RemoteMr, bind: Bind, stag: Stag)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! qp.post_recv(9, mr.sge(0, 64))?;
//! srq.post_recv(9, mr.sge(0, 64))?;
//! let mut post = qp.post();
//! post.send(mr.sge(0, 8)).wr_id(1).signaled().solicited();
//! post.send(mr.sge(0, 8)).with_invalidate(stag);
//! post.send(&[mr.sge(0, 8), mr.sge(64, 8)]);
//! post.send_inline(b"hello");
//! post.immediate(*b"8 bytes.");
//! post.write(mr.sge(0, 8), remote);
//! post.write_inline(b"hello", remote);
//! let data = immediate_u32(7);
//! post.write_immediate(mr.sge(0, 8), remote, data);
//! post.read(mr.sge(8, 8), remote);
//! let sink = mr.sge(8, 8);
//! post.atomic(AtomicOp::fetch_add(1), sink, remote);
//! post.atomic(AtomicOp::cmp_swap(1, 2), sink, remote).fence();
//! post.bind(bind);
//! post.invalidate(stag);
//! post.ring()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Completions
//!
//! | verbs | ferrowarp |
//! |---|---|
//! | `ibv_poll_cq` | `cq.poll(&mut wcs)` |
//! | `ibv_req_notify_cq` | `cq.req_notify(Notify::Next)?` |
//! | the same, `solicited_only` | `cq.req_notify(Notify::Solicited)?` |
//! | `ibv_get_cq_event`, `ibv_ack_cq_events` | `channel.wait(timeout)` |
//! | `wc.qp_num` | `wc.qp == qp.id()` |
//! | `wc.wr_id`, `wc.opcode`, `wc.byte_len` | `wc.wr_id`, `wc.opcode`, `wc.byte_len` |
//! | `wc.imm_data` | `wc.immediate()`, `wc.immediate_u32()` |
//! | `wc.invalidated_rkey` | `wc.invalidated()` |
//! | `ibv_wc_read_completion_ts` | `wc.timestamp_ns` |
//! | `ibv_query_rt_values_ex` | `context.now_ns()` |
//! | `wc.vendor_err` | `wc.vendor_err` has the error of the connection |
//! | `ibv_wc_status_str` | `wc.status.to_string()` |
//!
//! | `ibv_wc_status` | ferrowarp |
//! |---|---|
//! | `IBV_WC_SUCCESS` | `WcStatus::Success` |
//! | `IBV_WC_LOC_PROT_ERR` | `WcStatus::LocalProtection` |
//! | `IBV_WC_LOC_LEN_ERR` | `WcStatus::LocalLength` |
//! | `IBV_WC_MW_BIND_ERR` | `WcStatus::Bind` |
//! | `IBV_WC_REM_ACCESS_ERR` | `WcStatus::RemoteAccess` |
//! | `IBV_WC_REM_OP_ERR`, `IBV_WC_REM_INV_REQ_ERR` | `WcStatus::RemoteOperation` |
//! | `IBV_WC_WR_FLUSH_ERR` | `WcStatus::Flushed` |
//! | `IBV_WC_RETRY_EXC_ERR`, `IBV_WC_RNR_RETRY_EXC_ERR` | none: the connection ends, and flushes |
//!
//! ```no_run
//! # use std::time::Duration;
//! # use ferrowarp::*;
//! # fn completions(context: &Context, cq: &Cq, qp: &Qp, channel: &CompChannel, timeout: Duration)
//! # -> Result<(), ReqNotifyError> {
//! let mut wcs = [Wc::default(); 16];
//! for wc in cq.poll(&mut wcs) {
//!     assert!(wc.qp == qp.id());
//!     let name = match wc.status {
//!         WcStatus::Success => "IBV_WC_SUCCESS",
//!         WcStatus::LocalProtection => "IBV_WC_LOC_PROT_ERR",
//!         WcStatus::LocalLength => "IBV_WC_LOC_LEN_ERR",
//!         WcStatus::Bind => "IBV_WC_MW_BIND_ERR",
//!         WcStatus::RemoteAccess => "IBV_WC_REM_ACCESS_ERR",
//!         WcStatus::RemoteOperation => "IBV_WC_REM_OP_ERR",
//!         WcStatus::Flushed => "IBV_WC_WR_FLUSH_ERR",
//!         _ => "unknown",
//!     };
//!     println!("{name}: {} ({:#x})", wc.status.to_string(), wc.vendor_err);
//!     println!("{} {:?} {}", wc.wr_id, wc.opcode, wc.byte_len);
//!     println!("{:?} {:?} {:?}", wc.immediate(), wc.immediate_u32(), wc.invalidated());
//!     println!("{} ns ago", context.now_ns().saturating_sub(wc.timestamp_ns));
//! }
//! cq.req_notify(Notify::Solicited)?;
//! cq.req_notify(Notify::Next)?;
//! let notified: Option<CqId> = channel.wait(timeout);
//! # let _ = notified;
//! # Ok(())
//! # }
//! ```
//!
//! # Connections
//!
//! | librdmacm | ferrowarp |
//! |---|---|
//! | `rdma_create_id` | none: a [`Qp`] has its connection, a [`Listener`] its address |
//! | `rdma_resolve_addr`, `rdma_resolve_route` | none: [`Config`] has addresses and routes |
//! | their `timeout_ms` | `param.connect_timeout(timeout)`: for the whole set-up |
//! | `src_addr`, or `rdma_bind_addr` to connect | `param.local_address(ip).local_port(7000)` |
//! | `rdma_bind_addr`, `rdma_listen` | `context.listen(4791, 8)?`: all addresses |
//! | the same, on one address, or all of a family | `context.listen(addr, 8)?` ([`ListenAddr`]) |
//! | `RDMA_OPTION_ID_AFONLY` | always: `0.0.0.0` and `::` are one family each |
//! | `RDMA_OPTION_ID_REUSEADDR` | none: the port of a listener is free once that is dropped |
//! | `rdma_get_request` | `listener.accept_timeout(timeout)`, `listener.poll()` |
//! | `rdma_accept` | `request.accept(&qp, param)?` |
//! | `rdma_reject` | `request.reject(b"busy")?` |
//! | `rdma_connect` | `qp.connect(remote, param)?` |
//! | `rdma_conn_param` | `ConnParam::new().ird(4).ord(4).private_data("hello")?` |
//! | `rdma_set_option` with `RDMA_OPTION_ID_TOS` | `ConnParam::new().tos(0xb8)?` |
//! | `rdma_get_src_port` of a listener | `listener.port()`, `listener.local_addr()` |
//! | `rdma_get_local_addr`, `rdma_get_peer_addr` | `qp.local()`, `qp.peer()` |
//! | `rdma_get_src_port`, `rdma_get_dst_port` | the same, with ports |
//! | `rdma_disconnect` | `qp.close()?` executes the posted requests first |
//! | the same, and flush | `qp.disconnect()?` |
//!
//! ```no_run
//! # use std::net::SocketAddr;
//! # use std::time::Duration;
//! # use ferrowarp::*;
//! # fn passive(context: &Context, qp: Qp, timeout: Duration)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let listener = context.listen(4791, 8)?;
//! assert_eq!((listener.port(), listener.local_addr().ip()), (4791, None));
//! let addr: SocketAddr = "0.0.0.0:4420".parse()?;
//! let ipv4_only = context.listen(addr, 8)?;
//! let param = ConnParam::new().ird(4).ord(4).private_data("hello")?;
//! if let Some(request) = listener.accept_timeout(timeout) {
//!     request.accept(&qp, param)?;
//! }
//! let expedited = ConnParam::new().tos(0xb8)?;
//! if let Some(request) = listener.poll() {
//!     request.reject(b"busy")?;
//! }
//! qp.close()?;
//! # let _ = expedited;
//! # drop(ipv4_only);
//! # Ok(())
//! # }
//! # fn active(qp: Qp, remote: SocketAddr, ip: std::net::IpAddr, timeout: Duration)
//! # -> Result<(), CmError> {
//! let param = ConnParam::new();
//! let param = param.local_address(ip).local_port(7000);
//! let param = param.connect_timeout(timeout);
//! qp.connect(remote, param)?;
//! println!("{:?} to {:?}", qp.local(), qp.peer());
//! qp.disconnect()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Events
//!
//! A queue pair has events of its connection ([`ConnEvent`]). The channel of the context names all
//! sources of events ([`AsyncEvent`]).
//!
//! | verbs, librdmacm | ferrowarp |
//! |---|---|
//! | `rdma_create_event_channel` | `context.event_channel()?`, which each context has |
//! | the same, for more | `context.create_event_channel()?` |
//! | `channel` of `rdma_create_id` | `QpOptions::new(&cq).event_channel(&own)` |
//! | `rdma_migrate_id` | `qp.set_event_channel(&own)?`, `listener.set_event_channel(&own)?` |
//! | `rdma_destroy_event_channel` | `drop(own)`: its sources report to the context's again |
//! | `rdma_get_cm_event`, `rdma_ack_cm_event` | `qp.wait_event(timeout)`, `qp.next_event()` |
//! | the same, to connect | `qp.wait_established(timeout)?` |
//! | `RDMA_CM_EVENT_CONNECT_REQUEST` | `AsyncEvent::ConnectRequest { .. }` |
//! | `RDMA_CM_EVENT_ESTABLISHED` | `ConnEvent::Established { .. }` |
//! | `RDMA_CM_EVENT_REJECTED` | `ConnEvent::ConnectFailed { error: ConnectError::Rejected, .. }` |
//! | `RDMA_CM_EVENT_ADDR_ERROR` | the same with `ConnectError::Unreachable` |
//! | the same, on a link that is down | the same with `ConnectError::LinkDown` |
//! | `RDMA_CM_EVENT_ROUTE_ERROR` | none: `qp.connect` returns [`CmError::Unreachable`] |
//! | `RDMA_CM_EVENT_UNREACHABLE` | with `ConnectError::Unreachable` or `ConnectError::TimedOut` |
//! | `RDMA_CM_EVENT_CONNECT_ERROR` | `ConnEvent::ConnectFailed { .. }` |
//! | `RDMA_CM_EVENT_DISCONNECTED` | `ConnEvent::Disconnected { .. }` |
//! | `RDMA_CM_EVENT_ADDR_RESOLVED` | none, and none for the route |
//! | `RDMA_CM_EVENT_TIMEWAIT_EXIT` | none |
//! | `RDMA_CM_EVENT_DEVICE_REMOVAL` | `AsyncEvent::Failed` |
//! | `ibv_get_async_event`, `ibv_ack_async_event` | `events.wait(timeout)`, `events.next_event()` |
//! | `IBV_EVENT_DEVICE_FATAL` | `AsyncEvent::Failed` |
//! | `IBV_EVENT_QP_FATAL`, `IBV_EVENT_QP_ACCESS_ERR` | `ConnEvent::Disconnected { .. }` |
//! | `IBV_EVENT_CQ_ERR` | `AsyncEvent::CqOverrun { .. }` |
//! | `IBV_EVENT_QP_LAST_WQE_REACHED` | none: poll before you drop a queue pair ([`Qp`]) |
//! | `IBV_EVENT_SRQ_LIMIT_REACHED` | `AsyncEvent::SrqLimit { .. }`, `srq.next_limit()` |
//! | `IBV_EVENT_PORT_ERR` | `AsyncEvent::PortError` |
//! | `IBV_EVENT_PORT_ACTIVE` | `AsyncEvent::PortActive` |
//!
//! ```no_run
//! # use std::time::Duration;
//! # use ferrowarp::*;
//! # fn events(context: &Context, qp: &Qp, srq: &Srq, timeout: Duration)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let info = qp.wait_established(timeout)?;
//! let event = qp.next_event().or_else(|| qp.wait_event(timeout));
//! match event.ok_or("no event")? {
//!     ConnEvent::Established { .. } => println!("connected"),
//!     ConnEvent::ConnectFailed { error: ConnectError::Rejected, .. } => println!("rejected"),
//!     ConnEvent::ConnectFailed { error: ConnectError::Unreachable, .. } => println!("no host"),
//!     ConnEvent::ConnectFailed { error: ConnectError::LinkDown, .. } => println!("no link"),
//!     ConnEvent::ConnectFailed { error: ConnectError::TimedOut, .. } => println!("no answer"),
//!     ConnEvent::ConnectFailed { .. } => println!("refused, or a protocol error"),
//!     ConnEvent::Disconnected { .. } => println!("ended"),
//!     other => println!("{other:?}"),
//! }
//! let own = context.create_event_channel()?;
//! let cq = context.create_cq(64)?;
//! let options = QpOptions::new(&cq).event_channel(&own);
//! let listener = context.listen(4791, 8)?;
//! listener.set_event_channel(&own)?;
//! qp.set_event_channel(&own)?;
//! drop(own);
//! let events = context.event_channel()?;
//! let event = events.next_event().or_else(|| events.wait(timeout));
//! match event.ok_or("no event")? {
//!     AsyncEvent::Connection { .. } => println!("a queue pair has events"),
//!     AsyncEvent::ConnectRequest { .. } => println!("a listener has requests"),
//!     AsyncEvent::CqOverrun { .. } => println!("its queue pairs are in error"),
//!     AsyncEvent::SrqLimit { .. } => println!("few are left: {:?}", srq.next_limit()),
//!     AsyncEvent::PortError => println!("the link is down"),
//!     AsyncEvent::PortActive => println!("the link is up"),
//!     AsyncEvent::Failed => println!("no further event occurs"),
//!     other => println!("{other:?}"),
//! }
//! # let _ = info;
//! # Ok(())
//! # }
//! ```

#[allow(unused_imports, reason = "for the links of the documentation")]
use crate::*;
