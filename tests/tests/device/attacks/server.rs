//! The application under test: accepts every connection, echoes received messages, and provides a
//! region for Reads.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrowarp::{
    Access, Config, ConnParam, ConnRequest, Context, Cq, Listener, Mr, Qp, QpOptions, QpState, Sge,
    Wc, WcOpcode, WcStatus,
};
use ferrowarp_tests::pattern;
use ferrowarp_tests::peer::{Peer, Segmentation, Startup, opcode};
use ferrowarp_tests::stack::{STACK, Stack, post_recv, post_send};

/// The listener's port.
pub(crate) const PORT: u16 = 4791;
/// Backlog of pending connection requests: as many as the programs allow.
const BACKLOG: usize = 64;
/// Maximum concurrent clients.
const SLOTS: usize = 2048;
/// Bytes of a client's buffer.
const SLOT_LEN: u32 = 4096;
/// Bytes of the region that clients read.
pub(crate) const SHARED_LEN: usize = 96 << 10;
/// Salts of the patterns: of the region, and of the clients' messages.
const SHARED: u64 = 7;
const SENT: u64 = 9;
/// Timeout of each step of a client.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// State of the server, used on one thread.
struct Server {
    stack: Stack,
    listener: Listener,
    cq: Cq,
    recv_mr: Mr,
    /// Private data of each reply: STag and address of the region.
    private_data: Vec<u8>,
    qps: Vec<Option<Qp>>,
    free: Vec<usize>,
}

/// A running server.
pub(crate) struct Running {
    /// The stack's context.
    pub(crate) context: Context,
    /// STag and address of the readable region.
    pub(crate) shared: (u32, u64),
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Opens the stack on `interface` and serves.
    pub(crate) fn new(interface: &str, change: impl FnOnce(&mut Config)) -> Self {
        let stack = Stack::on_tap_with(interface, change);
        let listener = stack.context.listen(PORT, BACKLOG).expect("the port is free");
        let cq = stack.context.create_cq(4 * SLOTS).expect("within the limits");
        let recv_mr = stack.alloc_mr(SLOTS * SLOT_LEN as usize, Access::LOCAL_WRITE);
        let region = stack.alloc_mr(SHARED_LEN, Access::REMOTE_READ);
        region.write(0, &pattern(SHARED, SHARED_LEN));
        let shared = (region.rkey(), region.addr());
        let private_data = [&shared.0.to_be_bytes()[..], &shared.1.to_be_bytes()].concat();
        let context = stack.context.clone();
        let qps = (0..SLOTS).map(|_| None).collect();
        let free = (0..SLOTS).rev().collect();
        let server = Server { stack, listener, cq, recv_mr, private_data, qps, free };
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let _region = region;
            server.run(&until);
        });
        Self { context, shared, stop, thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the server failed");
    }
}

impl Server {
    fn run(mut self, stop: &AtomicBool) {
        let mut swept = Instant::now();
        let mut wcs = [Wc::default(); 32];
        while !stop.load(Ordering::Relaxed) {
            let mut busy = false;
            while let Some(request) = self.listener.poll() {
                busy = true;
                self.accept(request);
            }
            let found = self.cq.poll(&mut wcs);
            busy |= !found.is_empty();
            for wc in found {
                self.complete(wc);
            }
            if swept.elapsed() > Duration::from_millis(50) {
                swept = Instant::now();
                self.drop_ended_qps();
            }
            if !busy {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn accept(&mut self, request: ConnRequest) {
        // Without a slot the request is dropped, and so rejected.
        let Some(slot) = self.free.pop() else { return };
        let options = QpOptions::new(&self.cq).max_send_wr(2).max_recv_wr(1);
        let qp = self.stack.pd.create_qp(&options).expect("a queue pair");
        post_recv(&qp, slot as u64, self.buffer(slot, SLOT_LEN));
        let private_data = self.private_data.as_slice().try_into().unwrap();
        let mut param = ConnParam::default();
        param.private_data = private_data;
        match request.accept(&qp, param) {
            Ok(()) => self.qps[slot] = Some(qp),
            // The peer has disconnected meanwhile.
            Err(_) => self.free.push(slot),
        }
    }

    /// Returns `len` bytes of the buffer of a slot.
    fn buffer(&self, slot: usize, len: u32) -> Sge {
        self.recv_mr.sge(slot * SLOT_LEN as usize, len)
    }

    fn complete(&self, wc: &ferrowarp::Wc) {
        let slot = usize::try_from(wc.wr_id).expect("a slot");
        let Some(qp) = self.qps[slot].as_ref().filter(|qp| qp.id() == wc.qp) else { return };
        if wc.status != WcStatus::Success {
            return;
        }
        // The connection may have ended meanwhile: then they are flushed.
        if wc.opcode == WcOpcode::Recv {
            post_send(qp, wc.wr_id, self.buffer(slot, wc.byte_len));
        } else {
            post_recv(qp, wc.wr_id, self.buffer(slot, SLOT_LEN));
        }
    }

    /// Destroys queue pairs whose connection has ended.
    fn drop_ended_qps(&mut self) {
        for (slot, qp) in self.qps.iter_mut().enumerate() {
            if qp.as_ref().is_some_and(|qp| qp.state() == QpState::Error) {
                *qp = None;
                self.free.push(slot);
            }
        }
    }
}

/// A client on a kernel socket: connects, has a message echoed, and reads the region. Returns the
/// time it took.
pub(crate) fn client() -> std::io::Result<Duration> {
    let began = Instant::now();
    let to = (STACK, PORT).into();
    let stream = TcpStream::connect_timeout(&to, CLIENT_TIMEOUT)?;
    let (mut peer, reply) = Peer::initiate(stream, &Startup::default())?;
    let (stag, addr) = reply.application_data().split_at(4);
    let stag = u32::from_be_bytes(stag.try_into().expect("four bytes"));
    let addr = u64::from_be_bytes(addr.try_into().expect("eight bytes"));
    peer.memory = vec![0; SHARED_LEN];
    // FPDUs that end within segments have to be reassembled.
    peer.set_segmentation(Segmentation::FixedSize(1000));
    let message = pattern(SENT, 3000);
    peer.send(opcode::SEND, 0, &message)?;
    peer.serve_until(|peer| !peer.sends.is_empty())?;
    assert!(peer.sends[0].bytes == message, "what came back is what was sent");
    peer.read(stag, addr, u32::try_from(SHARED_LEN).expect("small"), 0)?;
    peer.serve_until(|peer| peer.responses == 1)?;
    assert!(peer.memory == pattern(SHARED, SHARED_LEN), "what was read is what is there");
    Ok(began.elapsed())
}
