//! The stack's end of an exchange; its peer is `siw_peer exchange` in the guest
//! (tests/interop/exchange.h). Prints lines of `key=value`, and exits with status 0 only if the
//! exchange had the expected outcome.

mod exchange;
mod steps;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::{Parser, ValueEnum};
use ferrowarp::cm::PrivateData;
use ferrowarp::{ConnEvent, ConnInfo, ConnParam, ConnRequest, ConnectError, Context, Qp};
use ferrowarp_apps::device::{Demand, DeviceArgs};
use ferrowarp_apps::host::Host;
use ferrowarp_apps::mpa_options::{IrdOrdArgs, MpaArgs, negotiated_line};

use crate::exchange::Exchange;

/// Timeout of the connection set-up.
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// Violation by one end after all steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// An RDMA Write to an STag that was never allocated.
    Write,
    /// An RDMA Read of such an STag.
    Read,
    /// A Send that invalidates such an STag.
    Invalidate,
    /// A Send for which there is no receive.
    Send,
    /// An RDMA Write beyond the end of the region.
    Bounds,
    /// An RDMA Write to the STag that was invalidated last.
    Stale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Initiator,
    Responder,
}

/// One end of an exchange with `siw_peer exchange`.
#[derive(Debug, Parser)]
struct InteropEndOptions {
    /// Address of the peer; without it, listens.
    host: Option<Host>,
    /// Port of the listener.
    #[arg(long, default_value_t = 4796)]
    port: u16,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    reads: IrdOrdArgs,
    #[command(flatten)]
    mpa: MpaArgs,
    /// Requests markers.
    #[arg(long)]
    markers: bool,
    /// Prefers no CRC.
    #[arg(long)]
    no_crc: bool,
    /// Bytes of private data to send.
    #[arg(long, default_value_t = 0)]
    private: usize,
    /// Expected bytes of private data.
    #[arg(long, default_value_t = 0)]
    expect_private: usize,
    /// The listener rejects the request.
    #[arg(long)]
    reject: bool,
    /// Omits RDMA Reads.
    #[arg(long)]
    no_reads: bool,
    /// Message sizes in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1000, 65536])]
    sizes: Vec<usize>,
    /// Violation after all steps.
    #[arg(long, value_enum)]
    fault: Option<Fault>,
    /// End that commits it.
    #[arg(long, value_enum, default_value = "responder")]
    fault_by: Role,
}

impl ferrowarp_apps::option_values::Checked for InteropEndOptions {}

/// Frame that private data belong to; determines their first byte.
#[derive(Clone, Copy)]
enum Private {
    Request = 1,
    Reply = 2,
    Reject = 3,
}

impl Private {
    #[expect(clippy::cast_possible_truncation, reason = "modulo 256")]
    const fn byte(self, index: usize) -> u8 {
        (self as usize + 7 * index) as u8
    }

    fn bytes(self, len: usize) -> impl Iterator<Item = u8> {
        (0..len).map(move |index| self.byte(index))
    }

    /// Checks that received private data are those that the peer had to send.
    fn check(self, bytes: &[u8], expected: usize) -> anyhow::Result<()> {
        let len = bytes.len();
        ensure!(len == expected, "{len} bytes of private data, not {expected}");
        let is_equal = bytes.iter().copied().eq(self.bytes(len));
        ensure!(is_equal, "the private data differ from those sent");
        Ok(())
    }
}

impl InteropEndOptions {
    fn param(&self, private: Private) -> anyhow::Result<ConnParam> {
        let mut param = ConnParam::new().crc(!self.no_crc).markers(self.markers);
        param.private_data = PrivateData::try_from_iter(private.bytes(self.private))?;
        self.mpa.apply_to(&mut param);
        self.reads.apply_to(&mut param);
        Ok(param)
    }
}

fn main() -> ExitCode {
    let options: InteropEndOptions = ferrowarp_apps::parse();
    ferrowarp_apps::run_program("interop_end", || {
        let context = options.device.open(Demand::connections(1))?;
        match &options.host {
            Some(host) => {
                let remote = host.socket(context.config(), options.port)?;
                connect(&options, &context, remote)
            }
            None => listen(&options, &context),
        }
    })
}

fn connect(
    options: &InteropEndOptions,
    context: &Context,
    remote: SocketAddr,
) -> anyhow::Result<()> {
    let mut exchange = Exchange::new(context, options, true)?;
    exchange.qp.connect(remote, options.param(Private::Request)?)?;
    match wait_established(&exchange.qp)? {
        Ok(info) => {
            ensure!(!options.reject, "the connection was not rejected");
            Private::Reply.check(&info.private_data, options.expect_private)?;
            exchange.run(info.ord)
        }
        Err((error, private_data)) => {
            ensure!(options.reject && error == ConnectError::Rejected, "cannot connect: {error}");
            Private::Reject.check(&private_data, options.expect_private)?;
            println!("rejected: private={}", private_data.len());
            Ok(())
        }
    }
}

fn listen(options: &InteropEndOptions, context: &Context) -> anyhow::Result<()> {
    let listener = context.listen(options.port, 4)?;
    println!("listening on port {}", options.port);
    let request = listener.accept_timeout(CONNECT_MAX).context("no connect request")?;
    let offer = request.offer();
    println!("asked: ird={} ord={} private={}", offer.ird, offer.ord, offer.private_data.len());
    Private::Request.check(&offer.private_data, options.expect_private)?;
    if options.reject {
        let bytes: Vec<u8> = Private::Reject.bytes(options.private).collect();
        request.reject(&bytes)?;
        println!("rejected");
        // Waits until the peer has closed the connection after the reject.
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while context.connection_count() > 0 && std::time::Instant::now() < deadline {
            context.drive();
        }
        return Ok(());
    }
    accept(options, context, request)
}

fn accept(
    options: &InteropEndOptions,
    context: &Context,
    request: ConnRequest,
) -> anyhow::Result<()> {
    let mut exchange = Exchange::new(context, options, false)?;
    request.accept(&exchange.qp, options.param(Private::Reply)?)?;
    match wait_established(&exchange.qp)? {
        Ok(info) => exchange.run(info.ord),
        Err((error, _)) => bail!("the connection failed: {error}"),
    }
}

type Failed = (ConnectError, Vec<u8>);

/// Waits until the connection is established, and returns its parameters, or the error and the
/// peer's private data.
fn wait_established(qp: &Qp) -> anyhow::Result<Result<Box<ConnInfo>, Failed>> {
    loop {
        match qp.wait_event(CONNECT_MAX).context("no response")? {
            ConnEvent::Established { info, .. } => {
                println!("{}", negotiated_line(&info));
                return Ok(Ok(info));
            }
            ConnEvent::ConnectFailed { error, private_data, .. } => {
                return Ok(Err((error, private_data.to_vec())));
            }
            ConnEvent::Disconnected { reason, .. } => bail!("ended in set-up: {reason:?}"),
            _ => {}
        }
    }
}
