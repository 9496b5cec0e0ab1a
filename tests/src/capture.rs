//! Packet captures, and what tshark says about them.
//!
//! Wireshark's MPA dissector wants each FPDU to start where a segment starts or right behind
//! another FPDU; what a peer sends in odd pieces it cannot follow. So a verdict is asked for one
//! sender, and covers what that sender put on the wire.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{self, Running};

/// The kind of error of a capture that the machine was too busy for.
pub const DROPPED_PACKETS: io::ErrorKind = io::ErrorKind::InvalidData;

/// A tcpdump at work.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Running,
    file: PathBuf,
}

impl Capture {
    /// Starts to capture TCP to and from `port` on `interface` into the file `file`; returns once
    /// packets are seen.
    ///
    /// # Errors
    /// If tcpdump cannot be started or does not come up.
    pub fn start(interface: &str, port: u16, file: PathBuf) -> io::Result<Self> {
        let mut command = Command::new("tcpdump");
        command.arg(format!("tcp port {port}"));
        Self::spawn(command, interface, 0, file)
    }

    /// Starts to capture all TCP on `interface` of the network namespace `namespace`, at most
    /// `packets_max` packets.
    ///
    /// # Errors
    /// If tcpdump cannot be started or does not come up.
    pub fn start_in_namespace(
        namespace: &str,
        interface: &str,
        packets_max: u32,
        file: PathBuf,
    ) -> io::Result<Self> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, "tcpdump", "tcp"]);
        command.args(["-c", &packets_max.to_string()]);
        // Nothing is longer there, and the buffer has room for the more packets.
        Self::spawn(command, interface, 9216, file)
    }

    /// With at most `bytes_max` of each packet; 0: all that there can be.
    fn spawn(
        mut command: Command,
        interface: &str,
        bytes_max: u32,
        file: PathBuf,
    ) -> io::Result<Self> {
        // 64 MiB of buffer: with the usual 2 MiB in slots of the largest packet it loses packets.
        command.args(["-i", interface, "-n", "-B", "65536", "--immediate-mode", "-U"]);
        command.args(["-s", &bytes_max.to_string()]);
        command.args(["-Z", "root", "-w"]).arg(&file);
        let mut tcpdump = Running::start(&mut command, file.with_extension("log"))?;
        tcpdump.wait_for("listening on", Duration::from_secs(20))?;
        Ok(Self { tcpdump, file })
    }

    /// Ends the capture; returns the file.
    ///
    /// # Errors
    /// Of the kind [`DROPPED_PACKETS`] if packets were lost, so that no verdict could be trusted.
    pub fn stop(self) -> io::Result<PathBuf> {
        // What the kernel has already seen is still on its way through the buffer.
        std::thread::sleep(Duration::from_millis(300));
        self.tcpdump.interrupt()?;
        let ended = self.tcpdump.finish(Duration::from_secs(20))?;
        if ended.output.contains("\n0 packets dropped by kernel") {
            return Ok(self.file);
        }
        Err(io::Error::new(DROPPED_PACKETS, format!("the capture has gaps: {}", ended.output)))
    }
}

/// What tshark found in the packets of one sender.
#[derive(Clone, Debug, Default)]
pub struct Dissection {
    /// FPDUs whose CRC is right.
    pub good_crc: usize,
    /// FPDUs whose CRC is wrong.
    pub bad_crc: usize,
    /// RDMAP messages by the dissector's name for their opcode, one per segment of a message.
    pub segments: BTreeMap<String, usize>,
    /// Start-up frames.
    pub startup_frames: usize,
    /// Everything that is wrong: malformed packets, errors, bad IPv4 or TCP checksums.
    pub problems: Vec<String>,
}

impl Dissection {
    /// FPDUs, with and without CRC.
    #[must_use]
    pub fn fpdus(&self) -> usize {
        self.segments.values().sum()
    }

    /// Nothing is wrong and there was something to judge.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty() && self.bad_crc == 0 && self.good_crc > 0
    }
}

/// Has tshark decode what `sender` sent. With `checksums`, IPv4 and TCP checksums count too: not
/// for a kernel's packets captured before its card would have filled them in.
///
/// # Errors
/// If tshark cannot be run or refuses the file.
pub fn dissect(file: &Path, sender: IpAddr, checksums: bool) -> io::Result<Dissection> {
    let family = if sender.is_ipv4() { "ip" } else { "ipv6" };
    let mut command = Command::new("tshark");
    command.args(["-n", "-V", "-r"]).arg(file);
    command.args(["-Y", &format!("{family}.src == {sender}")]);
    // These two guess at the content of any Send and call ours malformed.
    command.args(["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"]);
    for option in ["tcp.check_checksum", "ip.check_checksum"] {
        command.args(["-o", &format!("{option}:{}", if checksums { "TRUE" } else { "FALSE" })]);
    }
    let ended = process::run(&mut command, Duration::from_secs(120))?;
    if !ended.success() {
        return Err(io::Error::other(format!("tshark: {}", ended.output)));
    }
    Ok(parse_dissection(&ended.output))
}

fn parse_dissection(text: &str) -> Dissection {
    let mut dissection = Dissection::default();
    let mut frame = "";
    for line in text.lines() {
        if line.starts_with("Frame ") {
            frame = line.split(':').next().unwrap_or_default();
        } else if line.contains("(Good CRC32)") {
            dissection.good_crc += 1;
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

/// What captures need and this machine lacks.
#[must_use]
pub fn missing_prerequisite() -> Option<&'static str> {
    if !process::is_installed("tcpdump") {
        return Some("no `tcpdump` program");
    }
    (!process::is_installed("tshark")).then_some("no `tshark` program")
}
