//! The command line of iwcopy.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::copy::wire::RdmaOp;
use crate::device::DeviceArgs;
use crate::network::Host;

/// Port of the sink.
pub const PORT: u16 = 18516;

/// Copies a file from one end to the other by RDMA, and compares its SHA-256 at both ends.
#[derive(Debug, Parser)]
#[command(name = "iwcopy", version, max_term_width = 100)]
pub struct Options {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Both ends in this process over a pair of rings.
    Loop {
        /// The file.
        file: PathBuf,
        /// How it travels.
        #[arg(long, value_enum, default_value = "write")]
        by: RdmaOp,
        /// Writes the copy there; without it the copy is only digested.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Where.
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Takes one file.
    Server {
        /// Writes the copy there; without it the copy is only digested.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Where.
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Copies a file to HOST.
    Client {
        /// Address of the server, with a port if need be: 198.18.0.1 or `[2001:2::1]:4420`.
        host: Host,
        /// The file.
        file: PathBuf,
        /// How it travels.
        #[arg(long, value_enum, default_value = "write")]
        by: RdmaOp,
        /// Where.
        #[command(flatten)]
        common: CommonArgs,
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
    /// Seconds without progress until the other end is given up.
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    #[arg(value_parser = crate::options::seconds)]
    pub timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_definition_is_valid() {
        use clap::CommandFactory;
        Options::command().debug_assert();
        let line = ["iwcopy", "loop", "/tmp/file", "--by", "read"];
        let Command::Loop { by, .. } = Options::try_parse_from(line).unwrap().command else {
            panic!("not the loop");
        };
        assert_eq!(by, RdmaOp::Read);
        assert!(Options::try_parse_from(["iwcopy", "loop", "f", "--by", "magic"]).is_err());
        assert!(Options::try_parse_from(["iwcopy", "loop"]).is_err());
    }
}
