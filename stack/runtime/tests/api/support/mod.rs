//! Two connected contexts in one process, and the calls on them that many tests need.

pub(crate) mod heap_port;
pub(crate) mod host_program;
mod reserve;
pub(crate) mod rx_hook;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ferrowarp::device::DeviceSpec;
use ferrowarp::{
    Access, Config, ConnEvent, ConnInfo, ConnParam, Context, Cq, DriveMode, Mr, OpenError, Pd,
    PostError, Qp, QpOptions, Region, RemoteAddr, SendRequest, Sge, Wc, WcStatus,
};
pub(crate) use reserve::{is_isolated, isolate, reserve_pair};

/// Longer than any single step of a test takes on a busy machine; a test that waits for it fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const PORT: u16 = 4791;

pub(crate) fn address(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, host))
}

/// Configuration of an end; a dedicated thread has a core of its own, if there are two.
pub(crate) fn config(host: u8, drive: DriveMode) -> Config {
    let mut config = Config::new(DeviceSpec::Ring, address(host), 24);
    config.drive = drive;
    if drive == DriveMode::Dedicated {
        config.cores = vec![usize::from(host - 1)];
    }
    config
}

/// Address on which the right end listens.
pub(crate) fn server() -> SocketAddr {
    SocketAddr::new(address(2), PORT)
}

pub(crate) fn contexts(drive: DriveMode) -> (Context, Context) {
    contexts_driven(drive, drive)
}

pub(crate) fn contexts_driven(left: DriveMode, right: DriveMode) -> (Context, Context) {
    ring_pair(config(1, left), config(2, right)).unwrap()
}

/// Opens two contexts over a pair of rings, once this test may open ports.
pub(crate) fn ring_pair(left: Config, right: Config) -> Result<(Context, Context), OpenError> {
    reserve_pair([left.drive, right.drive]);
    Context::ring_pair(left, right)
}

/// One end: a context with a protection domain and a completion queue for its queue pairs.
pub(crate) struct Endpoint {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
}

impl Endpoint {
    pub(crate) fn new(context: Context) -> Self {
        let (pd, cq) = (context.alloc_pd(), context.create_cq(4096).unwrap());
        Self { context, pd, cq }
    }

    pub(crate) fn qp(&self) -> Qp {
        self.qp_with(128, 128)
    }

    pub(crate) fn qp_with(&self, max_send_wr: usize, max_recv_wr: usize) -> Qp {
        let options = QpOptions::new(&self.cq).max_send_wr(max_send_wr).max_recv_wr(max_recv_wr);
        self.pd.create_qp(&options).unwrap()
    }

    pub(crate) fn mr(&self, len: usize, access: Access) -> Mr {
        self.pd.register(self.context.allocate(len).unwrap(), access).unwrap()
    }

    /// Polls until `count` completions have been read, driving `other` as well.
    pub(crate) fn completions(&self, other: &Self, count: usize) -> Vec<Wc> {
        let mut found = Vec::with_capacity(count);
        drive_until(&self.context, &other.context, || {
            self.cq.poll_with(count - found.len(), |wc| found.push(wc));
            found.len() == count
        });
        found
    }
}

pub(crate) fn endpoints(drive: DriveMode) -> (Endpoint, Endpoint) {
    endpoints_driven(drive, drive)
}

pub(crate) fn endpoints_driven(left: DriveMode, right: DriveMode) -> (Endpoint, Endpoint) {
    let (left, right) = contexts_driven(left, right);
    (Endpoint::new(left), Endpoint::new(right))
}

/// Polls a queue once, for a test that expects few completions.
pub(crate) fn poll_once(cq: &Cq) -> Vec<Wc> {
    let mut wcs = [Wc::default(); 64];
    cq.poll(&mut wcs).to_vec()
}

/// Drives both contexts until `done` returns true.
pub(crate) fn drive_until(left: &Context, right: &Context, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        left.drive();
        right.drive();
        assert!(start.elapsed() < TIMEOUT, "no progress: {:?}", left.counters());
    }
}

/// Drives both contexts for at least `time`, and often enough to exchange several frames each way
/// however little of that time this thread gets on a busy machine.
pub(crate) fn drive_for(left: &Context, right: &Context, time: Duration) {
    const POLLS_MIN: u32 = 200;
    let (start, mut polls) = (Instant::now(), 0);
    drive_until(left, right, || {
        polls += 1;
        polls > POLLS_MIN && start.elapsed() > time
    });
}

pub(crate) fn param(private_data: &[u8]) -> ConnParam {
    ConnParam::new().private_data(private_data).unwrap()
}

/// Connects new queue pairs of `left` and `right`; listens on [`PORT`] meanwhile.
pub(crate) fn connect(left: &Endpoint, right: &Endpoint) -> (Qp, Qp) {
    connect_qps(right, left.qp(), right.qp()).0
}

pub(crate) fn connect_qps(right: &Endpoint, a: Qp, b: Qp) -> ((Qp, Qp), (ConnInfo, ConnInfo)) {
    let listener = right.context.listen(PORT, 4).unwrap();
    a.connect(server(), param(b"from the left")).unwrap();
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    assert_eq!(request.offer().private_data.as_slice(), b"from the left");
    request.accept(&b, param(b"from the right")).unwrap();
    let agreed_a = a.wait_established(TIMEOUT).unwrap();
    let agreed_b = b.wait_established(TIMEOUT).unwrap();
    ((a, b), (agreed_a, agreed_b))
}

/// Waits for the next event of a queue pair.
pub(crate) fn expect_event(qp: &Qp) -> ConnEvent {
    qp.wait_event(TIMEOUT).expect("an event")
}

/// Posts a signaled Send of a few bytes alone.
pub(crate) fn send(qp: &Qp, wr_id: u64, message: &[u8]) -> Result<(), PostError> {
    one(qp.post().send_inline(message).wr_id(wr_id).signaled())
}

/// Posts a signaled RDMA Write alone.
pub(crate) fn write(
    qp: &Qp,
    wr_id: u64,
    source: Sge,
    sink: &Mr,
    offset: u64,
) -> Result<(), PostError> {
    one(qp.post().write(source, sink.remote().at(offset)).wr_id(wr_id).signaled())
}

/// Posts a signaled RDMA Read alone.
pub(crate) fn read(
    qp: &Qp,
    wr_id: u64,
    sink: Sge,
    source: &Mr,
    offset: u64,
) -> Result<(), PostError> {
    one(qp.post().read(sink, source.remote().at(offset)).wr_id(wr_id).signaled())
}

/// Posts a signaled RDMA Write of nothing alone.
pub(crate) fn empty_write(qp: &Qp, wr_id: u64) -> Result<(), PostError> {
    one(qp.post().write_inline(b"", RemoteAddr::default()).wr_id(wr_id).signaled())
}

/// Posts a request alone.
pub(crate) fn one(request: SendRequest<'_, '_>) -> Result<(), PostError> {
    request.ring().map_err(|refused| refused.error)
}

/// Bytes that differ by offset and by seed.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8)).to_le_bytes()[0] ^ seed).collect()
}

pub(crate) fn contents(mr: &Region) -> Vec<u8> {
    let mut bytes = vec![0; mr.len()];
    mr.read(0, &mut bytes);
    bytes
}

/// Number and status of each completion.
pub(crate) fn outcomes<'a>(wcs: impl IntoIterator<Item = &'a Wc>) -> Vec<(u64, WcStatus)> {
    wcs.into_iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// These requests, each with the same status.
pub(crate) fn all(wr_ids: impl IntoIterator<Item = u64>, status: WcStatus) -> Vec<(u64, WcStatus)> {
    wr_ids.into_iter().map(|wr_id| (wr_id, status)).collect()
}
