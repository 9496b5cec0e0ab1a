//! Guide: from memory to shards, with an example for each step.
//!
//! The examples connect two contexts of one process, `left` and `right`, over `ring`. Between two
//! hosts each opens its own, with [`Context::open`] and a device such as `pci:0000:01:00.1`,
//! `af_packet:eth1` or `memif:/run/fw.sock` ([`DeviceSpec`]).
//!
//! # Memory
//!
//! An operation names memory by STag, address and length. [`Context::allocate`] returns a
//! [`Buffer`], in hugepages if there are any. It is a slice of bytes until it is registered, and
//! again after [`Mr::deregister`]. A registered region ([`Mr`]) is never borrowed, because the peer
//! may write there at any moment: [`Mr::read`] and [`Mr::write`] copy. Its rights ([`Access`]) say
//! what peers may do; the local stack may always read. Memory of your own is registered with
//! [`Pd::register_raw`], and part of a region is lent for a while with a memory window ([`Mw`]).
//!
//! ```
//! # use std::time::Duration;
//! # use ferrowarp::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let config = |host: &str| -> Result<Config, Box<dyn std::error::Error>> {
//! #     Ok(Config::new("ring".parse()?, host.parse()?, 24))
//! # };
//! # let (left, right) = Context::ring_pair(config("198.18.0.1")?, config("198.18.0.2")?)?;
//! # let timeout = Duration::from_secs(5);
//! let mut buffer = left.allocate(4096)?;
//! buffer[..5].copy_from_slice(b"hello");
//! let pd = left.alloc_pd();
//! let region = pd.register(buffer, Access::REMOTE_READ)?;
//! region.write(5, b" world");
//! // For the peer: address and STag, in private data or in a Send.
//! let advertised = (region.addr(), region.rkey());
//! # let _ = advertised;
//! let buffer = region.deregister().ok_or("the memory is the caller's")?;
//! assert_eq!(&buffer[..11], b"hello world");
//! # Ok(())
//! # }
//! ```
//!
//! # Queues
//!
//! A queue pair ([`Qp`]) has a send and a receive queue. Choose their lengths ([`QpOptions`]) for
//! the requests that are outstanding at a time, and the completion queue ([`Cq`]) for the sum of
//! all queue pairs that use it: if it overruns, they end. Creation fails if a limit is exceeded
//! ([`Limits`]) and says which; posting fails if a queue is full ([`PostError::QueueFull`]).
//! Buffers that several queue pairs share are posted to a shared receive queue ([`Srq`]).
//!
//! ```
//! # use std::time::Duration;
//! # use ferrowarp::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let config = |host: &str| -> Result<Config, Box<dyn std::error::Error>> {
//! #     Ok(Config::new("ring".parse()?, host.parse()?, 24))
//! # };
//! # let (left, right) = Context::ring_pair(config("198.18.0.1")?, config("198.18.0.2")?)?;
//! # let timeout = Duration::from_secs(5);
//! let cq = left.create_cq(2 * (16 + 4))?;
//! let pd = left.alloc_pd();
//! let srq = pd.create_srq(32)?;
//! let options = QpOptions::new(&cq).max_send_wr(16).srq(&srq);
//! let qps = [pd.create_qp(&options)?, pd.create_qp(&options)?];
//! assert!(qps.iter().all(|qp| qp.state() == QpState::Idle));
//! let region = pd.register(left.allocate(4096)?, Access::LOCAL_WRITE)?;
//! for wr_id in 0..32 {
//!     let sg_list = SgList::from([region.sge(128 * wr_id, 128)]);
//!     srq.post_recv(RecvWr { wr_id: wr_id as u64, sg_list })?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Four things surprise programs that come from other queues:
//!
//! - *An overrun ends all.* One completion too many ends every queue pair of the completion queue,
//!   as with RNICs. Count the sends and receives that can be outstanding on all of them, or give
//!   a queue pair that must not suffer from others a completion queue of its own. [`Cq::overrun`]
//!   says if it happened, [`Cq::resize`] makes room in time.
//! - *Unsignaled requests free their slots late.* A full queue of them stays full until the shard
//!   is polled: after [`PostError::QueueFull`] call [`Cq::poll`] or [`Context::drive`], although no
//!   completion is due. Signal one in every half queue, and its completion says that those before
//!   it are done.
//! - *A queue pair serves one connection.* There is no way back from the error state: create
//!   another, which costs some microseconds, and connect that.
//! - *Nobody watches an idle connection.* A peer that lost power is noticed when something is sent,
//!   after [`TcpSettings::user_timeout`]; with nothing outstanding it is never noticed. Servers set
//!   [`TcpSettings::keepalive`], for example to a minute.
//!
//! # Connection
//!
//! The responder listens; the initiator connects. Private data goes each way, to advertise memory.
//! Receives may be posted before: post those for the first messages before accepting. A request
//! that is dropped is rejected.
//!
//! ```
//! # use std::time::Duration;
//! # use ferrowarp::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let config = |host: &str| -> Result<Config, Box<dyn std::error::Error>> {
//! #     Ok(Config::new("ring".parse()?, host.parse()?, 24))
//! # };
//! # let (left, right) = Context::ring_pair(config("198.18.0.1")?, config("198.18.0.2")?)?;
//! # let timeout = Duration::from_secs(5);
//! # let (cq_l, cq_r) = (left.create_cq(64)?, right.create_cq(64)?);
//! # let (pd_l, pd_r) = (left.alloc_pd(), right.alloc_pd());
//! # let qp_l = pd_l.create_qp(&QpOptions::new(&cq_l))?;
//! # let qp_r = pd_r.create_qp(&QpOptions::new(&cq_r))?;
//! let listener = right.listen(4791, 1)?;
//! let mut param = ConnParam::default();
//! param.private_data.extend_from_slice(b"who are you?")?;
//! qp_l.connect("198.18.0.2:4791".parse()?, param)?;
//!
//! let request = listener.accept_timeout(timeout).ok_or("no request")?;
//! assert_eq!(request.offer().private_data.as_slice(), b"who are you?");
//! let mut param = ConnParam::default();
//! param.private_data.extend_from_slice(b"the right one")?;
//! request.accept(&qp_r, param)?;
//!
//! let info = qp_l.wait_established(timeout)?;
//! assert_eq!(info.private_data.as_slice(), b"the right one");
//! qp_r.wait_established(timeout)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Completion
//!
//! Requests of a queue pair complete in order. A signaled one, and each that fails, has a
//! completion ([`Wc`]); an unsignaled one frees its place with the next signaled one. A Send or
//! Write completes when its memory may be changed, and is then delivered unless the peer or the
//! network fails; that it was placed at the peer is known from a later message, or from an RDMA
//! Read posted after it.
//!
//! ```
//! # use std::time::Duration;
//! # use ferrowarp::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let config = |host: &str| -> Result<Config, Box<dyn std::error::Error>> {
//! #     Ok(Config::new("ring".parse()?, host.parse()?, 24))
//! # };
//! # let (left, right) = Context::ring_pair(config("198.18.0.1")?, config("198.18.0.2")?)?;
//! # let timeout = Duration::from_secs(5);
//! # let (cq_l, cq_r) = (left.create_cq(64)?, right.create_cq(64)?);
//! # let (pd_l, pd_r) = (left.alloc_pd(), right.alloc_pd());
//! # let qp_l = pd_l.create_qp(&QpOptions::new(&cq_l))?;
//! # let qp_r = pd_r.create_qp(&QpOptions::new(&cq_r))?;
//! # let listener = right.listen(4791, 1)?;
//! # qp_l.connect("198.18.0.2:4791".parse()?, ConnParam::default())?;
//! # let request = listener.accept_timeout(timeout).ok_or("no request")?;
//! # request.accept(&qp_r, ConnParam::default())?;
//! # qp_l.wait_established(timeout)?;
//! # qp_r.wait_established(timeout)?;
//! let target = pd_r.register(right.allocate(64)?, Access::REMOTE_WRITE)?;
//! let source = pd_l.register(left.allocate(64)?, Access::LOCAL_READ)?;
//! source.write(0, b"first");
//! for wr_id in 0..8 {
//!     let payload = Payload::Gather(SgList::from([source.sge(0, 5)]));
//!     let (rkey, remote) = (target.rkey(), target.addr());
//!     let operation = Operation::Write { payload, rkey, remote };
//!     let signaled = wr_id == 7;
//!     qp_l.post_send(SendWr { wr_id, operation, signaled, fence: false })?;
//! }
//! let mut found = Vec::with_capacity(16);
//! while cq_l.poll(&mut found) == 0 {
//!     // In this mode the application polls the other end as well.
//!     right.drive();
//! }
//! assert_eq!((found[0].wr_id, found[0].status), (7, WcStatus::Success));
//! # Ok(())
//! # }
//! ```
//!
//! # Sleeping
//!
//! A completion queue made on a channel ([`CompChannel`]) is armed for one event. To lose none:
//! poll until it is empty, arm, poll once more, then wait. The channel's descriptor (`AsFd`,
//! `AsRawFd`) becomes readable, for `poll(2)`, `epoll` or the reactor of an asynchronous runtime,
//! which then calls [`CompChannel::next_event`] until there is none. Once the context has ended the
//! descriptor hangs up (`POLLHUP`). With the feature `tokio` there are futures for all of this, in
//! the module `asynchronous`. [`EventChannel`] does the same for
//! everything else: connections, requests, and the port, whose link may go down and come up
//! ([`AsyncEvent::PortError`], [`AsyncEvent::PortActive`]; [`Context::link_is_up`] is its state).
//! Somebody has to drive while the application sleeps: a helper
//! ([`DriveMode::Helper`]) or a dedicated thread.
//!
//! ```
//! # use std::time::Duration;
//! use ferrowarp::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let timeout = Duration::from_secs(5);
//! let config = |host: &str| -> Result<Config, Box<dyn std::error::Error>> {
//!     let mut config = Config::new("ring".parse()?, host.parse()?, 24);
//!     config.drive = DriveMode::Helper;
//!     Ok(config)
//! };
//! let (left, right) = Context::ring_pair(config("198.18.0.1")?, config("198.18.0.2")?)?;
//! let channel = right.create_comp_channel()?;
//! let (cq_l, cq_r) = (left.create_cq(64)?, right.create_cq_on(&channel, 64)?);
//! # let (pd_l, pd_r) = (left.alloc_pd(), right.alloc_pd());
//! # let qp_l = pd_l.create_qp(&QpOptions::new(&cq_l))?;
//! # let qp_r = pd_r.create_qp(&QpOptions::new(&cq_r))?;
//! # let listener = right.listen(4791, 1)?;
//! # qp_l.connect("198.18.0.2:4791".parse()?, ConnParam::default())?;
//! # let request = listener.accept_timeout(timeout).ok_or("no request")?;
//! # request.accept(&qp_r, ConnParam::default())?;
//! # qp_l.wait_established(timeout)?;
//! # qp_r.wait_established(timeout)?;
//! qp_r.post_recv(RecvWr { wr_id: 1, sg_list: SgList::new() })?;
//! cq_r.req_notify(Notify::Next)?;
//! let mut found = Vec::with_capacity(16);
//! assert_eq!(cq_r.poll(&mut found), 0, "nothing has arrived before");
//!
//! let payload = Payload::Inline(Default::default());
//! let operation = Operation::Send { payload, solicited: false, invalidate: None };
//! qp_l.post_send(SendWr { wr_id: 2, operation, signaled: true, fence: false })?;
//!
//! assert_eq!(channel.wait(timeout), Some(cq_r.id()));
//! assert_eq!(cq_r.poll(&mut found), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Ending
//!
//! [`Qp::close`] executes what was posted and then closes; [`Qp::disconnect`] flushes it;
//! [`Qp::terminate`] tells the peer why. Each ends with [`Event::Disconnected`], and outstanding
//! receives complete as flushed. Dropping handles does the same, in any order, and waits for a
//! bounded time until the peer has acknowledged what has completed.
//!
//! ```
//! # use std::time::Duration;
//! # use ferrowarp::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let config = |host: &str| -> Result<Config, Box<dyn std::error::Error>> {
//! #     Ok(Config::new("ring".parse()?, host.parse()?, 24))
//! # };
//! # let (left, right) = Context::ring_pair(config("198.18.0.1")?, config("198.18.0.2")?)?;
//! # let timeout = Duration::from_secs(5);
//! # let (cq_l, cq_r) = (left.create_cq(64)?, right.create_cq(64)?);
//! # let (pd_l, pd_r) = (left.alloc_pd(), right.alloc_pd());
//! # let qp_l = pd_l.create_qp(&QpOptions::new(&cq_l))?;
//! # let qp_r = pd_r.create_qp(&QpOptions::new(&cq_r))?;
//! # let listener = right.listen(4791, 1)?;
//! # qp_l.connect("198.18.0.2:4791".parse()?, ConnParam::default())?;
//! # let request = listener.accept_timeout(timeout).ok_or("no request")?;
//! # request.accept(&qp_r, ConnParam::default())?;
//! # qp_l.wait_established(timeout)?;
//! # qp_r.wait_established(timeout)?;
//! qp_l.close()?;
//! let reason = |qp: &Qp| match qp.wait_event(timeout) {
//!     Some(Event::Disconnected { reason, .. }) => Ok(reason),
//!     other => Err(format!("{other:?}")),
//! };
//! assert_eq!(reason(&qp_r)?, EndReason::PeerClosed);
//! assert_eq!(reason(&qp_l)?, EndReason::Local);
//! left.close();
//! # Ok(())
//! # }
//! ```
//!
//! # Child processes
//!
//! After `fork` the contexts are still the parent's. The child calls `exec` or `_exit`, and nothing
//! of the stack in between: there each call fails at once, nothing it does reaches the parent or
//! its peers, and its registered memory is a copy ([`Context`], *Fork*). A server that starts
//! workers forks before it opens its first context, or starts them by `exec`.
//!
//! # Threads and shards
//!
//! All handles may be used from several threads. For more than one core's worth of traffic a
//! context has several shards ([`Config::shards`]): queues of its port, each with connections of
//! its own. In mode [`DriveMode::Dedicated`] a thread of the stack polls each, on the core that
//! [`Config::cores`] names. Or each of the application's threads drives one ([`Context::shard`])
//! and makes its queues for that one: then threads share nothing on the way of the data. A request
//! names its shard, and a queue pair made for another cannot accept it ([`CmError::WrongShard`]);
//! one made for none belongs to the shard of its connection from then on.
//!
//! ```
//! # use std::time::Duration;
//! use ferrowarp::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let timeout = Duration::from_secs(5);
//! let config = |host: &str| -> Result<Config, Box<dyn std::error::Error>> {
//!     let mut config = Config::new("ring".parse()?, host.parse()?, 24);
//!     config.shards = 2;
//!     Ok(config)
//! };
//! let (left, right) = Context::ring_pair(config("198.18.0.1")?, config("198.18.0.2")?)?;
//! let listener = right.listen(4791, 4)?;
//! let cqs: Vec<Cq> = (0..right.shard_count())
//!     .map(|shard| right.create_cq_with(&CqOptions::new(64).shard(shard)))
//!     .collect::<Result<_, _>>()?;
//! let (pd_l, pd_r) = (left.alloc_pd(), right.alloc_pd());
//! let cq_l = left.create_cq(64)?;
//! let mut connections = Vec::new();
//! for _ in 0..4 {
//!     // Belongs to no shard until `connect` chooses one.
//!     let qp_l = pd_l.create_qp(&QpOptions::new(&cq_l))?;
//!     qp_l.connect("198.18.0.2:4791".parse()?, ConnParam::default())?;
//!     let request = listener.accept_timeout(timeout).ok_or("no request")?;
//!     let qp_r = pd_r.create_qp(&QpOptions::new(&cqs[request.shard()]))?;
//!     request.accept(&qp_r, ConnParam::default())?;
//!     qp_l.wait_established(timeout)?;
//!     qp_r.wait_established(timeout)?;
//!     connections.push((qp_l, qp_r));
//! }
//! let of_first = connections.iter().filter(|(_, qp)| qp.shard() == Some(0)).count();
//! assert_eq!(of_first, 2);
//! std::thread::scope(|scope| {
//!     for shard in (0..2).filter_map(|index| right.shard(index)) {
//!         // A real one would run until the program ends.
//!         scope.spawn(move || (0..100).filter(|_| shard.drive()).count());
//!     }
//! });
//! # drop(connections);
//! # Ok(())
//! # }
//! ```
//!
//! # Host programs
//!
//! A program that uses DPDK itself, as SPDK does, keeps its EAL and its port, and lends the stack
//! some queue pairs of the port and a mempool ([`HostPort`]). Before that it has called
//! `rte_eal_init`, created the mempool, and attached, configured and started the port. Port and
//! mempool are given by name, so the program may be in any language; in text the device is
//! `port:NAME,queues=FIRST-LAST,mempool=NAME`, with the port's name or its number.
//!
//! ```no_run
//! use ferrowarp::device::{DeviceSpec, HostPort};
//! use ferrowarp::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Queue pairs 2 and 3 are the stack's, and nothing else is.
//! let (port, mempool) = ("0000:01:00.0".to_owned(), "iwarp_tx".to_owned());
//! let device = DeviceSpec::HostPort(HostPort { port, queues: 2..4, mempool });
//! let mut config = Config::new(device, "198.18.0.1".parse()?, 24);
//! assert_eq!(config.shards, 2);
//! // In flight at once, of all connections of a shard: what the mempools have to hold.
//! config.pools.path_bytes = 1 << 20;
//! let context = Context::open(config)?;
//! // An lcore of the program drives the shards beside what else it does.
//! while context.drive() {}
//! context.close();
//! // The queues are the program's again.
//! # Ok(())
//! # }
//! ```
//!
//! The stack configures, starts, stops and closes nothing, uses no other queue, and frees no
//! mempool. What it needs is checked when the context is opened, and each refusal names its remedy:
//!
//! - The port is started, and has these queues. Two contexts, or others of the process, may not
//!   have the same queue. There are as many shards as queues.
//! - The mempool's mbufs hold a frame of the MTU: [`Config::mtu`] plus 18 bytes, plus
//!   `RTE_PKTMBUF_HEADROOM`. It has as many as [`Config::pools`] asks for: frames in flight,
//!   transmit descriptors, control packets, and what the threads cache (1.5 times the cache size of
//!   the mempool, each). The message says how many that are. For a smaller one lower
//!   [`PoolNeeds::path_bytes`] and [`PoolNeeds::windows`]: less is in flight then. Of what is free
//!   the last mbufs are left to retransmissions and control packets. The stack takes all others
//!   when it can, so give it a mempool that serves nothing else.
//! - The mempools of the receive queues hold, beside the receive descriptors, the frames that the
//!   stack keeps for out-of-order data: [`PoolNeeds::in_flight`] for each queue. Few drivers of
//!   virtual devices tell their mempools; there it is not checked.
//! - The port's MTU is not below [`Config::mtu`], where the driver has one.
//! - The offloads MBUF_FAST_FREE (sent frames are kept until they are acknowledged), TCP_LRO and
//!   BUFFER_SPLIT are off. With VLAN_STRIP a context without [`Config::vlan`] would take frames of
//!   any VLAN for its own: leave that off as well.
//!
//! The TCP checksum is left to the port if the program has configured that, and that of the IPv4
//! header likewise; else they are computed here. If it has configured TCP_TSO and MULTI_SEGS, and
//! [`Config::tso`] is on, the segments of a message are one frame of up to 16 mbufs. RSS key and
//! redirection table are read from the port. If the table has queues that are not lent, it is not
//! known which of them a flow reaches, and between several shards frames are passed on.
//!
//! **Steering is the program's part.** A port has one MAC address, which its contexts share, and
//! RSS knows nothing of contexts. So what belongs to a context has to be brought to its queues by
//! flow rules, on its IP address or on its TCP ports, ARP and neighbor discovery included (for
//! which a context answers only if it receives the request). Over `net_ring`, memif and
//! `net_virtio_user` queue `i` receives what the peer sends on its queue `i`, so each context needs
//! a peer there. For IPv6 the port has to receive multicast (`rte_eth_allmulticast_enable`, or
//! promiscuous mode). Over `net_tap` the stack uses another MAC address than the port's, which the
//! kernel's end has.
//!
//! **Threads.** A thread of the program that drives or waits is registered with EAL until it ends
//! (`rte_thread_register`), unless it is an lcore; six of them are, the others do without mempool
//! caches. Threads keep mbufs in their caches, as any lcore does: `rte_mempool_avail_count` counts
//! them as free.
//!
//! **Rules for the program**, on which memory safety rests: while the context is open it does not
//! use the queues, stop or reconfigure the port, or free the mempools. Of memif it leaves DPDK's
//! log stream and log levels alone (the driver's log tells when it unmaps memory). It opens and
//! closes contexts while it makes no other control calls of ethdev. It closes the context
//! ([`Context::close`]), and has threads end that have used it, before it closes the port, frees
//! the mempools or calls `rte_eal_cleanup`. When the context is closed, frames that the port has
//! not sent yet are still in its transmit queue, and return to the program's mempool in time. Ports
//! of `net_vhost` cannot be lent.

#[allow(unused_imports, reason = "as above")]
use crate::device::{DeviceSpec, HostPort, PoolNeeds};
#[allow(unused_imports, reason = "for the links of the documentation")]
use crate::*;
