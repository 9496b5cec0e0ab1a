//! A small iWARP peer on a kernel TCP socket, written from the specifications alone.
//!
//! It shares no code with the stack and has its own encoding and decoding, so that it checks both
//! roles independently. It is strict about received data (CRC, padding, versions, reserved bits,
//! MSN and MO sequence, bounds), and can send arbitrary bytes.
//!
//! Source: RFC 5040, RFC 5041, RFC 5044, RFC 6581, RFC 7306.

mod header;
mod marked_fpdu;
mod startup_frame;

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub use header::{
    AtomicRequest, AtomicResponse, Header, ReadRequest, Terminate, opcode, toggle_versions,
};
use marked_fpdu::MarkedReader;
pub use marked_fpdu::marked_fpdu;
pub use startup_frame::{Role, Startup, StartupFrame};

/// STag of the peer's buffer.
pub const PEER_STAG: u32 = 0x00C0_FFEE;
/// Largest ULPDU of an FPDU (RFC 5044 section 5.1).
pub const ULPDU_LEN_MAX: usize = 64_768;
/// Timeout of each wait of the peer.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the error of a violation found by the peer.
pub(crate) fn invalid_data(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

/// Split of bytes into writes to the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmentation {
    /// One write per FPDU.
    PerFpdu,
    /// Writes of 1 to 40 bytes, drawn from this seed, with a pause after each: with `TCP_NODELAY`
    /// most become segments of their own.
    RandomSmall(u64),
    /// Writes of exactly this many bytes, regardless of FPDU boundaries.
    FixedSize(usize),
}

/// A peer in full operation, with one tagged buffer that the stack may read and write.
#[derive(Debug)]
pub struct Peer {
    stream: TcpStream,
    crc: bool,
    /// Bytes sent since full operation began, if the stack requires markers.
    tx_marker_pos: Option<u64>,
    /// Bytes received since full operation began, if this peer requires markers.
    rx_marker_pos: Option<u64>,
    segmentation: Segmentation,
    rng: SmallRng,
    /// Use the DDP and RDMAP versions of the RDMA Consortium, in both directions.
    pub rdmac: bool,
    /// Largest ULPDU that [`Peer::write`], [`Peer::send`] and Read Responses use.
    pub ulpdu_len_max: usize,
    /// The buffer behind [`PEER_STAG`]; tagged offsets start at 0.
    pub memory: Vec<u8>,
    /// Complete Sends and Immediate Data, in order.
    pub sends: Vec<Received>,
    /// Number of complete RDMA Writes.
    pub writes: usize,
    /// Number of complete Read Responses.
    pub responses: usize,
    /// Number of Read Requests served.
    pub reads_served: usize,
    /// Received Atomic Requests. They get no response.
    pub atomic_requests: Vec<AtomicRequest>,
    /// Received Atomic Responses.
    pub atomic_responses: Vec<AtomicResponse>,
    /// The received Terminate, if any.
    pub terminate: Option<Terminate>,
    /// Number of received FPDUs.
    pub fpdus: usize,
    /// Length of the largest received ULPDU.
    pub largest_ulpdu: usize,
    partial_send: Option<Received>,
    next_msn_out: [u32; 4],
    next_msn_in: [u32; 4],
    fin_received: bool,
}

/// A received Send or Immediate Data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// One of the four Sends, or of the two forms of Immediate Data ([`opcode`]).
    pub opcode: u8,
    /// STag to invalidate; 0 for the forms without.
    pub invalidate: u32,
    /// The message.
    pub bytes: Vec<u8>,
}

/// Builds an FPDU: length, `ulpdu`, padding to four bytes, CRC over all of it (RFC 5044 section 4).
///
/// # Panics
/// If `ulpdu` is longer than 65535 bytes.
#[must_use]
pub fn fpdu(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let len = u16::try_from(ulpdu.len()).expect("a ULPDU fits in its length field");
    let mut bytes = Vec::with_capacity(ulpdu.len() + 9);
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(ulpdu);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    // Without CRCs the field has any value; a wrong one reveals a receiver that checks it.
    let check = if crc { crc32c::crc32c(&bytes) } else { 0x0BAD_0BAD };
    bytes.extend_from_slice(&check.to_le_bytes());
    bytes
}

impl Peer {
    /// Sends the Request, waits for the Reply, and enters full operation.
    ///
    /// # Errors
    /// I/O errors; `ConnectionRefused` if the Reply rejects; `InvalidData` if it is malformed.
    pub fn initiate(stream: TcpStream, startup: &Startup) -> io::Result<(Self, StartupFrame)> {
        let mut peer = Self::new(stream)?;
        peer.write_raw(&startup.encode(Role::Initiator))?;
        let reply = StartupFrame::read(&mut peer.stream, Role::Responder)?;
        if reply.is_rejected() {
            let text = String::from_utf8_lossy(reply.application_data()).into_owned();
            return Err(io::Error::new(ErrorKind::ConnectionRefused, text));
        }
        peer.crc = startup.crc || reply.wants_crc();
        peer.rx_marker_pos = startup.markers.then_some(0);
        peer.tx_marker_pos = reply.wants_markers().then_some(0);
        Ok((peer, reply))
    }

    /// Waits for the Request, sends a Reply, and enters full operation.
    ///
    /// # Errors
    /// I/O errors; `InvalidData` if the Request is malformed.
    pub fn respond(stream: TcpStream, startup: &Startup) -> io::Result<(Self, StartupFrame)> {
        let mut peer = Self::new(stream)?;
        let request = StartupFrame::read(&mut peer.stream, Role::Initiator)?;
        let revision = startup.revision.min(request.revision);
        peer.write_raw(&Startup { revision, ..startup.clone() }.encode(Role::Responder))?;
        peer.crc = startup.crc || request.wants_crc();
        peer.rx_marker_pos = startup.markers.then_some(0);
        peer.tx_marker_pos = request.wants_markers().then_some(0);
        Ok((peer, request))
    }

    /// Creates a peer on `stream` without the MPA startup, for tests of the startup itself.
    ///
    /// # Errors
    /// If socket options cannot be set.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self {
            stream,
            crc: true,
            tx_marker_pos: None,
            rx_marker_pos: None,
            segmentation: Segmentation::PerFpdu,
            rng: SmallRng::seed_from_u64(0),
            rdmac: false,
            ulpdu_len_max: 1442,
            memory: Vec::new(),
            sends: Vec::new(),
            writes: 0,
            responses: 0,
            reads_served: 0,
            atomic_requests: Vec::new(),
            atomic_responses: Vec::new(),
            terminate: None,
            fpdus: 0,
            largest_ulpdu: 0,
            partial_send: None,
            next_msn_out: [1; 4],
            next_msn_in: [1; 4],
            fin_received: false,
        })
    }

    /// Sets how bytes are split into writes from here on.
    pub fn set_segmentation(&mut self, segmentation: Segmentation) {
        if let Segmentation::RandomSmall(seed) = segmentation {
            self.rng = SmallRng::seed_from_u64(seed);
        }
        self.segmentation = segmentation;
    }

    /// True if CRCs were negotiated.
    #[must_use]
    pub const fn crc(&self) -> bool {
        self.crc
    }

    /// Returns whether there are markers in the receive direction, and in the send direction.
    #[must_use]
    pub const fn markers(&self) -> (bool, bool) {
        (self.rx_marker_pos.is_some(), self.tx_marker_pos.is_some())
    }

    /// Writes raw bytes to the socket, split by the [`Segmentation`].
    ///
    /// # Errors
    /// I/O errors of the socket.
    pub fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = match self.segmentation {
                Segmentation::PerFpdu => rest.len(),
                Segmentation::RandomSmall(_) => self.rng.random_range(1..=40),
                Segmentation::FixedSize(len) => len.max(1),
            };
            let (chunk, after) = rest.split_at(len.min(rest.len()));
            self.stream.write_all(chunk)?;
            if matches!(self.segmentation, Segmentation::RandomSmall(_)) {
                std::thread::sleep(Duration::from_micros(30));
            }
            rest = after;
        }
        Ok(())
    }

    /// Sends one FPDU.
    ///
    /// # Errors
    /// I/O errors of the socket.
    pub fn send_ulpdu(&mut self, ulpdu: &[u8]) -> io::Result<()> {
        let mut ulpdu = ulpdu.to_vec();
        if self.rdmac {
            toggle_versions(&mut ulpdu);
        }
        let bytes = self.next_fpdu(&ulpdu);
        self.write_raw(&bytes)
    }

    /// Builds the next FPDU of the send direction, and counts it as sent for markers.
    pub fn next_fpdu(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        let Some(sent) = &mut self.tx_marker_pos else { return fpdu(ulpdu, self.crc) };
        let bytes = marked_fpdu(ulpdu, self.crc, *sent);
        *sent += bytes.len() as u64;
        bytes
    }

    /// Sends an RDMA Write of `bytes` to `stag` at `to`, in ULPDUs of at most `ulpdu_len_max`.
    ///
    /// # Errors
    /// I/O errors of the socket.
    pub fn write(&mut self, stag: u32, to: u64, bytes: &[u8]) -> io::Result<()> {
        self.send_tagged(opcode::WRITE, stag, to, bytes)
    }

    /// Sends a Send or Immediate Data of any form on queue 0.
    ///
    /// # Errors
    /// I/O errors of the socket.
    ///
    /// # Panics
    /// If the message is longer than 2^32-1 bytes.
    pub fn send(&mut self, opcode: u8, invalidate: u32, bytes: &[u8]) -> io::Result<()> {
        let msn = self.alloc_msn(0);
        let payload_len_max = self.ulpdu_len_max - header::UNTAGGED_LEN;
        let mut offset = 0;
        loop {
            let end = bytes.len().min(offset + payload_len_max);
            let mo = u32::try_from(offset).expect("a message has at most 2^32-1 bytes");
            let header =
                Header::Untagged { opcode, last: end == bytes.len(), invalidate, qn: 0, msn, mo };
            let ulpdu = header.encode(&bytes[offset..end]);
            self.send_ulpdu(&ulpdu)?;
            offset = end;
            if offset == bytes.len() {
                return Ok(());
            }
        }
    }

    /// Sends a Read Request for `len` bytes of `stag` at `to`; the Data Sink is the buffer at
    /// `sink_to`.
    ///
    /// # Errors
    /// I/O errors of the socket.
    pub fn read(&mut self, stag: u32, to: u64, len: u32, sink_to: u64) -> io::Result<()> {
        let request =
            ReadRequest { sink_stag: PEER_STAG, sink_to, len, source_stag: stag, source_to: to };
        let msn = self.alloc_msn(1);
        let header = Header::Untagged {
            opcode: opcode::READ_REQUEST,
            last: true,
            invalidate: 0,
            qn: 1,
            msn,
            mo: 0,
        };
        self.send_ulpdu(&header.encode(&request.encode()))
    }

    /// Sends a Terminate without terminated headers.
    ///
    /// # Errors
    /// I/O errors of the socket.
    pub fn send_terminate(&mut self, layer: u8, error_type: u8, code: u8) -> io::Result<()> {
        let msn = self.alloc_msn(2);
        let header = Header::Untagged {
            opcode: opcode::TERMINATE,
            last: true,
            invalidate: 0,
            qn: 2,
            msn,
            mo: 0,
        };
        self.send_ulpdu(&header.encode(&[layer << 4 | error_type, code, 0, 0]))
    }

    /// Reads until the stack closes: true if it did, by FIN or RST, within [`TIMEOUT`].
    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// Half-closes the connection: sends a FIN, and can still receive.
    ///
    /// # Errors
    /// I/O errors of the socket.
    pub fn shutdown_write(&mut self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)
    }

    /// True once the stack's FIN was received at an FPDU boundary.
    #[must_use]
    pub const fn has_received_fin(&self) -> bool {
        self.fin_received
    }

    /// Receives and serves FPDUs until `done` returns true.
    ///
    /// # Errors
    /// I/O errors, rule violations (`InvalidData`), `TimedOut` after [`TIMEOUT`], and
    /// `UnexpectedEof` if the stack closed first.
    pub fn serve_until(&mut self, mut done: impl FnMut(&Self) -> bool) -> io::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !done(self) {
            if self.fin_received {
                return Err(io::Error::new(
                    ErrorKind::UnexpectedEof,
                    "the peer closed the connection",
                ));
            }
            if Instant::now() > deadline {
                return Err(io::Error::new(ErrorKind::TimedOut, "timed out"));
            }
            self.serve_one()?;
        }
        Ok(())
    }

    /// Receives and serves one FPDU; `false` once the stack has closed.
    ///
    /// # Errors
    /// I/O errors and rule violations (`InvalidData`).
    pub fn serve_one(&mut self) -> io::Result<bool> {
        let Some(mut ulpdu) = self.recv_ulpdu()? else {
            self.fin_received = true;
            return Ok(false);
        };
        if self.rdmac {
            toggle_versions(&mut ulpdu);
        }
        if self.terminate.is_some() {
            return Err(invalid_data("an FPDU after a Terminate"));
        }
        self.fpdus += 1;
        self.largest_ulpdu = self.largest_ulpdu.max(ulpdu.len());
        let (header, payload) = Header::decode(&ulpdu)?;
        match header {
            Header::Tagged { opcode, last, stag, to } => {
                self.place(stag, to, payload)?;
                match (opcode, last) {
                    (opcode::WRITE, true) => self.writes += 1,
                    (opcode::READ_RESPONSE, true) => self.responses += 1,
                    _ => {}
                }
            }
            Header::Untagged { opcode, last, invalidate, qn, msn, mo } => {
                let queue = usize::try_from(qn).expect("checked by decode()");
                if msn != self.next_msn_in[queue] {
                    return Err(invalid_data(format!("unexpected MSN {msn} on queue {qn}")));
                }
                if last {
                    self.next_msn_in[queue] = msn.wrapping_add(1);
                }
                match opcode {
                    opcode::READ_REQUEST => {
                        self.serve_read(ReadRequest::decode(payload, last, mo)?)?
                    }
                    opcode::ATOMIC_REQUEST => {
                        self.atomic_requests.push(AtomicRequest::decode(payload, last, mo)?);
                    }
                    opcode::ATOMIC_RESPONSE => {
                        self.atomic_responses.push(AtomicResponse::decode(payload, last, mo)?);
                    }
                    opcode::TERMINATE => self.terminate = Some(Terminate::decode(payload)?),
                    _ => self.append_send(opcode, last, invalidate, mo, payload)?,
                }
            }
        }
        Ok(true)
    }

    /// Reads one FPDU and checks its framing; `None` at a FIN between FPDUs.
    ///
    /// # Errors
    /// I/O errors and `InvalidData` for bad framing.
    pub fn recv_ulpdu(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut first = [0];
        // `read_exact` retries after a signal: DPDK's tap driver uses some.
        match self.stream.read_exact(&mut first) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            outcome => outcome?,
        }
        let mut first_byte = Some(first[0]);
        let mut reader = MarkedReader::new(self.rx_marker_pos);
        self.read_content(&mut reader, 2, &mut first_byte)?;
        let len = usize::from(u16::from_be_bytes([reader.content()[0], reader.content()[1]]));
        if len > ULPDU_LEN_MAX {
            return Err(invalid_data(format!("a ULPDU of {len} bytes")));
        }
        let padded = (2 + len).next_multiple_of(4);
        self.read_content(&mut reader, padded + 4, &mut first_byte)?;
        let (covered, check) = reader.raw().split_at(reader.raw().len() - 4);
        if self.crc && crc32c::crc32c(covered).to_le_bytes() != check {
            return Err(invalid_data("CRC mismatch"));
        }
        if reader.content()[2 + len..padded].iter().any(|byte| *byte != 0) {
            return Err(invalid_data("padding is not zero"));
        }
        if let Some(received) = &mut self.rx_marker_pos {
            *received += reader.raw().len() as u64;
        }
        Ok(Some(reader.content()[2..2 + len].to_vec()))
    }

    /// Reads until there are `content_len` bytes of content; `first_byte` was read before.
    fn read_content(
        &mut self,
        reader: &mut MarkedReader,
        content_len: usize,
        first_byte: &mut Option<u8>,
    ) -> io::Result<()> {
        loop {
            let mut bytes = vec![0; reader.next_len(content_len)];
            let Some((first, rest)) = bytes.split_first_mut() else { return Ok(()) };
            match first_byte.take() {
                Some(byte) => *first = byte,
                None => self.stream.read_exact(std::slice::from_mut(first))?,
            }
            self.stream.read_exact(rest)?;
            reader.push(&bytes).map_err(invalid_data)?;
        }
    }

    fn alloc_msn(&mut self, queue: usize) -> u32 {
        let msn = self.next_msn_out[queue];
        self.next_msn_out[queue] = msn.wrapping_add(1);
        msn
    }

    fn send_tagged(&mut self, opcode: u8, stag: u32, to: u64, bytes: &[u8]) -> io::Result<()> {
        let payload_len_max = self.ulpdu_len_max - header::TAGGED_LEN;
        let mut offset = 0;
        loop {
            let end = bytes.len().min(offset + payload_len_max);
            let header = Header::Tagged {
                opcode,
                last: end == bytes.len(),
                stag,
                to: to.wrapping_add(offset as u64),
            };
            let ulpdu = header.encode(&bytes[offset..end]);
            self.send_ulpdu(&ulpdu)?;
            offset = end;
            if offset == bytes.len() {
                return Ok(());
            }
        }
    }

    fn serve_read(&mut self, request: ReadRequest) -> io::Result<()> {
        let bytes = if request.len == 0 {
            Vec::new()
        } else {
            let range = self.range(request.source_stag, request.source_to, request.len as usize)?;
            self.memory[range].to_vec()
        };
        self.send_tagged(opcode::READ_RESPONSE, request.sink_stag, request.sink_to, &bytes)?;
        self.reads_served += 1;
        Ok(())
    }

    fn range(&self, stag: u32, to: u64, len: usize) -> io::Result<std::ops::Range<usize>> {
        let start = usize::try_from(to).ok();
        let end = start.and_then(|start| start.checked_add(len));
        match (start, end) {
            (Some(start), Some(end)) if stag == PEER_STAG && end <= self.memory.len() => {
                Ok(start..end)
            }
            _ => Err(invalid_data(format!(
                "STag {stag:#x}, offset {to}, length {len}: out of bounds"
            ))),
        }
    }

    fn place(&mut self, stag: u32, to: u64, payload: &[u8]) -> io::Result<()> {
        if !payload.is_empty() {
            let range = self.range(stag, to, payload.len())?;
            self.memory[range].copy_from_slice(payload);
        }
        Ok(())
    }

    fn append_send(
        &mut self,
        opcode: u8,
        last: bool,
        invalidate: u32,
        mo: u32,
        payload: &[u8],
    ) -> io::Result<()> {
        let mut message = self.partial_send.take().unwrap_or_else(|| Received {
            opcode,
            invalidate,
            bytes: Vec::new(),
        });
        let is_immediate = matches!(opcode, opcode::IMMEDIATE | opcode::IMMEDIATE_SOLICITED);
        if is_immediate && (!last || payload.len() != 8) {
            return Err(invalid_data("immediate data that are not 8 bytes"));
        }
        if message.bytes.len() != mo as usize || message.opcode != opcode {
            return Err(invalid_data(format!("Send segment with unexpected MO {mo}")));
        }
        message.bytes.extend_from_slice(payload);
        if last {
            self.sends.push(message);
        } else {
            self.partial_send = Some(message);
        }
        Ok(())
    }
}
