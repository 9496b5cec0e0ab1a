//! Guide: from memory to shards with an example for each step.
//!
//! The examples connect two contexts of one process over `ring`: `left` and `right`. Between two
//! hosts each opens its own context with [`Context::open`] and a device such as `pci:0000:01:00.1`
//! or `af_packet:eth1` or `memif:/run/fw.sock` ([`DeviceSpec`]).
//!
//! # Memory
//!
//! An operation names memory by STag, address and length. [`Context::allocate`] returns a
//! [`Buffer`], in hugepages if there are any. It is a slice of bytes until you register it, and
//! again after [`Mr::deregister`]. Nobody borrows a registered region ([`Mr`]), because the peer
//! may write there at any moment: [`Region::read`] and [`Mr::write`] copy. Its rights ([`Access`])
//! limit the peers. The local stack may always read.
//!
//! Memory of your own needs no copy to a buffer. [`Pd::register_owned`] takes any value that owns
//! bytes, such as a `Vec<u8>` or a mapping, and [`OwnedMr::deregister`] gives it back.
//! [`Pd::register_shared`] takes bytes that nobody writes, such as an `Arc<[u8]>`: peers read them
//! while you do. [`Pd::register_raw`] takes an address. If your program may unmap memory that is
//! still registered, [`Config::catch_page_faults`] has that end the connection and not the process.
//!
//! A memory window ([`Mw`]) lends a part of a region for a while, to one peer or to all peers of
//! the domain ([`MwType`]). Addresses in requests are those in memory, unless you choose others
//! ([`MrOptions::iova`]) or offsets ([`MrOptions::zero_based`]). [`Mr::pread`] reads a file
//! straight into a region, and [`Region::pwrite`] writes one. [`Mr::as_mut_ptr`] is for other
//! system calls. [`Mr::reregister`] gives a region other rights, another domain or other memory,
//! and a new STag.
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
//! // For the peer: address, length and STag, in private data or in a Send.
//! let advertised = region.remote().to_bytes();
//! # let _ = advertised;
//! let buffer = region.deregister().ok_or("the memory is the caller's")?;
//! assert_eq!(&buffer[..11], b"hello world");
//!
//! let owned = pd.register_owned(vec![0; 4096], Access::REMOTE_WRITE)?;
//! let shared = pd.register_shared(&b"for everybody"[..], Access::REMOTE_READ)?;
//! let bytes: Vec<u8> = owned.deregister();
//! assert_eq!((bytes.len(), shared.owner().len()), (4096, 13));
//! # Ok(())
//! # }
//! ```
//!
//! # Queues
//!
//! A queue pair ([`Qp`]) has a send queue and a receive queue. Choose their lengths ([`QpOptions`])
//! for the requests that are outstanding at a time. Choose the length of the completion queue
//! ([`Cq`]) for the sum of all queue pairs that use it: if it overruns, they end. Creation fails if
//! it exceeds a limit ([`Limits`]), and the error names the limit. Posting fails if a queue is full
//! ([`PostError::QueueFull`]). Queue pairs can share buffers through a shared receive queue
//! ([`Srq`]).
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
//! srq.post_recvs((0..32).map(|slot| (slot as u64, region.sge(128 * slot, 128))))?;
//! # Ok(())
//! # }
//! ```
//!
//! Four things surprise programs that come from other queues:
//!
//! - *An overrun ends all.* One completion too many ends every queue pair of the completion queue,
//!   as with RNICs. Count the sends and receives that can be outstanding on all of them. Or give a
//!   queue pair that must not suffer from others its own completion queue. [`Cq::overrun`] reports
//!   an overrun. [`Cq::resize`] makes room in time.
//! - *Unsignaled requests free their slots late.* A full queue of them stays full until somebody
//!   polls the shard. After [`PostError::QueueFull`] call [`Cq::poll`] or [`Context::drive`],
//!   although no completion is due. Signal one request per half queue: its completion covers all
//!   requests before it.
//! - *A queue pair serves one connection at a time.* Once that has ended, [`Qp::reset`] makes it
//!   ready for another. That costs some microseconds, as creating a queue pair does.
//! - *Nobody watches an idle connection.* If a peer loses power, you notice when you send
//!   something, after [`TcpSettings::user_timeout`]. With nothing outstanding you never notice.
//!   Servers set [`TcpSettings::keepalive`] or [`ConnParam::keepalive`]: with 10 idle seconds and 3
//!   probes 2 seconds apart, as our programs do, they notice after 16 seconds. Over `memif`,
//!   `vhost` and `virtio-user` you always notice a killed peer, within 0.2 s: the link ends with
//!   it, and [`EndReason::LinkDown`] reports that ([`Config::link_down_grace`]).
//!
//! # Connection
//!
//! The responder listens and the initiator connects. Each side can send private data, for example
//! to advertise memory. You may post receives before that: post those for the first messages before
//! you accept. A request that you drop is rejected.
//!
//! A listener on a port accepts on all addresses of the context. Give it a `SocketAddr` to listen
//! on one address, or on one family (`0.0.0.0`, `::`): see [`ListenAddr`].
//!
//! [`ConnParam`] may name the address and port to connect from, and the time that connecting may
//! take. [`ConnectError`] tells apart a peer that refuses (`Refused`: no listener; `Rejected`: its
//! application), a host that nobody finds (`Unreachable`), a link that is down (`LinkDown`), one
//! that does not answer in time (`TimedOut`) and an attempt that you end yourself (`Local`).
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
//! let param = ConnParam::new().ird(4).private_data("who are you?")?;
//! qp_l.connect("198.18.0.2:4791".parse()?, param)?;
//!
//! let request = listener.accept_timeout(timeout).ok_or("no request")?;
//! assert_eq!(request.offer().private_data.as_slice(), b"who are you?");
//! request.accept(&qp_r, ConnParam::new().private_data("the right one")?)?;
//!
//! let info = qp_l.wait_established(timeout)?;
//! assert_eq!(info.private_data.as_slice(), b"the right one");
//! qp_r.wait_established(timeout)?;
//! # Ok(())
//! # }
//! ```
//!
//! A context connects to its own addresses as well: two of its queue pairs are then both ends.
//! Their frames stay in memory, whatever the device, and may be longer than the port's
//! ([`Config::hairpin_mtu`]). So do the frames between contexts on one port of a host program.
//! [`Config::route`] leads to other links and [`Route::mtu`] limits the packets there.
//! [`Config::neighbor`] gives the hardware address of a neighbor that does not answer ARP.
//!
//! # Completion
//!
//! Requests of a queue pair complete in order. A signaled request has a completion ([`Wc`]), and so
//! has every request that fails. An unsignaled request frees its place with the next signaled one.
//! When a Send or Write completes, you may change its memory, and it will be delivered unless the
//! peer or the network fails. To be sure that it was placed at the peer, wait for a later message,
//! or post an RDMA Read after it.
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
//! # qp_l.connect("198.18.0.2:4791".parse()?, ConnParam::new())?;
//! # let request = listener.accept_timeout(timeout).ok_or("no request")?;
//! # request.accept(&qp_r, ConnParam::new())?;
//! # qp_l.wait_established(timeout)?;
//! # qp_r.wait_established(timeout)?;
//! let target = pd_r.register(right.allocate(64)?, Access::REMOTE_WRITE)?;
//! let source = pd_l.register(left.allocate(64)?, Access::LOCAL_READ)?;
//! source.write(0, b"first");
//! let mut post = qp_l.post();
//! for wr_id in 0..7 {
//!     post.write(source.sge(0, 5), target.remote()).wr_id(wr_id);
//! }
//! post.write(source.sge(0, 5), target.remote()).wr_id(7).signaled();
//! post.ring()?;
//! let mut wcs = [Wc::default(); 16];
//! while cq_l.poll(&mut wcs).is_empty() {
//!     // In this mode the application polls the other end as well.
//!     right.drive();
//! }
//! assert_eq!((wcs[0].wr_id, wcs[0].status), (7, WcStatus::Success));
//! # Ok(())
//! # }
//! ```
//!
//! # Sleeping
//!
//! A completion queue on a channel ([`CompChannel`]) is armed for one event. To lose none: poll
//! until it is empty, arm it, poll once more, then wait. The channel's descriptor (`AsFd`,
//! `AsRawFd`) becomes readable for `poll(2)`, `epoll` or the reactor of an asynchronous runtime.
//! Then call [`CompChannel::next_event`] until it returns none. Once the context has ended the
//! descriptor hangs up (`POLLHUP`). With the feature `tokio` the module `asynchronous` has futures
//! for all of this.
//!
//! [`EventChannel`] does the same for everything else: connections, requests and the port. The
//! port's link may go down and come up ([`AsyncEvent::PortError`], [`AsyncEvent::PortActive`]);
//! [`Context::link_is_up`] returns its state. A program may have several channels
//! ([`Context::create_event_channel`]) and name one for each queue pair and listener. While you
//! sleep somebody must drive: a helper ([`DriveMode::Helper`], [`DriveMode::Hot`]) or a dedicated
//! thread. [`DriveMode::Auto`] chooses the helper by the number of cores.
//!
//! ```
//! # use std::time::Duration;
//! use ferrowarp::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let timeout = Duration::from_secs(5);
//! let config = |host: &str| -> Result<Config, Box<dyn std::error::Error>> {
//!     Ok(Config::new("ring".parse()?, host.parse()?, 24).drive(DriveMode::Helper))
//! };
//! let (left, right) = Context::ring_pair(config("198.18.0.1")?, config("198.18.0.2")?)?;
//! let channel = right.create_comp_channel()?;
//! let (cq_l, cq_r) = (left.create_cq(64)?, right.create_cq_on(&channel, 64)?);
//! # let (pd_l, pd_r) = (left.alloc_pd(), right.alloc_pd());
//! # let qp_l = pd_l.create_qp(&QpOptions::new(&cq_l))?;
//! # let qp_r = pd_r.create_qp(&QpOptions::new(&cq_r))?;
//! # let listener = right.listen(4791, 1)?;
//! # qp_l.connect("198.18.0.2:4791".parse()?, ConnParam::new())?;
//! # let request = listener.accept_timeout(timeout).ok_or("no request")?;
//! # request.accept(&qp_r, ConnParam::new())?;
//! # qp_l.wait_established(timeout)?;
//! # qp_r.wait_established(timeout)?;
//! qp_r.post_recv(1, [])?;
//! cq_r.req_notify(Notify::Next)?;
//! let mut wcs = [Wc::default(); 16];
//! assert!(cq_r.poll(&mut wcs).is_empty(), "nothing has arrived before");
//!
//! qp_l.post().send_inline(b"").wr_id(2).signaled().ring()?;
//!
//! assert_eq!(channel.wait(timeout), Some(cq_r.id()));
//! assert_eq!(cq_r.poll(&mut wcs).len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Ending
//!
//! | Call | Effect |
//! |---|---|
//! | [`Qp::close`] | Executes the posted requests and then closes |
//! | [`Qp::disconnect`] | Flushes them |
//! | [`Qp::terminate`] | Sends the reason to the peer |
//!
//! Each ends with [`ConnEvent::Disconnected`] and outstanding receives complete as flushed.
//! Dropping handles does the same in any order. It waits for a bounded time until the peer has
//! acknowledged everything that completed.
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
//! # qp_l.connect("198.18.0.2:4791".parse()?, ConnParam::new())?;
//! # let request = listener.accept_timeout(timeout).ok_or("no request")?;
//! # request.accept(&qp_r, ConnParam::new())?;
//! # qp_l.wait_established(timeout)?;
//! # qp_r.wait_established(timeout)?;
//! qp_l.close()?;
//! let reason = |qp: &Qp| match qp.wait_event(timeout) {
//!     Some(ConnEvent::Disconnected { reason, .. }) => Ok(reason),
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
//! After `fork` the contexts still belong to the parent. The child calls `exec` or `_exit` and
//! nothing of the stack in between. Each call fails there at once: nothing reaches the parent or
//! its peers, and the child's registered memory is a copy ([`Context`], *Fork*). A server that
//! starts workers forks before it opens its first context, or starts them by `exec`.
//!
//! # Threads and shards
//!
//! You may use all handles from several threads. For more traffic than one core can carry a context
//! has several shards ([`Config::shards`]): queues of its port, each with its own connections. In
//! mode [`DriveMode::Dedicated`] a thread of the stack polls each shard on the core that
//! [`Config::cores`] names. Or each of your threads drives one ([`Context::shard`]) and makes its
//! queues for that shard: then threads share nothing on the data path.
//!
//! A request names its shard. A queue pair made for another shard cannot accept it
//! ([`CmError::WrongShard`]). A queue pair made for no shard joins the shard of its connection.
//!
//! ```
//! # use std::time::Duration;
//! use ferrowarp::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let timeout = Duration::from_secs(5);
//! let config = |host: &str| -> Result<Config, Box<dyn std::error::Error>> {
//!     Ok(Config::new("ring".parse()?, host.parse()?, 24).shards(2))
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
//!     qp_l.connect("198.18.0.2:4791".parse()?, ConnParam::new())?;
//!     let request = listener.accept_timeout(timeout).ok_or("no request")?;
//!     let qp_r = pd_r.create_qp(&QpOptions::new(&cqs[request.shard()]))?;
//!     request.accept(&qp_r, ConnParam::new())?;
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
//! A program that uses DPDK itself, as SPDK does, keeps its EAL and its port. It lends the stack
//! some queue pairs of the port and a mempool ([`HostPort`]). Before that it has called
//! `rte_eal_init`, created the mempool, and attached, configured and started the port. It gives
//! port and mempool by name, so it may be written in any language. As text the device is
//! `port:NAME,queues=FIRST-LAST,mempool=NAME` with the port's name or number.
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
//! // An lcore of the program drives the shards between its other work.
//! while context.drive() {}
//! context.close();
//! // The queues are the program's again.
//! # Ok(())
//! # }
//! ```
//!
//! The stack configures, starts, stops and closes nothing. It uses no other queue and frees no
//! mempool. Opening the context checks these needs, and each refusal names its remedy:
//!
//! - The port is started and has these queues. Two contexts, or others of the process, may not have
//!   the same queue. There are as many shards as queues.
//! - The mempool's mbufs hold a frame of the MTU: [`Config::mtu`] plus 18 bytes, plus
//!   `RTE_PKTMBUF_HEADROOM`. The mempool has as many mbufs as [`Config::pools`] requests: frames in
//!   flight or held by other contexts on the port, transmit descriptors, control packets, and the
//!   caches of threads (1.5 times the mempool's cache size for each). Other contexts with which
//!   this one is connected free its mbufs, so count their threads in [`PoolNeeds::threads`]. The
//!   error has the number. For a smaller mempool lower [`PoolNeeds::path_bytes`] and
//!   [`PoolNeeds::windows`]: less is in flight then. The last free mbufs are for retransmissions
//!   and control packets. The stack takes all others when it can, so give it a mempool that serves
//!   nothing else.
//! - The mempools of the receive queues hold the receive descriptors and the frames that the stack
//!   keeps for out-of-order data: [`PoolNeeds::in_flight`] for each queue. Few drivers of virtual
//!   devices report their mempools; with the others the stack cannot check this.
//! - The port's MTU is not below [`Config::mtu`], if the driver has one.
//! - These offloads are off: MBUF_FAST_FREE (the stack keeps sent frames until they are
//!   acknowledged), TCP_LRO and BUFFER_SPLIT. Leave VLAN_STRIP off as well: with it a context
//!   without [`Config::vlan`] would take frames of any VLAN for its own.
//!
//! If the program has configured the offload of TCP checksums, the port computes them, and likewise
//! for IPv4 headers. Otherwise the stack computes them. With TCP_TSO and MULTI_SEGS, and
//! [`Config::tso`] on, the segments of a message are one frame of up to 16 mbufs. The stack reads
//! RSS key and redirection table from the port. If the table has queues that are not lent, nobody
//! knows which of the shards a flow reaches, and frames are passed on between them.
//!
//! **Steering is the program's part.** A port has one MAC address, which its contexts share, and
//! RSS has no notion of contexts. So flow rules on IP addresses or TCP ports must bring a context's
//! packets to its queues. This includes ARP and neighbor discovery: a context answers only requests
//! that it receives.
//!
//! - Contexts on one port reach each other, with the same address or different ones. Their frames
//!   stay in memory. Contexts with the same address need different [`Config::source_ports`], also
//!   for the flow rules. Poll all of them: each passes on the segments that it cannot match, and a
//!   connect to a context that nobody polls times out.
//! - Over `net_ring` and memif and `net_virtio_user` queue `i` receives from the peer's queue `i`,
//!   so each context needs a peer there.
//! - For IPv6 the port must receive multicast (`rte_eth_allmulticast_enable` or promiscuous mode).
//! - Over `net_tap` the stack uses another MAC address than the port's, which belongs to the
//!   kernel's end.
//! - Ports of `net_vhost` cannot be lent.
//!
//! **Threads.** A thread of the program that drives or waits is registered with EAL until it ends
//! (`rte_thread_register`), unless it is an lcore. Six threads are registered; others work without
//! mempool caches. Threads keep mbufs in their caches, as any lcore does: `rte_mempool_avail_count`
//! counts them as free.
//!
//! **Rules for the program.** Memory safety depends on them.
//!
//! - While the context is open, do not use the queues, stop or reconfigure the port, or free the
//!   mempools.
//! - With memif leave DPDK's log stream and log levels alone: the driver's log shows when it unmaps
//!   memory.
//! - Open and close contexts while you make no other control calls of ethdev.
//! - Close the context ([`Context::close`]) and end the threads that have used it before you close
//!   the port, free the mempools or call `rte_eal_cleanup`.
//! - Each context may hold mbufs of the others on its port, also without a connection to them.
//!   Close all of them before you free any of their mempools. The mempools must allow several
//!   producers, as those of `rte_pktmbuf_pool_create` do.
//! - When the context is closed, frames that the port has not sent yet are still in its transmit
//!   queue. They return to your mempool in time.

#[allow(unused_imports, reason = "as above")]
use crate::device::{DeviceSpec, HostPort, PoolNeeds};
#[allow(unused_imports, reason = "for the links of the documentation")]
use crate::*;
