//! The command line.

use std::net::{Ipv4Addr, SocketAddrV4};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::exchange::ExchangeArgs;

#[derive(Parser)]
#[command(about = "One end of a connection, of the kernel or of ferrowarp")]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
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
pub(crate) enum Between {
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
pub(crate) struct EndArgs {
    /// Address and port of the receiver.
    pub(crate) address: SocketAddrV4,
    /// Our TCP on this device; without it the kernel's.
    #[arg(long)]
    pub(crate) dev: Option<String>,
    /// The address of our TCP, with a prefix of 24 bits.
    #[arg(long, requires = "dev")]
    pub(crate) ip: Option<Ipv4Addr>,
}
