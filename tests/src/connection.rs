//! A connection between the stack and the reference peer, and transfers over it.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use ferrowarp::{
    Access, ConnEvent, ConnParam, EndReason, Listener, Mr, Qp, QpState, Wc, WcOpcode, WcStatus,
};

use crate::pattern;
use crate::peer::{PEER_STAG, Peer, Startup, opcode};
use crate::stack::{
    KERNEL, STACK, Stack, TIMEOUT, gather, post_read, post_recv, post_send, post_write,
};

/// Length of each memory region of a connection, in bytes.
pub const MEMORY_LEN: usize = 300_000;

/// Both ends of a connection, with the memory regions of the stack's end.
pub struct TestConnection<'a> {
    stack: &'a Stack,
    /// The stack's queue pair.
    pub qp: Qp,
    /// Region that the peer may read and write.
    pub shared_mr: Mr,
    /// Region of the receive buffers.
    pub recv_mr: Mr,
    /// The reference peer.
    pub peer: Peer,
}

impl<'a> TestConnection<'a> {
    /// Creates a connection of `qp` and `peer`, both in full operation.
    ///
    /// # Panics
    /// If memory cannot be registered.
    #[must_use]
    pub fn new(stack: &'a Stack, qp: Qp, mut peer: Peer) -> Self {
        peer.memory = vec![0; MEMORY_LEN];
        let shared_mr = stack.alloc_mr(MEMORY_LEN, Access::ALL);
        let recv_mr = stack.alloc_mr(MEMORY_LEN, Access::LOCAL_WRITE);
        Self { stack, qp, shared_mr, recv_mr, peer }
    }

    /// Sets up a connection that the stack accepts.
    ///
    /// # Panics
    /// If the set-up fails.
    #[must_use]
    pub fn accepted(
        stack: &'a Stack,
        listener: &Listener,
        param: &ConnParam,
        startup: &Startup,
    ) -> Self {
        Self::accepted_at(stack, [STACK.into(), KERNEL.into()], listener, param, startup)
    }

    /// Sets up a connection that the stack accepts, between these addresses of stack and kernel.
    ///
    /// # Panics
    /// If the set-up fails.
    #[must_use]
    pub fn accepted_at(
        stack: &'a Stack,
        [ours, theirs]: [IpAddr; 2],
        listener: &Listener,
        param: &ConnParam,
        startup: &Startup,
    ) -> Self {
        let (qp, port, startup) = (stack.create_qp(), listener.port(), startup.clone());
        let thread = std::thread::spawn(move || {
            Peer::initiate(TcpStream::connect((ours, port)).expect("works"), &startup)
                .expect("works")
        });
        let request = listener.accept_timeout(TIMEOUT).expect("a request");
        assert_eq!(request.offer().peer.ip(), theirs);
        request.accept(&qp, param.clone()).expect("works");
        let info = qp.wait_established(TIMEOUT).expect("works");
        let (mut peer, _) = thread.join().expect("works");
        assert_eq!(info.crc, peer.crc());
        assert_eq!((info.markers_out, info.markers_in), peer.markers());
        peer.rdmac = info.revision == 0;
        Self::new(stack, qp, peer)
    }

    /// Sets up a connection from the stack to `port` of the kernel.
    ///
    /// # Panics
    /// If the set-up fails.
    #[must_use]
    pub fn connected(stack: &'a Stack, port: u16, param: &ConnParam, startup: &Startup) -> Self {
        Self::connected_to(stack, (KERNEL, port).into(), param, startup)
    }

    /// Sets up a connection from the stack to the socket address `remote` of the kernel.
    ///
    /// # Panics
    /// If the set-up fails.
    #[must_use]
    pub fn connected_to(
        stack: &'a Stack,
        remote: SocketAddr,
        param: &ConnParam,
        startup: &Startup,
    ) -> Self {
        let listener = TcpListener::bind(remote).expect("works");
        let startup = startup.clone();
        let thread = std::thread::spawn(move || {
            Peer::respond(listener.accept().expect("works").0, &startup).expect("works")
        });
        let qp = stack.create_qp();
        qp.connect(remote, param.clone()).expect("works");
        let info = qp.wait_established(TIMEOUT).expect("works");
        let (mut peer, _) = thread.join().expect("works");
        assert_eq!(info.crc, peer.crc());
        assert_eq!((info.markers_out, info.markers_in), peer.markers());
        peer.rdmac = info.revision == 0;
        Self::new(stack, qp, peer)
    }

    /// Returns the next completion, which must succeed; otherwise panics with the events of the
    /// queue pair.
    fn expect_success(&self) -> Wc {
        let wc = self.stack.completions(1)[0];
        let events = || std::iter::from_fn(|| self.qp.next_event()).collect::<Vec<_>>();
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}, {:?}", events());
        wc
    }

    /// Checks a Write, a Send and a Read of `len` bytes by the peer.
    ///
    /// # Panics
    /// If a byte is wrong.
    pub fn check_peer_transfers(&mut self, len: usize) {
        let bytes = pattern(1, len);
        let count = u32::try_from(len).expect("a short message");
        self.shared_mr.fill(0, MEMORY_LEN, 0);
        post_recv(&self.qp, 11, self.recv_mr.sge(3, count.max(1)));
        self.peer.write(self.shared_mr.rkey(), self.shared_mr.addr() + 5, &bytes).expect("works");
        self.peer.send(opcode::SEND_SOLICITED, 0, &bytes).expect("works");
        let wc = self.expect_success();
        assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (11, WcOpcode::Recv, count));
        assert!(wc.solicited && wc.invalidated().is_none());
        let mut found = vec![0xEE; len];
        self.recv_mr.read(3, &mut found);
        assert!(found == bytes, "{len} bytes sent");
        self.shared_mr.read(5, &mut found);
        assert!(found == bytes, "{len} bytes written");
        let mut around = vec![0; MEMORY_LEN];
        self.shared_mr.read(0, &mut around);
        assert!(around[..5].iter().chain(&around[5 + len..]).all(|byte| *byte == 0));

        let responses = self.peer.responses;
        self.peer.memory.fill(0);
        self.peer.read(self.shared_mr.rkey(), self.shared_mr.addr() + 5, count, 9).expect("works");
        self.peer.serve_until(|peer| peer.responses == responses + 1).expect("works");
        assert!(self.peer.memory[9..9 + len] == bytes, "{len} bytes read by the peer");
    }

    /// Checks a Write, a Send and a Read of `len` bytes by the stack.
    ///
    /// # Panics
    /// If a byte is wrong.
    pub fn check_stack_transfers(&mut self, len: usize) {
        let bytes = pattern(2, len);
        let count = u32::try_from(len).expect("a short message");
        self.shared_mr.write(1, &bytes);
        let sends = self.peer.sends.len();
        post_write(&self.qp, 21, self.shared_mr.sge(1, count), PEER_STAG, 13);
        post_send(&self.qp, 22, gather(self.shared_mr.sge(1, count)));
        self.peer.serve_until(|peer| peer.sends.len() == sends + 1).expect("works");
        assert!(self.peer.sends[sends].bytes == bytes, "{len} bytes sent");
        assert!(self.peer.memory[13..13 + len] == bytes, "{len} bytes written");
        let wcs = self.stack.completions(2);
        let completed: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
        let success = WcStatus::Success;
        assert_eq!(completed, [(21, success, WcOpcode::Write), (22, success, WcOpcode::Send)]);

        let reads_served = self.peer.reads_served;
        self.shared_mr.fill(0, MEMORY_LEN, 0);
        post_read(&self.qp, 23, self.shared_mr.sge(2, count), PEER_STAG, 13);
        self.peer.serve_until(|peer| peer.reads_served == reads_served + 1).expect("works");
        let wc = self.expect_success();
        assert_eq!((wc.wr_id, wc.opcode), (23, WcOpcode::Read));
        let mut found = vec![0; len];
        self.shared_mr.read(2, &mut found);
        assert!(found == bytes, "{len} bytes read by the stack");
    }

    /// Closes gracefully from the stack: the peer receives only a FIN.
    ///
    /// # Panics
    /// If the connection ends in another way.
    pub fn close_from_stack(mut self) {
        self.qp.disconnect().expect("works");
        while self.peer.serve_one().expect("works") {}
        assert!(self.peer.terminate.is_none());
        self.peer.shutdown_write().expect("works");
        self.expect_disconnected(EndReason::Local);
    }

    /// Closes gracefully from the peer: a posted receive is flushed, once.
    ///
    /// # Panics
    /// If the connection ends in another way.
    pub fn close_from_peer(mut self) {
        post_recv(&self.qp, 31, self.recv_mr.sge(0, 10));
        self.peer.shutdown_write().expect("works");
        self.expect_disconnected(EndReason::PeerClosed);
        let wc = self.stack.completions(1)[0];
        assert_eq!((wc.wr_id, wc.status), (31, WcStatus::Flushed));
        while self.peer.serve_one().expect("works") {}
        assert!(self.peer.terminate.is_none());
    }

    fn expect_disconnected(&self, expected: EndReason) {
        match self.qp.wait_event(TIMEOUT) {
            Some(ConnEvent::Disconnected { reason, .. }) => assert_eq!(reason, expected),
            other => panic!("{other:?} instead of {expected:?}"),
        }
        assert_eq!(self.qp.state(), QpState::Error);
    }
}
