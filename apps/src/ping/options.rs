//! The command line of iwping; the letters are rping's.

use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::device::DeviceArgs;
use crate::mpa_options::{IrdOrdArgs, MpaArgs};
use crate::network::Host;
use crate::ping::wire::{SIZE_MAX, SIZE_MIN};

/// Port of rping.
pub const PORT: u16 = 7174;

/// Clients that a server takes at a time, unless it is told otherwise.
pub const CLIENTS: u16 = 4096;
/// The most that it can be told.
const CLIENTS_MAX: i64 = 16_384;

/// Pings a peer by Send, RDMA Read and RDMA Write; speaks with rdma-core's rping.
#[derive(Debug, Parser)]
#[command(name = "iwping", version, max_term_width = 100)]
pub struct Options {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answers pings.
    Server {
        /// Where.
        #[command(flatten)]
        common: CommonArgs,
        /// Goes on for ever, with many clients at a time; ends after the first one otherwise.
        #[arg(short = 'P', long)]
        persistent: bool,
        /// Clients at a time; those beyond are refused. Each takes 4 KiB of registered memory and
        /// as much as its pings.
        #[arg(long, value_name = "N", default_value_t = CLIENTS, requires = "persistent")]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=CLIENTS_MAX))]
        clients: u16,
    },
    /// Pings HOST.
    Client {
        /// Address of the server, with a port if need be: 198.18.0.1 or `[2001:2::1]:4420`.
        host: Host,
        /// Where and how.
        #[command(flatten)]
        common: CommonArgs,
        /// How.
        #[command(flatten)]
        rounds: PingArgs,
    },
    /// Both ends in this process over a pair of rings.
    Loop {
        /// Where and how.
        #[command(flatten)]
        common: CommonArgs,
        /// How.
        #[command(flatten)]
        rounds: PingArgs,
    },
}

/// What both ends need.
#[derive(Clone, Debug, Args)]
pub struct CommonArgs {
    /// Where.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Port of the server.
    #[arg(short, long, default_value_t = PORT)]
    pub port: u16,
    /// Shows what the ends agreed on, and what is pinged.
    #[arg(short, long)]
    pub verbose: bool,
    /// Starts MPA without frames, as draft-02 has it: markers and CRCs always, version 0 of DDP
    /// and RDMAP. The other end has to be told the same.
    #[arg(long, help_heading = "MPA")]
    pub immediate: bool,
    /// How many RDMA Reads at a time.
    #[command(flatten)]
    pub reads: IrdOrdArgs,
    /// Seconds without progress until the other end is given up.
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    #[arg(value_parser = crate::options::seconds)]
    pub timeout: Duration,
}

/// What a client does.
#[derive(Clone, Debug, Args)]
pub struct PingArgs {
    /// Rounds [default: 10 for loop, without end for client].
    #[arg(short = 'C', long, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Bytes per ping.
    #[arg(short = 'S', long, default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(i64::from(SIZE_MIN)..=i64::from(SIZE_MAX)))]
    pub size: u32,
    /// Checks that every byte came back.
    #[arg(short = 'V', long)]
    pub verify: bool,
    /// With MPA's markers in both directions: asks for them in what the server sends, and a server
    /// of this program then does so too.
    #[arg(long, help_heading = "MPA")]
    pub markers: bool,
    /// Without MPA's CRC, if the other end agrees.
    #[arg(long, help_heading = "MPA")]
    pub no_crc: bool,
    /// How to start.
    #[command(flatten)]
    pub mpa: MpaArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_definition_is_valid() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }

    #[test]
    fn short_options_and_defaults_match_rping() {
        let line = "iwping client 198.18.0.2 --dev memif:/tmp/s --ip 198.18.0.1/24 -C 3 -S 65 -V \
                    -v --markers";
        let Command::Client { host, common, rounds } =
            Options::try_parse_from(line.split(' ')).unwrap().command
        else {
            panic!("no client");
        };
        assert_eq!(host.to_string(), "198.18.0.2");
        assert_eq!((common.port, common.verbose), (7174, true));
        assert_eq!((rounds.count, rounds.size, rounds.verify), (Some(3), 65, true));
        assert!(rounds.markers);
        let Command::Loop { rounds, .. } =
            Options::try_parse_from(["iwping", "loop"]).unwrap().command
        else {
            panic!("not the loop");
        };
        assert_eq!((rounds.size, rounds.count, rounds.markers), (64, None, false));
        let server = Options::try_parse_from(["iwping", "server", "-P", "-p", "7"]).unwrap();
        assert!(matches!(
            server.command,
            Command::Server { persistent: true, clients: 4096, common: CommonArgs { port: 7, .. } }
        ));
        for wrong in ["loop -S 1", "loop -S 65536", "loop -C 0", "client", "client host.name"] {
            let words = ["iwping"].into_iter().chain(wrong.split(' '));
            assert!(Options::try_parse_from(words).is_err(), "{wrong}");
        }
    }
}
