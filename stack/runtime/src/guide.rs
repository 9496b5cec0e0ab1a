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
//!     let sg_list = SgList::from_iter([region.sge(128 * wr_id, 128)]);
//!     srq.post_recv(RecvWr { wr_id: wr_id as u64, sg_list })?;
//! }
//! # Ok(())
//! # }
//! ```
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
//! param.private_data.extend(*b"who are you?");
//! qp_l.connect("198.18.0.2:4791".parse()?, param)?;
//!
//! let request = listener.accept_timeout(timeout).ok_or("no request")?;
//! assert_eq!(request.offer().private_data.as_slice(), b"who are you?");
//! let mut param = ConnParam::default();
//! param.private_data.extend(*b"the right one");
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
//!     let payload = Payload::Gather(SgList::from_iter([source.sge(0, 5)]));
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
//! poll until it is empty, arm, poll once more, then wait. The channel's descriptor (`AsFd`)
//! becomes readable, for `poll(2)`, `epoll` or the reactor of an asynchronous runtime, which then
//! calls [`CompChannel::next_event`] until there is none. [`EventChannel`] does the same for
//! everything else. Somebody has to drive while the application sleeps: a helper
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

#[allow(unused_imports, reason = "as above")]
use crate::device::DeviceSpec;
#[allow(unused_imports, reason = "for the links of the documentation")]
use crate::*;
