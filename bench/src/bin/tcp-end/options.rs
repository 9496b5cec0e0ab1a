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
    /// Sends until the peer closes the connection.
    Send(EndArgs),
    /// Waits for a sender, measures the received messages, and continues until killed.
    Receive {
        #[command(flatten)]
        end: EndArgs,
        /// Seconds from the start of the connection until the measurement.
        #[arg(long)]
        warm_up: f64,
        /// Measured time in seconds.
        #[arg(long)]
        seconds: f64,
    },
    /// Repeatedly sends a message and waits for one of the same length in return; prints the time
    /// of each exchange in microseconds.
    Request {
        #[command(flatten)]
        end: EndArgs,
        #[command(flatten)]
        exchanges: ExchangeArgs,
    },
    /// Replies to each message with one, until the peer closes the connection.
    Respond(EndArgs),
    /// Sets up and closes connections, and prints their number per second.
    Connections {
        /// Ends of the connections.
        between: Between,
        /// Number of connections.
        #[arg(long, default_value_t = 4000)]
        count: usize,
        /// Concurrent connections.
        #[arg(long, default_value_t = 1)]
        batch: usize,
    },
}

/// Ends of the connections.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Between {
    /// Kernel to kernel, over the loopback interface.
    Kernel,
    /// Ferrowarp to ferrowarp over `ring`, on one thread.
    Ring,
    /// Ferrowarp connects to the kernel over a tap.
    OursToKernel,
    /// The kernel connects to ferrowarp over a tap.
    KernelToOurs,
}

#[derive(Args)]
pub(crate) struct EndArgs {
    /// Address and port of the receiver.
    pub(crate) address: SocketAddrV4,
    /// Uses ferrowarp's TCP on this device; without it the kernel's.
    #[arg(long)]
    pub(crate) dev: Option<String>,
    /// The address of ferrowarp's TCP, with a prefix of 24 bits.
    #[arg(long, requires = "dev")]
    pub(crate) ip: Option<Ipv4Addr>,
}
