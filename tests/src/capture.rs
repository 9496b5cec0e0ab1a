//! Packet captures, and their dissection by tshark.
//!
//! Wireshark's MPA dissector requires each FPDU to start at the start of a segment or right after
//! another FPDU; it cannot follow a peer that splits FPDUs otherwise. So a dissection covers the
//! packets of one sender.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{self, Running};

/// Kind of the error of a capture in which the kernel dropped packets.
pub const DROPPED_PACKETS: io::ErrorKind = io::ErrorKind::InvalidData;

/// A running tcpdump.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Running,
    file: PathBuf,
}

impl Capture {
    /// Starts to capture TCP to and from `port` on `interface` into the file `file`; returns once
    /// the capture is active.
    ///
    /// # Errors
    /// If tcpdump cannot be started or does not start capturing.
    pub fn start(interface: &str, port: u16, file: PathBuf) -> io::Result<Self> {
        let mut command = Command::new("tcpdump");
        command.arg(format!("tcp port {port}"));
        Self::spawn(command, interface, 0, file)
    }

    /// Starts to capture all TCP on `interface` of the network namespace `namespace`, at most
    /// `packets_max` packets. On `any`, all interfaces, it captures packets that the host sends or
    /// forwards, each once.
    ///
    /// # Errors
    /// If tcpdump cannot be started or does not start capturing.
    pub fn start_in_namespace(
        namespace: &str,
        interface: &str,
        packets_max: u32,
        file: PathBuf,
    ) -> io::Result<Self> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, "tcpdump"]);
        command.arg(if interface == "any" { "tcp and outbound" } else { "tcp" });
        command.args(["-c", &packets_max.to_string()]);
        // Above the MTU there; with a smaller snapshot length the buffer holds more packets.
        Self::spawn(command, interface, 9216, file)
    }

    /// Starts tcpdump with the snapshot length `bytes_max`; 0: the maximum.
    fn spawn(
        mut command: Command,
        interface: &str,
        bytes_max: u32,
        file: PathBuf,
    ) -> io::Result<Self> {
        // 64 MiB of buffer: the default, 2 MiB in slots of the snapshot length, drops packets.
        command.args(["-i", interface, "-n", "-B", "65536", "--immediate-mode", "-U"]);
        command.args(["-s", &bytes_max.to_string()]);
        command.args(["-Z", "root", "-w"]).arg(&file);
        let mut tcpdump = Running::start(&mut command, file.with_extension("log"))?;
        tcpdump.wait_for("listening on", Duration::from_secs(20))?;
        Ok(Self { tcpdump, file })
    }

    /// Waits until tcpdump has written what is in the kernel's buffer, for at most 300 ms: on some
    /// interfaces it leaves out packets that the kernel counts.
    fn wait_for_packets(&self) -> io::Result<()> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            // tcpdump then prints both counts.
            self.tcpdump.signal("USR1")?;
            std::thread::sleep(Duration::from_millis(20));
            if are_all_written(&self.tcpdump.output()?) {
                break;
            }
        }
        Ok(())
    }

    /// Ends the capture; returns the file.
    ///
    /// # Errors
    /// An error of the kind [`DROPPED_PACKETS`] if packets were dropped: no check of the file is
    /// conclusive then.
    pub fn stop(self) -> io::Result<PathBuf> {
        self.wait_for_packets()?;
        self.tcpdump.interrupt()?;
        let result = self.tcpdump.finish(Duration::from_secs(20))?;
        if result.output.contains("\n0 packets dropped by kernel") {
            return Ok(self.file);
        }
        Err(io::Error::new(
            DROPPED_PACKETS,
            format!("the capture dropped packets: {}", result.output),
        ))
    }
}

/// True if tcpdump had written as many packets as the kernel had captured when it last printed both
/// numbers.
fn are_all_written(output: &str) -> bool {
    let numbers = |line: &str| {
        let (written, rest) = line.strip_prefix("tcpdump: ")?.split_once(" packets captured, ")?;
        let (received, _) = rest.split_once(" packets received by filter")?;
        Some(written == received)
    };
    output.lines().rev().find_map(numbers).unwrap_or(false)
}

/// Dissection of the packets of one sender by tshark.
#[derive(Clone, Debug, Default)]
pub struct Dissection {
    /// Number of FPDUs with a good CRC.
    pub good_crc: usize,
    /// Number of FPDUs with a bad CRC.
    pub bad_crc: usize,
    /// Number of DDP segments by the dissector's name of their RDMAP opcode.
    pub segments: BTreeMap<String, usize>,
    /// Number of MPA startup frames.
    pub startup_frames: usize,
    /// Problems: malformed packets, errors, bad IPv4 or TCP checksums.
    pub problems: Vec<String>,
}

impl Dissection {
    /// Returns the number of FPDUs, with and without CRC.
    #[must_use]
    pub fn fpdus(&self) -> usize {
        self.segments.values().sum()
    }

    /// True if there is an FPDU with a good CRC, and no problem.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty() && self.bad_crc == 0 && self.good_crc > 0
    }
}

/// Dissects the packets of `sender` with tshark. `checksums` checks IPv4 and TCP checksums too: not
/// possible for packets of a kernel captured before checksum offload.
///
/// # Errors
/// If tshark cannot be run or refuses the file.
pub fn dissect(file: &Path, sender: IpAddr, checksums: bool) -> io::Result<Dissection> {
    let family = if sender.is_ipv4() { "ip" } else { "ipv6" };
    let mut command = Command::new("tshark");
    command.args(["-n", "-V", "-r"]).arg(file);
    command.args(["-Y", &format!("{family}.src == {sender}")]);
    // These two dissect the payload of any Send heuristically, and report ours as malformed.
    command.args(["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"]);
    for option in ["tcp.check_checksum", "ip.check_checksum"] {
        command.args(["-o", &format!("{option}:{}", if checksums { "TRUE" } else { "FALSE" })]);
    }
    let result = process::run(&mut command, Duration::from_secs(120))?;
    if !result.success() {
        return Err(io::Error::other(format!("tshark: {}", result.output)));
    }
    Ok(parse_dissection(&result.output))
}

fn parse_dissection(text: &str) -> Dissection {
    let mut dissection = Dissection::default();
    let mut frame = "";
    // All ones, which is zero too in one's complement (RFC 1624): not wrong, though tshark says so.
    // Linux writes it for TCP when it computes a checksum for a device (CSUM_MANGLED_0).
    let mut is_other_zero = false;
    for line in text.lines() {
        if line.starts_with("Frame ") {
            frame = line.split(':').next().unwrap_or_default();
        } else if line.contains("(Good CRC32)") {
            dissection.good_crc += 1;
        } else if line.contains("Checksum: 0xffff [should be 0x0000") {
            is_other_zero = true;
        } else if line.contains("Checksum Status: Bad]") && std::mem::take(&mut is_other_zero) {
            // It is not wrong.
        } else if line.contains("(Bad CRC32") {
            dissection.bad_crc += 1;
        } else if line.contains("ID Req frame:") || line.contains("ID Rep frame:") {
            dissection.startup_frames += 1;
        } else if let Some((_, name)) = line.split_once("OpCode: ") {
            let name = name.split(" (").next().unwrap_or(name).to_owned();
            *dissection.segments.entry(name).or_default() += 1;
        } else if line.contains("Malformed")
            || line.contains("Expert Info (Error/")
            || line.contains("Status: Bad]")
        {
            dissection.problems.push(format!("{frame}: {}", line.trim()));
        }
    }
    dissection
}

/// Returns a prerequisite of captures that this machine lacks.
#[must_use]
pub fn missing_prerequisite() -> Option<&'static str> {
    if !process::is_installed("tcpdump") {
        return Some("no `tcpdump` program");
    }
    (!process::is_installed("tshark")).then_some("no `tshark` program")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_packets_are_compared_with_those_captured() {
        let line = |written: u32| {
            format!(
                "tcpdump: {written} packets captured, 12 packets received by filter, 0 packets \
                 dropped by kernel\n"
            )
        };
        assert!(!are_all_written("tcpdump: listening on lo\n"));
        assert!(!are_all_written(&line(9)));
        assert!(are_all_written(&(line(9) + &line(12))));
    }

    #[test]
    fn either_zero_is_a_good_checksum() {
        let problems = |line: &str| {
            let text = format!("Frame 7: 60 bytes\n    {line}\n    [Checksum Status: Bad]\n");
            parse_dissection(&text).problems.len()
        };
        assert_eq!(problems("Checksum: 0xffff [should be 0x0000 (see RFC 1624)]"), 0);
        assert_eq!(problems("Checksum: 0xffff incorrect, should be 0x1234"), 1);
        assert_eq!(problems("Checksum: 0x0001 incorrect, should be 0x0000"), 1);
    }
}
