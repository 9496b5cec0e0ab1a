//! One end of a connection that is measured: of the kernel's TCP, or of ours. Both carry the same
//! FPDUs; the start-up exchange of the kernel's end is that of the independent peer.
//!
//! A receiver prints one line of JSON once the time is over: bytes of messages that came in it.
//! It goes on receiving until it is ended, so that the wire has somebody to deliver to.
//!
//! A requester sends a message and waits for one in return, again and again, and prints how long
//! each of these exchanges took.

mod connections;
mod kernel;
mod message;
mod verbs_end;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(about = "One end of a connection, of the kernel or of ferrowarp")]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sends until the other end goes away.
    Send(EndArgs),
    /// Waits for a sender, measures what comes, and goes on until ended.
    Receive {
        #[command(flatten)]
        end: EndArgs,
        /// Seconds from the start of the connection that are not measured.
        #[arg(long)]
        warm_up: f64,
        /// Seconds that are measured.
        #[arg(long)]
        seconds: f64,
    },
    /// Sends a message, waits for one of the same length in return, and so on; prints the
    /// microseconds that each exchange took.
    Request {
        #[command(flatten)]
        end: EndArgs,
        #[command(flatten)]
        exchanges: ExchangeArgs,
    },
    /// Answers each message with one, until the other end goes away.
    Respond(EndArgs),
    /// Sets connections up and ends them, and prints how many came about per second.
    Connections {
        /// Between what.
        between: Between,
        /// Connections in all.
        #[arg(long, default_value_t = 4000)]
        count: usize,
        /// Connections at a time.
        #[arg(long, default_value_t = 1)]
        batch: usize,
    },
}

/// Who sets connections up with whom.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Between {
    /// The kernel with itself, over its loopback interface.
    Kernel,
    /// Ours with ours over `ring`, on one thread.
    Ring,
    /// Ours connects to the kernel over a tap.
    OursToKernel,
    /// The kernel connects to ours over a tap.
    KernelToOurs,
}

#[derive(Args)]
struct EndArgs {
    /// Address and port of the receiver.
    address: SocketAddrV4,
    /// Our TCP on this device; without it the kernel's.
    #[arg(long)]
    dev: Option<String>,
    /// The address of our TCP, with a prefix of 24 bits.
    #[arg(long, requires = "dev")]
    ip: Option<Ipv4Addr>,
}

/// Exchanges of a request and a response.
#[derive(Args, Clone, Copy)]
struct ExchangeArgs {
    /// Exchanges that are not measured.
    #[arg(long)]
    warm_up: usize,
    /// Exchanges that are measured.
    #[arg(long)]
    count: usize,
    /// Milliseconds between a response and the next request.
    #[arg(long, default_value_t = 0)]
    pause: u64,
}

impl ExchangeArgs {
    /// Runs them, `exchange` being one, `rest` what to do while nothing is under way, again and
    /// again until the pause is over. Prints the line.
    fn run(
        self,
        mut exchange: impl FnMut() -> Result<()>,
        mut idle: impl FnMut(Duration),
    ) -> Result<()> {
        let mut us = Vec::with_capacity(self.count);
        for round in 0..self.warm_up + self.count {
            let start = Instant::now();
            exchange()?;
            if round >= self.warm_up {
                us.push(start.elapsed().as_secs_f64() * 1e6);
            }
            let end = Instant::now() + Duration::from_millis(self.pause);
            while let Some(left) = end.checked_duration_since(Instant::now()) {
                idle(left);
            }
        }
        println!("{}", serde_json::json!({ "us": us }));
        Ok(())
    }
}

/// When to measure, from the start of a connection on.
#[derive(Clone, Copy)]
struct MeasureWindow {
    warm_up: Duration,
    seconds: Duration,
}

/// Counts bytes within the window.
struct Meter {
    window: MeasureWindow,
    start: Instant,
    from: Option<(Instant, u64)>,
    printed: bool,
}

impl Meter {
    fn start(window: MeasureWindow) -> Self {
        Self { window, start: Instant::now(), from: None, printed: false }
    }

    /// To be told now and then what has come since the start. Prints the line once the time is
    /// over.
    fn update(&mut self, bytes: u64) {
        let now = Instant::now();
        match self.from {
            None if now - self.start >= self.window.warm_up => self.from = Some((now, bytes)),
            Some((from, before)) if now - from >= self.window.seconds && !self.printed => {
                let seconds = (now - from).as_secs_f64();
                let bytes = bytes - before;
                println!("{}", serde_json::json!({"octets": bytes, "seconds": seconds}));
                self.printed = true;
            }
            _ => {}
        }
    }
}

fn main() -> ExitCode {
    match run(Options::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tcp-end: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Send(EndArgs { address, dev: Some(dev), ip: Some(ip) }) => {
            verbs_end::send(&dev, ip, address)
        }
        Command::Send(EndArgs { address, .. }) => kernel::send(address),
        Command::Receive { end, warm_up, seconds } => {
            let window = MeasureWindow {
                warm_up: Duration::from_secs_f64(warm_up),
                seconds: Duration::from_secs_f64(seconds),
            };
            match end {
                EndArgs { address, dev: Some(dev), ip: Some(ip) } => {
                    verbs_end::receive(&dev, ip, address.port(), window)
                }
                EndArgs { address, .. } => kernel::receive(address, window),
            }
        }
        Command::Request { end, exchanges } => match end {
            EndArgs { address, dev: Some(dev), ip: Some(ip) } => {
                verbs_end::request(&dev, ip, address, exchanges)
            }
            EndArgs { address, .. } => kernel::request(address, exchanges),
        },
        Command::Respond(EndArgs { address, dev: Some(dev), ip: Some(ip) }) => {
            verbs_end::respond(&dev, ip, address.port())
        }
        Command::Respond(EndArgs { address, .. }) => kernel::respond(address),
        Command::Connections { between, count, batch } => {
            let batch = batch.clamp(1, count.max(1));
            let rate = match between {
                Between::Kernel => connections::kernel(count, batch),
                Between::Ring => connections::ring(count, batch),
                Between::OursToKernel => connections::ours_to_kernel(count, batch),
                Between::KernelToOurs => connections::kernel_to_ours(count, batch),
            }?;
            println!("{}", serde_json::json!({"connections_s": rate}));
            Ok(())
        }
    }
}
