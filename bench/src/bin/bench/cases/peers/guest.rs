//! Linux's siw in an emulated guest (`scripts/siw-guest --icount`), by perftest, and ours in the
//! same guest.
//!
//! The guest has one processor, and its time counts instructions, one for each nanosecond: a figure
//! says how many instructions both ends and what lies between them take, not how fast the host is.
//! Both ends share the processor. siw's ends are two processes that sleep until there are
//! completions (perftest's `-e`), because polling would only take the time of the other end;
//! perftest offers that for Sends, so Sends are compared. siw asks for no CRC.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ferrowarp_tests::interop::guest::Guest;

use super::{Peer, Test, own_version};
use crate::iwperf;
use crate::runner::Figures;

/// Address of the guest, to which it connects itself.
const ADDRESS: &str = "198.18.0.2";
/// Port of perftest.
const PORT: u16 = 18515;
/// Memory of the guest in MiB: our programs run from a file system in it.
const MEMORY: &str = "1024";
/// Bytes sent in a run, and limits of the number of messages.
const BYTES: u64 = 16 << 20;
const MESSAGES: std::ops::RangeInclusive<u64> = 32..=5000;
/// Round trips of a ping-pong.
const ROUND_TRIPS: u64 = 1000;
/// Time allowed for a run.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// Stack that runs in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    Ours,
    OursWithCrc,
    Siw,
}

/// Boots the guest, with `iwperf` in it.
pub(crate) fn boot(iwperf: &Path, log: &Path) -> Result<Guest> {
    let driver = mempool_driver()?;
    let (iwperf, driver) = (iwperf.display().to_string(), driver.display().to_string());
    let options = ["--icount", "--memory", MEMORY, "--with", &iwperf, "--with", &driver];
    Guest::boot_with(log, &options).context("scripts/siw-guest")
}

/// Returns the plug-in of DPDK without which it has no mempools; it loads plug-ins itself.
fn mempool_driver() -> Result<PathBuf> {
    let output = std::process::Command::new("pkg-config")
        .args(["--variable=libdir", "libdpdk"])
        .output()
        .context("cannot start pkg-config")?;
    let folder = Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("dpdk");
    let plugins = std::fs::read_dir(&folder)
        .with_context(|| format!("no plug-ins of DPDK in {}", folder.display()))?;
    for plugin in plugins {
        for file in std::fs::read_dir(plugin?.path())? {
            let path = file?.path();
            // With the version in its name, which the plain one links to.
            if path.to_string_lossy().contains("/librte_mempool_ring.so.") {
                return Ok(path);
            }
        }
    }
    bail!("no librte_mempool_ring in {}: apt-get install libdpdk-dev", folder.display())
}

/// Returns a stack in the guest, with an MTU.
pub(crate) fn peer(stack: Stack, guest: &Rc<Guest>, mtu: u16) -> Peer {
    let (name, about, version) = match stack {
        Stack::Ours => {
            let about = "`iwperf loop send-bw`, `send-lat` over `ring`, no CRC";
            ("ferrowarp", about, own_version())
        }
        Stack::OursWithCrc => ("ferrowarp, CRC", "the same, with CRC", own_version()),
        Stack::Siw => {
            let about = "`ib_send_bw -e`, `ib_send_lat -e` over the guest's loopback, no CRC";
            ("siw", about, format!("Linux {}", guest.property("kernel")))
        }
    };
    let guest = Rc::clone(guest);
    Peer {
        name,
        about: about.to_owned(),
        is_ours: stack != Stack::Siw,
        version: Ok(version),
        supports: Box::new(|_| true),
        run: Box::new(move |test, _| {
            let line = format!("ip link set lo mtu {mtu} && {}", command_line(stack, test, mtu));
            let result = guest.run(&line, RUN_TIMEOUT)?;
            ensure!(result.code == Some(0), "{:?}: {}", result.code, result.output.trim());
            match stack {
                Stack::Siw => parse_perftest(&result.output, test),
                _ => iwperf::parse(&result.output, None),
            }
        }),
    }
}

/// Returns the command line of the guest's shell, which prints the result.
fn command_line(stack: Stack, test: Test, mtu: u16) -> String {
    let (kind, size, count) = match test {
        Test::Stream { size, .. } => {
            ("bw", size, (BYTES / size).clamp(*MESSAGES.start(), *MESSAGES.end()))
        }
        Test::PingPong { size } => ("lat", size, ROUND_TRIPS),
    };
    if stack == Stack::Siw {
        let end = format!("ib_send_{kind} -e -R -d siw0 -p {PORT} -s {size} -n {count}");
        return format!(
            "{{ {end} >/tmp/server 2>&1 & }} && listening {PORT} && {end} {ADDRESS} && wait"
        );
    }
    let crc = if stack == Stack::Ours { "--no-crc" } else { "" };
    format!(
        "iwperf loop send-{kind} --mtu {mtu} -s {size} -n {count} {crc} --json /tmp/json \
         >/tmp/log 2>&1 && cat /tmp/json"
    )
}

/// Parses perftest's line of results: the one of numbers below its titles.
fn parse_perftest(output: &str, test: Test) -> Result<Figures> {
    let numbers = |line: &str| {
        line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>()
    };
    let rows = output.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let row = rows.filter_map(numbers).find(|row| row.len() >= 5).context("no results")?;
    match test {
        // #bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]; a MB is 2^20 bytes.
        Test::Stream { .. } => {
            Ok(Figures::from([("Gb/s", row[3] * f64::from(1 << 20) * 8e-9), ("M/s", row[4])]))
        }
        // #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%
        Test::PingPong { .. } => {
            let mut figures = Figures::from([("us, p50", row[4])]);
            figures.extend(row.get(7).map(|&p99| ("us, p99", p99)));
            figures.extend(row.get(8).map(|&p999| ("us, p99.9", p999)));
            Ok(figures)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_perftest_are_parsed() {
        let stream = "\
 Max inline data : 0[B]
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0003 PSN 0x5b1fd8
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      500            416.80             400.00 \t\t   0.006669
---------------------------------------------------------------------------------------
";
        let test = Test::Stream { size: 65_536, connections: 1 };
        let sample = parse_perftest(stream, test).unwrap();
        assert_eq!(sample["M/s"], 0.006_669);
        assert!((sample["Gb/s"] - 3.3554).abs() < 0.0001, "{sample:?}");
        let ping_pong = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 64      1000          17.00          21.31        17.14    \t17.38 \t0.34 \t19.80 \t21.31
";
        let latency = parse_perftest(ping_pong, Test::PingPong { size: 64 }).unwrap();
        let of = |name| latency[name];
        assert_eq!(["us, p50", "us, p99", "us, p99.9"].map(of), [17.14, 19.8, 21.31]);
        assert!(parse_perftest("Function rdma_connect failed\n", test).is_err());
    }
}
