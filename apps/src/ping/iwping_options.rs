//! The command line of iwping; the short options are rping's.

use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::device::DeviceArgs;
use crate::environment;
use crate::host::Host;
use crate::listen_options::ListenArgs;
use crate::mpa_options::{IrdOrdArgs, MpaArgs};
use crate::option_values::{Checked, count, seconds};
use crate::ping::advert::{SIZE_MAX, SIZE_MIN};
use crate::shard_options::ShardArgs;

/// TCP port of rping.
pub const PORT: u16 = 7174;

/// Default of `--clients`.
pub const CLIENTS: u16 = 4096;
/// Maximum of `--clients`.
const CLIENTS_MAX: i64 = 16_384;

/// Pings a peer by Send, RDMA Read and RDMA Write; interoperates with rdma-core's rping.
#[derive(Debug, Parser)]
#[command(name = "iwping", version = environment::version(), max_term_width = 100)]
pub struct IwpingOptions {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands of iwping.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answers pings.
    Server {
        /// Common options.
        #[command(flatten)]
        common: CommonArgs,
        /// Address to listen on.
        #[command(flatten)]
        listen: ListenArgs,
        /// Shards.
        #[command(flatten)]
        shards: ShardArgs,
        /// Serves clients concurrently until interrupted; without it, exits after the first client.
        #[arg(short = 'P', long)]
        persistent: bool,
        /// Maximum of concurrent clients. Further clients are rejected, unless one has been idle
        /// for --timeout: it loses its place. Each takes 4 KiB of registered memory plus the size
        /// of its pings.
        #[arg(long, value_name = "N", default_value_t = CLIENTS, requires = "persistent")]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=CLIENTS_MAX))]
        clients: u16,
    },
    /// Pings HOST.
    Client {
        /// Address or name of the server, optionally with a port: `[2001:2::1]:4420`, db1.
        host: Host,
        /// Common options.
        #[command(flatten)]
        common: CommonArgs,
        /// Ping options.
        #[command(flatten)]
        rounds: PingArgs,
    },
    /// Runs client and server in this process over a pair of rings.
    Loop {
        /// Common options.
        #[command(flatten)]
        common: CommonArgs,
        /// Ping options.
        #[command(flatten)]
        rounds: PingArgs,
    },
}

impl Checked for IwpingOptions {
    fn check(&self) -> anyhow::Result<()> {
        let rounds = |common: &CommonArgs, rounds: &PingArgs| {
            rounds.mpa.check(!rounds.no_crc, common.immediate)
        };
        match &self.command {
            Command::Server { common, listen, .. } => common.device.check_server(listen),
            Command::Client { host, common, rounds: args } => {
                rounds(common, args)?;
                common.device.check_client(host)
            }
            Command::Loop { common, rounds: args } => {
                rounds(common, args)?;
                common.device.check_pair()
            }
        }
    }
}

/// Options of client and server.
#[derive(Clone, Debug, Args)]
pub struct CommonArgs {
    /// Device and network.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// TCP port of the server.
    #[arg(short, long, default_value_t = PORT)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Prints the clock in use, the negotiated MPA parameters, and the ping data.
    #[arg(short, long)]
    pub verbose: bool,
    /// Starts without MPA request and reply frames (draft-02): markers and CRC always on, version 0
    /// of DDP and RDMAP. The peer needs the same option.
    #[arg(long, help_heading = "MPA")]
    pub immediate: bool,
    /// IRD and ORD.
    #[command(flatten)]
    pub reads: IrdOrdArgs,
    /// Aborts after so many seconds without progress of the peer.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub timeout: Duration,
}

/// Options of the client.
#[derive(Clone, Debug, Args)]
pub struct PingArgs {
    /// Number of rounds [default: 10 for loop, unlimited for client].
    #[arg(short = 'C', long, value_parser = count)]
    pub count: Option<u64>,
    /// Bytes per ping.
    #[arg(short = 'S', long, default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(i64::from(SIZE_MIN)..=i64::from(SIZE_MAX)))]
    pub size: u32,
    /// Verifies every byte of the returned data.
    #[arg(short = 'V', long)]
    pub verify: bool,
    /// Requests MPA markers in received FPDUs; an iwping server then requests them in return.
    #[arg(long, help_heading = "MPA")]
    pub markers: bool,
    /// Disables the MPA CRC if the peer agrees.
    #[arg(long, help_heading = "MPA")]
    pub no_crc: bool,
    /// MPA startup.
    #[command(flatten)]
    pub mpa: MpaArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_definition_is_valid() {
        use clap::CommandFactory;
        IwpingOptions::command().debug_assert();
    }

    #[test]
    fn short_options_and_defaults_match_rping() {
        let line = "iwping client 198.18.0.2 --dev memif:/tmp/s --ip 198.18.0.1/24 -C 3 -S 65 -V \
                    -v --markers";
        let Command::Client { host, common, rounds } =
            IwpingOptions::try_parse_from(line.split(' ')).unwrap().command
        else {
            panic!("no client");
        };
        assert_eq!(host.to_string(), "198.18.0.2");
        assert_eq!((common.port, common.verbose), (7174, true));
        assert_eq!((rounds.count, rounds.size, rounds.verify), (Some(3), 65, true));
        assert!(rounds.markers);
        let Command::Loop { rounds, .. } =
            IwpingOptions::try_parse_from(["iwping", "loop"]).unwrap().command
        else {
            panic!("not the loop");
        };
        assert_eq!((rounds.size, rounds.count, rounds.markers), (64, None, false));
        let server = IwpingOptions::try_parse_from(["iwping", "server", "-P", "-p", "7"]).unwrap();
        assert!(matches!(
            server.command,
            Command::Server {
                persistent: true,
                clients: 4096,
                common: CommonArgs { port: 7, .. },
                ..
            }
        ));
        for wrong in ["loop -S 1", "loop -S 65536", "loop -C 0", "client", "client host/name"] {
            let words = ["iwping"].into_iter().chain(wrong.split(' '));
            assert!(IwpingOptions::try_parse_from(words).is_err(), "{wrong}");
        }
    }
}
