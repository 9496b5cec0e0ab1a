//! The command line of iwcopy.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::copy::copy_message::RdmaOp;
use crate::device::DeviceArgs;
use crate::environment;
use crate::host::Host;
use crate::listen_options::ListenArgs;
use crate::option_values::{Checked, seconds};

/// TCP port of the sink.
pub const PORT: u16 = 18516;

/// Copies a file by RDMA and compares the SHA-256 digests of source and sink.
#[derive(Debug, Parser)]
#[command(name = "iwcopy", version = environment::version(), max_term_width = 100)]
pub struct IwcopyOptions {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands of iwcopy.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs source and sink in this process over a pair of rings.
    Loop {
        /// File to copy.
        file: PathBuf,
        /// RDMA operation that transfers the file.
        #[arg(long, value_enum, default_value = "write")]
        by: RdmaOp,
        /// Output file, which appears when it is complete; - is standard output. Without it only
        /// the SHA-256 is computed.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Common options.
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Receives one file.
    Server {
        /// Output file, which appears when it is complete; - is standard output. Without it only
        /// the SHA-256 is computed.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Address to listen on.
        #[command(flatten)]
        listen: ListenArgs,
        /// Common options.
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Copies a file to HOST.
    Client {
        /// Address or name of the server, optionally with a port: `[2001:2::1]:4420`, db1.
        host: Host,
        /// File to copy.
        file: PathBuf,
        /// RDMA operation that transfers the file.
        #[arg(long, value_enum, default_value = "write")]
        by: RdmaOp,
        /// Common options.
        #[command(flatten)]
        common: CommonArgs,
    },
}

impl Checked for IwcopyOptions {
    fn check(&self) -> anyhow::Result<()> {
        match &self.command {
            Command::Loop { common, .. } => common.device.check_pair(),
            Command::Server { common, listen, .. } => common.device.check_server(listen),
            Command::Client { host, common, .. } => common.device.check_client(host),
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
    /// Aborts after so many seconds without progress of the peer.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_definition_is_valid() {
        use clap::CommandFactory;
        IwcopyOptions::command().debug_assert();
        let line = ["iwcopy", "loop", "/tmp/file", "--by", "read"];
        let Command::Loop { by, .. } = IwcopyOptions::try_parse_from(line).unwrap().command else {
            panic!("not the loop");
        };
        assert_eq!(by, RdmaOp::Read);
        assert!(IwcopyOptions::try_parse_from(["iwcopy", "loop", "f", "--by", "magic"]).is_err());
        assert!(IwcopyOptions::try_parse_from(["iwcopy", "loop"]).is_err());
    }
}
