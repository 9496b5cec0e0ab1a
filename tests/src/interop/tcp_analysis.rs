//! What Wireshark's dissectors say of a case's packets.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::capture;
use crate::interop::case::{Case, failure};
use crate::process;

/// What TCP's analysis can say of a segment: the ends of `tcp.analysis.*`. A window update is not
/// among them: a receiver that makes room is to say so.
pub const FLAGS: [&str; 16] = [
    "retransmission",
    "fast_retransmission",
    "spurious_retransmission",
    "out_of_order",
    "duplicate_ack",
    "lost_segment",
    "ack_lost_segment",
    "reused_ports",
    "window_full",
    "zero_window",
    "zero_window_probe",
    "zero_window_probe_ack",
    "keep_alive",
    "keep_alive_ack",
    "tfo_syn",
    "tfo_ack",
];

/// What TCP's analysis says of a capture's conversations.
#[derive(Clone, Debug, Default)]
pub struct TcpAnalysis {
    /// Our segments of each flag, and the first such frame.
    pub ours: BTreeMap<&'static str, (usize, u64)>,
    /// Segments of the peer that came again, or out of order.
    pub peer_retransmits: usize,
    /// What we sent again.
    retransmissions: Vec<Retransmission>,
}

/// Bytes that we sent again, and what the peer said of them.
#[derive(Clone, Copy, Debug)]
struct Retransmission {
    stream: u32,
    /// Sequence numbers from the first byte to behind the last, counted from the stream's first.
    bytes: (u64, u64),
    /// The timestamp they went with this time.
    sent_at: Option<u32>,
    /// They have been acknowledged.
    is_acked: bool,
    /// The peer had them already.
    is_spurious: bool,
}

/// Flags of what is sent again.
const RETRANSMIT_FLAGS: [&str; 4] =
    ["retransmission", "fast_retransmission", "spurious_retransmission", "out_of_order"];

impl TcpAnalysis {
    /// What is left to complain of, once the case and the peer have explained their part:
    ///
    /// - an emulated guest stands still for some milliseconds now and then; our tail probe then
    ///   goes out though nothing was lost, and the guest says so by D-SACK, or by acknowledging
    ///   the bytes with the timestamp of their first time;
    /// - a segment that the peer sends again is acknowledged again at once.
    #[must_use]
    pub fn unexplained(&self, explained: &[&str]) -> Vec<String> {
        let is_lost = |again: &&Retransmission| again.is_acked && !again.is_spurious;
        let lost = self.retransmissions.iter().filter(is_lost).count();
        let mut complaints = Vec::new();
        for (flag, (count, first)) in &self.ours {
            let is_answered = match *flag {
                "duplicate_ack" => *count <= self.peer_retransmits,
                flag if RETRANSMIT_FLAGS.contains(&flag) => lost == 0,
                _ => false,
            };
            if !is_answered && !explained.contains(flag) {
                complaints.push(format!("{count} of our segments: {flag} (first: {first})"));
            }
        }
        complaints
    }

    /// A segment of the peer tells what became of what we sent again.
    fn on_peer_segment(&mut self, segment: &SegmentRow) {
        for again in self.retransmissions.iter_mut().filter(|again| again.stream == segment.stream)
        {
            let (from, to) = again.bytes;
            again.is_spurious |= segment.dsack.is_some_and(|edge| (from..to).contains(&edge));
            if !again.is_acked && segment.ack >= to {
                again.is_acked = true;
                let stamps = segment.echo.zip(again.sent_at);
                again.is_spurious |=
                    stamps.is_some_and(|(echo, sent)| echo.wrapping_sub(sent).cast_signed() < 0);
            }
        }
    }
}

/// Judges what `ours` sent in the packets of `file`: no malformed packet, no wrong checksum, no
/// FPDU with a bad CRC, and nothing in TCP's analysis that is not explained. In a few words what
/// there was.
///
/// # Errors
/// With everything that is wrong.
pub fn check_capture(case: &Case, file: &Path, ours: IpAddr) -> io::Result<String> {
    let dissection = capture::dissect(file, ours, true)?;
    let mut complaints = dissection.problems.clone();
    if dissection.bad_crc > 0 {
        complaints.push(format!("{} FPDUs with a bad CRC", dissection.bad_crc));
    }
    if case.has_fpdus && dissection.fpdus() == 0 {
        complaints.push("no FPDU of ours was captured".into());
    }
    let analysis = analyse(file, ours)?;
    complaints.extend(analysis.unexplained(&case.expected_analysis));
    if !complaints.is_empty() {
        complaints.truncate(5);
        return Err(failure(format!("packets: {}", complaints.join("; "))));
    }
    let mut summary = format!("{} FPDUs", dissection.fpdus());
    if dissection.good_crc < dissection.fpdus() {
        let _ = write!(summary, " ({} with CRC)", dissection.good_crc);
    }
    for (flag, (count, _)) in &analysis.ours {
        let _ = write!(summary, ", {count} {flag}");
    }
    Ok(summary)
}

/// TCP's analysis of what `ours` and its peer sent.
///
/// # Errors
/// If tshark cannot be run or refuses the file.
pub fn analyse(file: &Path, ours: IpAddr) -> io::Result<TcpAnalysis> {
    let family = if ours.is_ipv4() { "ip" } else { "ipv6" };
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(file);
    command.args(["-Y", "tcp", "-T", "fields", "-E", "separator=|", "-E", "occurrence=f"]);
    command.args(["-e", &format!("{family}.src")]);
    for field in FIELDS {
        command.args(["-e", field]);
    }
    for flag in FLAGS {
        command.args(["-e", &format!("tcp.analysis.{flag}")]);
    }
    let ended = process::run(&mut command, Duration::from_secs(120))?;
    if !ended.success() {
        return Err(failure(format!("tshark: {}", ended.output)));
    }
    Ok(read(&ended.output, ours))
}

/// What is asked for of each segment, behind its source.
const FIELDS: [&str; 8] = [
    "frame.number",
    "tcp.stream",
    "tcp.seq",
    "tcp.nxtseq",
    "tcp.ack",
    "tcp.options.timestamp.tsval",
    "tcp.options.timestamp.tsecr",
    "tcp.options.sack.dsack_le",
];

/// A segment, as tshark's fields tell of it.
#[derive(Clone, Debug)]
struct SegmentRow {
    is_ours: bool,
    frame: u64,
    stream: u32,
    bytes: (u64, u64),
    ack: u64,
    stamp: Option<u32>,
    echo: Option<u32>,
    dsack: Option<u64>,
    flags: Vec<&'static str>,
}

impl SegmentRow {
    fn read(text: &str, ours: IpAddr) -> Option<Self> {
        let fields: Vec<&str> = text.split('|').collect();
        let source: IpAddr = fields.first()?.parse().ok()?;
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let stamp = |at| number(at).and_then(|value| u32::try_from(value).ok());
        let flags = FLAGS.into_iter().zip(fields.get(1 + FIELDS.len()..)?);
        let seq = number(3)?;
        Some(Self {
            is_ours: source == ours,
            frame: number(1)?,
            stream: stamp(2)?,
            bytes: (seq, number(4).unwrap_or(seq)),
            ack: number(5).unwrap_or(0),
            stamp: stamp(6),
            echo: stamp(7),
            dsack: number(8),
            flags: flags.filter(|(_, value)| !value.is_empty()).map(|(flag, _)| flag).collect(),
        })
    }
}

fn read(text: &str, ours: IpAddr) -> TcpAnalysis {
    let mut analysis = TcpAnalysis::default();
    for line in text.lines().filter_map(|line| SegmentRow::read(line, ours)) {
        let is_again = line.flags.iter().any(|flag| RETRANSMIT_FLAGS.contains(flag));
        if !line.is_ours {
            analysis.peer_retransmits += usize::from(is_again);
            analysis.on_peer_segment(&line);
            continue;
        }
        for flag in &line.flags {
            analysis.ours.entry(flag).or_insert((0, line.frame)).0 += 1;
        }
        if is_again {
            let SegmentRow { stream, bytes, stamp: sent_at, .. } = line;
            let (is_settled, is_needless) = (false, false);
            analysis.retransmissions.push(Retransmission {
                stream,
                bytes,
                sent_at,
                is_acked: is_settled,
                is_spurious: is_needless,
            });
        }
    }
    analysis
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "198.18.0.1";
    const THEIRS: &str = "198.18.0.2";

    /// A line of tshark: who, which frame, what else.
    fn line(from: &str, frame: u64, rest: &str, flags: &[&str]) -> String {
        let marks: Vec<_> =
            FLAGS.iter().map(|flag| if flags.contains(flag) { "1" } else { "" }).collect();
        format!("{from}|{frame}|0|{rest}|{}\n", marks.join("|"))
    }

    fn unexplained_of(text: &str, explained: &[&str]) -> Vec<String> {
        read(text, OURS.parse().unwrap()).unexplained(explained)
    }

    #[test]
    fn spurious_retransmission_is_accepted() {
        let mut text = String::from("Running as user \"root\".\n");
        // Sequence numbers from and to, acknowledgement, timestamp, echo, D-SACK.
        text += &line(OURS, 1, "100|140|1|7000|50|", &[]);
        text += &line(OURS, 2, "100|140|1|7900|50|", &["retransmission"]);
        let pending = text.clone();
        assert_eq!(unexplained_of(&pending, &[]), [""; 0], "nothing is known of it");
        // By D-SACK.
        text += &line(THEIRS, 3, "1|1|140|51|7900|100", &[]);
        assert_eq!(unexplained_of(&text, &[]), [""; 0]);
        // By the timestamp of the first time.
        let echoed = pending.clone() + &line(THEIRS, 3, "1|1|140|51|7000|", &[]);
        assert_eq!(unexplained_of(&echoed, &[]), [""; 0]);
        // By neither: it was lost.
        let lost = pending.clone() + &line(THEIRS, 3, "1|1|140|51|7900|", &[]);
        assert_eq!(unexplained_of(&lost, &[]).len(), 1);
        assert_eq!(unexplained_of(&lost, &["retransmission"]), [""; 0]);
        // What a peer says in another stream counts for nothing.
        let other = pending + &line(THEIRS, 3, "1|1|140|51|7900|", &[]).replace("|3|0|", "|3|1|");
        assert!(!read(&other, OURS.parse().unwrap()).retransmissions[0].is_acked);
    }

    #[test]
    fn dup_acks_are_matched_to_peer_retransmits() {
        let mut text = line(THEIRS, 1, "100|140|1|7000|50|", &["spurious_retransmission"]);
        text += &line(OURS, 2, "1|1|140|51|7000|", &["duplicate_ack"]);
        assert_eq!(unexplained_of(&text, &[]), [""; 0]);
        text += &line(OURS, 3, "1|1|140|51|7000|", &["duplicate_ack"]);
        text += &line(OURS, 4, "1|1|140|51|7000|", &["zero_window"]);
        assert_eq!(unexplained_of(&text, &[]).len(), 2);
        assert_eq!(unexplained_of(&text, &["duplicate_ack"]).len(), 1);
    }
}
