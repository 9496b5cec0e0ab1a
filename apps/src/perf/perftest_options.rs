//! Options of perftest for what iwperf always does. They are accepted and change nothing, so that a
//! command line of perftest need not be edited.

use clap::Args;

const HEADING: &str = "Accepted for perftest's sake";

/// Options without an effect.
#[derive(Clone, Debug, Default, Args)]
pub struct PerftestArgs {
    /// Connects with the RDMA connection manager: always so.
    #[arg(short = 'R', long = "rdma_cm", help_heading = HEADING)]
    pub rdma_cm: bool,
    /// Exchanges parameters over an RDMA connection: always so.
    #[arg(short = 'z', long = "comm_rdma_cm", alias = "com_rdma_cm", help_heading = HEADING)]
    pub comm_rdma_cm: bool,
    /// Does not warn of a CPU frequency that varies: never does.
    #[arg(short = 'F', long = "CPU-freq", help_heading = HEADING)]
    pub cpu_freq: bool,
    /// Omits the peak bandwidth: it is shown nevertheless, because it costs nothing here.
    #[arg(short = 'N', long = "noPeak", help_heading = HEADING)]
    pub no_peak: bool,
    /// Index of the GID: an address is the only one (--address).
    #[arg(short = 'x', long, value_name = "INDEX", help_heading = HEADING)]
    pub gid_index: Option<u32>,
    /// Connection type: iWARP has reliable connections only.
    #[arg(short, long, value_name = "TYPE", value_parser = ["RC"], help_heading = HEADING)]
    pub connection: Option<String>,
    /// Reports gigabits (10^9) per second: always so.
    #[arg(long = "report_gbits", help_heading = HEADING)]
    pub report_gbits: bool,
}
