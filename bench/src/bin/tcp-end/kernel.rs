//! The kernel's TCP through plain sockets.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddrV4, TcpListener, TcpStream};

use anyhow::{Context as _, Result};
use ferrowarp_tests::peer::{Peer, Startup};

use crate::exchange::ExchangeArgs;
use crate::message::{FpduCounter, MESSAGE_LEN, Messages};
use crate::meter::{MeasureWindow, Meter};

pub(crate) fn send(address: SocketAddrV4) -> Result<()> {
    let mut stream = TcpStream::connect(address).context("cannot connect")?;
    Peer::initiate(stream.try_clone()?, &Startup::default()).context("startup")?;
    let mut messages = Messages::new();
    loop {
        match stream.write_all(messages.next()) {
            Ok(()) => {}
            // The receiver has ended.
            Err(error)
                if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error).context("cannot send"),
        }
    }
}

pub(crate) fn receive(address: SocketAddrV4, window: MeasureWindow) -> Result<()> {
    let listener = TcpListener::bind(address).context("cannot listen")?;
    println!("listening");
    let (mut stream, _) = listener.accept()?;
    Peer::respond(stream.try_clone()?, &Startup::default()).context("startup")?;
    let mut meter = Meter::start(window);
    let mut counter = FpduCounter::default();
    let mut bytes = vec![0; 256 << 10];
    loop {
        let len = stream.read(&mut bytes).context("cannot receive")?;
        anyhow::ensure!(len > 0, "the sender closed the connection");
        counter.feed(&bytes[..len]);
        meter.update(counter.bytes);
    }
}

/// A stream of complete messages.
struct MessageStream {
    stream: TcpStream,
    messages: Messages,
    counter: FpduCounter,
    bytes: Vec<u8>,
    received: u64,
}

impl MessageStream {
    fn new(stream: TcpStream) -> Self {
        let (messages, counter) = (Messages::new(), FpduCounter::default());
        Self { stream, messages, counter, bytes: vec![0; 256 << 10], received: 0 }
    }

    fn send(&mut self) -> Result<()> {
        self.stream.write_all(self.messages.next()).context("cannot send")
    }

    /// Receives one message. False: the peer closed the connection.
    fn receive(&mut self) -> Result<bool> {
        self.received += MESSAGE_LEN as u64;
        while self.counter.bytes < self.received || !self.counter.is_at_fpdu_boundary() {
            match self.stream.read(&mut self.bytes) {
                Ok(0) => return Ok(false),
                Ok(len) => self.counter.feed(&self.bytes[..len]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error).context("cannot receive"),
            }
        }
        Ok(true)
    }
}

pub(crate) fn request(address: SocketAddrV4, exchanges: ExchangeArgs) -> Result<()> {
    let stream = TcpStream::connect(address).context("cannot connect")?;
    Peer::initiate(stream.try_clone()?, &Startup::default()).context("startup")?;
    let mut messages = MessageStream::new(stream);
    let exchange = || {
        messages.send()?;
        anyhow::ensure!(messages.receive()?, "the responder closed the connection");
        Ok(())
    };
    exchanges.run(exchange, std::thread::sleep)
}

pub(crate) fn respond(address: SocketAddrV4) -> Result<()> {
    let listener = TcpListener::bind(address).context("cannot listen")?;
    println!("listening");
    let (stream, _) = listener.accept()?;
    Peer::respond(stream.try_clone()?, &Startup::default()).context("startup")?;
    let mut messages = MessageStream::new(stream);
    while messages.receive()? {
        messages.send()?;
    }
    Ok(())
}
