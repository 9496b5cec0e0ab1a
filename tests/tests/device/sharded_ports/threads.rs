//! Threads of the application that drive one shard each, over `tap`.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use ferrowarp::{
    Access, ConnRequest, CqOptions, DriveMode, Mr, Qp, QpOptions, QpState, Sge, Wc, WcOpcode,
};
use ferrowarp_tests::test_name;

use super::*;
use crate::tap::ready;

const SHARDS: usize = 2;
const PORT: u16 = 4791;
/// Kernel sockets that connect.
const CLIENTS: usize = 12;
/// Connections that each thread opens.
const OPENED: u16 = 4;
const MESSAGES: usize = 20;
const MESSAGE_LEN: u32 = 3000;
/// Bit in the numbers of echoes; receives are without it.
const ECHO: u64 = 1 << 32;
/// Number of the first message of a connection that is opened.
const FIRST: u64 = u64::MAX;

#[test]
fn threads_drive_one_shard_each_inline() {
    threads(test_name!(), DriveMode::Inline);
}

#[test]
fn threads_poll_one_shard_each_with_helpers() {
    threads(test_name!(), DriveMode::Helper);
}

fn threads(name: &str, drive: DriveMode) {
    if !ready(name) {
        return;
    }
    let stack = &Stack::on_tap_with("fw0", |config| {
        config.shards = SHARDS;
        config.drive = drive;
    });
    let listener = &stack.context.listen(PORT, 64).unwrap();
    let ports = (0..SHARDS).flat_map(|shard| (0..OPENED).map(move |number| port(shard, number)));
    let listeners: Vec<_> = ports.map(|port| TcpListener::bind((KERNEL, port)).unwrap()).collect();
    let (requests, for_shard): (Vec<_>, Vec<_>) = (0..SHARDS).map(|_| channel()).unzip();
    let is_over = &AtomicBool::new(false);
    let served = std::thread::scope(|scope| {
        let servers: Vec<_> = for_shard
            .into_iter()
            .enumerate()
            .map(|(shard, own)| {
                let others = requests.clone();
                scope.spawn(move || {
                    let mut server = Server::new(stack, shard);
                    server.connect();
                    while !is_over.load(Ordering::Relaxed) {
                        server.turn(listener, &others, &own);
                    }
                    server.echoed
                })
            })
            .collect();
        // Also after a failure: the servers have to stop.
        let over = SetOnDrop(is_over);
        let clients = (0..CLIENTS).map(|number| scope.spawn(move || client(number as u64)));
        let opened = listeners.iter().map(|listener| scope.spawn(move || opened(listener)));
        let peers: Vec<_> = clients.chain(opened).collect();
        let results: Vec<_> = peers.into_iter().map(|peer| peer.join()).collect();
        drop(over);
        let echoed: Vec<_> = servers.into_iter().map(|server| server.join().unwrap()).collect();
        assert!(results.iter().all(Result::is_ok));
        echoed
    });
    println!("echoed by each shard: {served:?}");
    assert!(served.iter().all(|&count| count >= usize::from(OPENED) * MESSAGES), "{served:?}");
    assert_eq!(served.iter().sum::<usize>(), (CLIENTS + SHARDS * usize::from(OPENED)) * MESSAGES);
    assert_none_reset();
}

/// The peer's side of a connection: messages, and their echoes.
fn talk(mut peer: Peer, salt: u64) {
    for number in 0..MESSAGES {
        let message = pattern(salt << 8 | number as u64, MESSAGE_LEN as usize);
        peer.send(opcode::SEND, 0, &message).unwrap();
        peer.serve_until(|peer| peer.sends.len() == number + 1).unwrap();
        assert!(peer.sends[number].bytes == message, "echo {number} of {salt}");
    }
    peer.shutdown_write().unwrap();
    while peer.serve_one().unwrap() {}
}

/// A kernel socket that connects.
fn client(salt: u64) {
    let stream = TcpStream::connect((STACK, PORT)).unwrap();
    talk(Peer::initiate(stream, &Startup::default()).unwrap().0, salt);
}

fn port(shard: usize, number: u16) -> u16 {
    5000 + u16::try_from(shard).unwrap() * OPENED + number
}

/// A kernel socket to which a server connects.
fn opened(listener: &TcpListener) {
    let stream = listener.accept().unwrap().0;
    let mut peer = Peer::respond(stream, &Startup::default()).unwrap().0;
    // The initiator sends first.
    peer.serve_until(|peer| peer.sends.len() == 1).unwrap();
    peer.sends.clear();
    talk(peer, u64::from(listener.local_addr().unwrap().port()));
}

/// The application's part on one shard: all queues are of that one.
struct Server<'a> {
    stack: &'a Stack,
    shard: usize,
    cq: ferrowarp::Cq,
    connections: Vec<(Qp, Mr)>,
    echoed: usize,
}

impl<'a> Server<'a> {
    fn new(stack: &'a Stack, shard: usize) -> Self {
        let cq = stack.context.create_cq_with(&CqOptions::new(256).shard(shard)).unwrap();
        Self { stack, shard, cq, connections: Vec::new(), echoed: 0 }
    }

    /// A queue pair that waits for a message.
    fn create_qp(&mut self) -> &Qp {
        let options = QpOptions::new(&self.cq).max_send_wr(4).max_recv_wr(2);
        let qp = self.stack.pd.create_qp(&options).unwrap();
        assert_eq!(qp.shard(), Some(self.shard), "that of its completion queue");
        let mr = self.stack.alloc_mr(2 * MESSAGE_LEN as usize, Access::LOCAL_WRITE);
        let first = 2 * self.connections.len() as u64;
        for slot in [first, first + 1] {
            post_recv(&qp, slot, buffer(&mr, slot, MESSAGE_LEN));
        }
        self.connections.push((qp, mr));
        &self.connections[self.connections.len() - 1].0
    }

    /// Opens connections, and sends the first message of each.
    fn connect(&mut self) {
        for number in 0..OPENED {
            let remote = SocketAddr::from((KERNEL, port(self.shard, number)));
            let qp = self.create_qp();
            qp.connect(remote, ConnParam::default()).unwrap();
            qp.wait_established(TIMEOUT).unwrap();
            let at = self.connections.len() - 1;
            let (qp, mr) = &self.connections[at];
            post_send(qp, FIRST, mr.sge(0, 1));
        }
    }

    /// Drives the shard, hands requests to the thread of their shard, and echoes messages.
    fn turn(
        &mut self,
        listener: &Listener,
        others: &[Sender<ConnRequest>],
        own: &Receiver<ConnRequest>,
    ) {
        let handle = self.stack.context.shard(self.shard).unwrap();
        let mut is_busy = handle.drive();
        if let Some(request) = listener.next_request() {
            others[request.shard()].send(request).unwrap();
        }
        while let Ok(request) = own.try_recv() {
            assert_eq!(request.shard(), self.shard);
            request.accept(self.create_qp(), ConnParam::default()).unwrap();
        }
        let mut wcs = [Wc::default(); 32];
        let found = self.cq.poll(&mut wcs);
        is_busy |= !found.is_empty();
        for wc in found {
            self.complete(wc);
        }
        if !is_busy {
            std::thread::yield_now();
        }
    }

    fn complete(&mut self, wc: &Wc) {
        // Completions of a failed connection, and of the first message, are of no interest.
        let slot = wc.wr_id & !ECHO;
        let at = usize::try_from(slot / 2).unwrap();
        let Some((qp, mr)) = self.connections.get(at).filter(|(qp, _)| qp.id() == wc.qp) else {
            return;
        };
        if wc.status != WcStatus::Success {
            assert_eq!(qp.state(), QpState::Error, "{wc:?}");
        } else if wc.opcode == WcOpcode::Recv {
            post_send(qp, slot | ECHO, buffer(mr, slot, wc.byte_len));
            self.echoed += 1;
        } else {
            // Flushed if the peer has closed after its last message.
            post_recv(qp, slot, buffer(mr, slot, MESSAGE_LEN));
        }
    }
}

/// Returns `len` bytes of the buffer of a receive: each connection has two.
fn buffer(mr: &Mr, slot: u64, len: u32) -> Sge {
    mr.sge(usize::from(slot % 2 == 1) * MESSAGE_LEN as usize, len)
}
