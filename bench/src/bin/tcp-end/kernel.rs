//! The kernel's TCP through plain sockets.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddrV4, TcpListener, TcpStream};

use anyhow::{Context as _, Result};
use ferrowarp_tests::peer::{Peer, Startup};

use crate::message::{Counter, Messages};
use crate::{Meter, Window};

pub(crate) fn send(address: SocketAddrV4) -> Result<()> {
    let mut stream = TcpStream::connect(address).context("cannot connect")?;
    Peer::initiate(stream.try_clone()?, &Startup::default()).context("start-up")?;
    let mut messages = Messages::new();
    loop {
        match stream.write_all(messages.next()) {
            Ok(()) => {}
            // The receiver has seen enough.
            Err(error)
                if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error).context("cannot send"),
        }
    }
}

pub(crate) fn receive(address: SocketAddrV4, window: Window) -> Result<()> {
    let listener = TcpListener::bind(address).context("cannot listen")?;
    println!("listening");
    let (mut stream, _) = listener.accept()?;
    Peer::respond(stream.try_clone()?, &Startup::default()).context("start-up")?;
    let mut meter = Meter::start(window);
    let mut counter = Counter::default();
    let mut octets = vec![0; 256 << 10];
    loop {
        let len = stream.read(&mut octets).context("cannot receive")?;
        anyhow::ensure!(len > 0, "the sender has gone");
        counter.take(&octets[..len]);
        meter.at(counter.octets);
    }
}
