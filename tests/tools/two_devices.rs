//! Two devices in one process, connected to each other by the network behind them: bytes are
//! written from one to the other and read back, then the first device is closed, opened again, and
//! used again while the other stays open.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Parser;
use ferrowarp::device::ChecksumMode;
use ferrowarp::{Access, Config, ConnParam, Context, Cq, DriveMode, QpOptions, WcStatus};

/// Timeout of each step.
const TIMEOUT: Duration = Duration::from_secs(60);
const PORT: u16 = 4797;

/// Connects two devices of this process with each other.
#[derive(Debug, Parser)]
struct TwoDevicesOptions {
    /// The two devices, as of `iwping --dev`.
    #[arg(num_args = 2, required = true)]
    devices: Vec<String>,
    /// Their addresses, in one network.
    #[arg(long, num_args = 2, required = true)]
    addresses: Vec<IpAddr>,
    /// Bytes to write and read.
    #[arg(long, default_value_t = 1_000_001)]
    size: usize,
}

impl ferrowarp_apps::option_values::Checked for TwoDevicesOptions {}

fn main() -> std::process::ExitCode {
    let options: TwoDevicesOptions = ferrowarp_apps::parse();
    ferrowarp_apps::run_program("two_devices", || run(&options))
}

fn open(options: &TwoDevicesOptions, index: usize) -> anyhow::Result<Context> {
    let address = options.addresses[index];
    let prefix_len = if address.is_ipv4() { 24 } else { 64 };
    let device = options.devices[index].parse().map_err(anyhow::Error::msg)?;
    let config = Config::new(device, address, prefix_len)
        // Frames that QEMU passes from card to card would be captured without their checksums.
        .checksum(ChecksumMode::Software)
        .drive(DriveMode::Helper);
    Ok(Context::open(config)?)
}

fn run(options: &TwoDevicesOptions) -> anyhow::Result<()> {
    let (mut first, second) = (open(options, 0)?, open(options, 1)?);
    for round in 1..=2u8 {
        transfer(options, &first, &second, round)?;
        println!("round {round}: {} bytes written and read back, verified", options.size);
        if round == 1 {
            first.close();
            first = open(options, 0)?;
        }
    }
    Ok(())
}

/// Connects, writes a pattern to the memory of `second`, and reads it back.
fn transfer(
    options: &TwoDevicesOptions,
    first: &Context,
    second: &Context,
    round: u8,
) -> anyhow::Result<()> {
    let (size, len) = (options.size, u32::try_from(options.size)?);
    let (cq, peer_cq) = (first.create_cq(8)?, second.create_cq(8)?);
    let (pd, peer_pd) = (first.alloc_pd(), second.alloc_pd());
    let (qp, peer_qp) =
        (pd.create_qp(&QpOptions::new(&cq))?, peer_pd.create_qp(&QpOptions::new(&peer_cq))?);
    let target = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let target = peer_pd.register(second.allocate(size)?, target)?;
    let source = pd.register(first.allocate(size)?, Access::LOCAL_READ)?;
    let sink = pd.register(first.allocate(size)?, Access::LOCAL_WRITE)?;
    let pattern: Vec<u8> = (0..=250).cycle().take(size).map(|byte: u8| byte ^ round).collect();
    source.write(0, &pattern);

    let listener = second.listen(PORT, 1)?;
    qp.connect(SocketAddr::new(options.addresses[1], PORT), ConnParam::new())?;
    let request = listener.accept_timeout(TIMEOUT).context("no connect request")?;
    request.accept(&peer_qp, ConnParam::new())?;
    qp.wait_established(TIMEOUT)?;
    peer_qp.wait_established(TIMEOUT)?;

    let mut post = qp.post();
    post.write(source.sge(0, len), target.remote()).wr_id(1).signaled();
    post.read(sink.sge(0, len), target.remote()).wr_id(2).signaled();
    post.ring()?;
    wait_for(&cq, 2)?;
    let mut target_bytes = vec![0; size];
    let mut sink_bytes = vec![0; size];
    target.read(0, &mut target_bytes);
    sink.read(0, &mut sink_bytes);
    ensure!(target_bytes == pattern, "the bytes written are not those sent");
    ensure!(sink_bytes == pattern, "the bytes read are not those written");
    qp.disconnect()?;
    Ok(())
}

/// Waits for completions, which must be successful.
fn wait_for(cq: &Cq, count: usize) -> anyhow::Result<()> {
    let (mut found, deadline) = (Vec::with_capacity(count), Instant::now() + TIMEOUT);
    while found.len() < count {
        ensure!(Instant::now() < deadline, "{} of {count} completions", found.len());
        cq.poll_with(count - found.len(), |wc| found.push(wc));
    }
    for wc in &found {
        ensure!(wc.status == WcStatus::Success, "{:?}: {}", wc.opcode, wc.status);
    }
    Ok(())
}
