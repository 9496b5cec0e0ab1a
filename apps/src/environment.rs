//! Environment of a measurement: machine, kernel, versions.

use std::fs::read_to_string;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use ferrowarp::Context;
use serde::Serialize;

use crate::port_figures::PortFigures;

/// Environment recorded with results. Unknown values are empty or zero.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// Version of ferrowarp.
    pub version: &'static str,
    /// Version of DPDK.
    pub dpdk: &'static str,
    /// Value of `--dev`.
    pub device: String,
    /// Name of the processor.
    pub processor: String,
    /// Number of processors that this program may use.
    pub processors: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Hugepages of the default size that were free at the start.
    pub hugepages_free: u64,
    /// Kernel release.
    pub kernel: String,
    /// Distribution.
    pub system: String,
    /// Command line.
    pub command: Vec<String>,
    /// Cores that this end was pinned to, in a loop both.
    pub cores: Vec<usize>,
    /// Seconds since 1970, at the start.
    pub time_unix_s: u64,
    /// Clock of this end, and the cost of a reading; empty if no port was opened.
    pub clock: String,
    /// Port of this end, in a loop of the client; `null` if it was not opened.
    pub port: Option<PortFigures>,
}

impl Environment {
    /// Collects the environment. Reads a few files below `/proc` and `/etc/os-release`.
    #[must_use]
    pub fn collect(device: &str) -> Self {
        let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
        let number = |name| {
            let text = field(&meminfo, name).unwrap_or_default();
            text.split(' ').next().and_then(|digits| digits.parse().ok()).unwrap_or(0u64)
        };
        let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let release = read_to_string("/etc/os-release").unwrap_or_default();
        let system = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            dpdk: ferrowarp::device::dpdk_version(),
            device: device.to_owned(),
            processor: field(&cpuinfo, "model name").unwrap_or_default().to_owned(),
            processors: std::thread::available_parallelism().map_or(0, Into::into),
            memory_bytes: number("MemTotal") * 1024,
            hugepages_free: number("HugePages_Free"),
            kernel: kernel.trim().to_owned(),
            system: system.unwrap_or_default().trim_matches('"').to_owned(),
            command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
            cores: Vec::new(),
            time_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            clock: String::new(),
            port: None,
        }
    }

    /// Adds the state of the context at the end of its use.
    pub fn add_context(&mut self, context: &Context) {
        self.clock = context.clock().to_string();
        self.port = Some(PortFigures::of(context));
    }
}

/// Returns what `--version` prints after the program's name.
#[must_use]
pub fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        format!("{} (DPDK {})", env!("CARGO_PKG_VERSION"), ferrowarp::device::dpdk_version())
    })
}

/// Returns the value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_matches_whole_name_only() {
        let text = "MemTotalX: 1 kB\nMemTotal:   24 kB\nmodel name\t: A Processor: Fast\n";
        assert_eq!(field(text, "MemTotal"), Some("24 kB"));
        assert_eq!(field(text, "model name"), Some("A Processor: Fast"));
        assert_eq!(field(text, "Mem"), None);
    }

    #[test]
    fn collect_reports_memory_and_processors() {
        let environment = Environment::collect("ring");
        assert!(environment.memory_bytes > 1 << 20);
        assert!(environment.processors > 0);
        assert_eq!(environment.device, "ring");
    }
}
