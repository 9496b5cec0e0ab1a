//! Checks a case's packets with Wireshark's dissectors.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::{self, Write as _};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::capture;
use crate::interop::case::{Case, failure};
use crate::process;

/// Flags of the TCP analysis: the last parts of `tcp.analysis.*`. `window_update` is left out: a
/// receiver should send window updates.
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

/// Error of a capture whose only problem is that segments of ours were lost. A guest that is
/// emulated on a busy machine may lose one, so a single such capture is not conclusive; a defect of
/// the stack shows in the next one too.
#[derive(Debug)]
pub struct LostSegments(String);

impl LostSegments {
    /// True if this is the reason of `error`.
    #[must_use]
    pub fn is_reason_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|reason| reason.is::<Self>())
    }
}

impl fmt::Display for LostSegments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for LostSegments {}

/// TCP analysis of a capture.
#[derive(Clone, Debug, Default)]
pub struct TcpAnalysis {
    /// For each flag, the number of our segments that have it, and the first such frame.
    pub ours: BTreeMap<&'static str, (usize, u64)>,
    /// Segments of the peer that are retransmitted or out-of-order.
    pub peer_retransmits: usize,
    /// Our retransmissions.
    retransmissions: Vec<Retransmission>,
}

/// A retransmission of ours, and how the peer acknowledged it.
#[derive(Clone, Copy, Debug)]
struct Retransmission {
    frame: u64,
    stream: u32,
    /// Relative sequence numbers of the first byte and of the byte after the last.
    bytes: (u64, u64),
    /// TSval of the retransmission.
    sent_at: Option<u32>,
    /// First acknowledgment of all its bytes.
    acked_by: Option<Acknowledgment>,
    /// Spurious: the peer had received the data before.
    is_spurious: bool,
}

/// Identity of an acknowledgment in a capture.
#[derive(Clone, Copy, Debug)]
struct Acknowledgment {
    frame: u64,
    echo: Option<u32>,
}

impl Retransmission {
    /// Returns the acknowledgment of a retransmission of lost bytes.
    fn acked_lost_bytes(&self) -> Option<Acknowledgment> {
        self.acked_by.filter(|_| !self.is_spurious)
    }
}

/// Flags of retransmissions.
const RETRANSMIT_FLAGS: [&str; 4] =
    ["retransmission", "fast_retransmission", "spurious_retransmission", "out_of_order"];

impl TcpAnalysis {
    /// True if only flags of retransmissions are unexplained.
    #[must_use]
    pub fn has_lost_alone(&self, explained: &[&str]) -> bool {
        let with_retransmissions = [explained, &RETRANSMIT_FLAGS].concat();
        self.unexplained(&with_retransmissions).is_empty()
    }

    /// Returns the flags explained neither by the case, nor by the peer:
    ///
    /// - an emulated guest pauses for some milliseconds now and then; we then retransmit though
    ///   nothing was lost, which the guest reports by D-SACK, or by echoing the timestamp of the
    ///   original transmission. One D-SACK block may report several retransmissions: the guest
    ///   merges consecutive segments of a burst (GRO), and it sends one ACK, with the last D-SACK
    ///   block alone, for all segments received while the application holds the socket's lock;
    /// - a segment retransmitted by the peer is acknowledged again at once.
    #[must_use]
    pub fn unexplained(&self, explained: &[&str]) -> Vec<String> {
        let mut lost = self
            .retransmissions
            .iter()
            .filter_map(|sent| sent.acked_lost_bytes().map(|acked_by| (sent, acked_by)));
        let first_lost = lost.next();
        let mut problems = Vec::new();
        for (flag, (count, first)) in &self.ours {
            let is_explained = match *flag {
                "duplicate_ack" => *count <= self.peer_retransmits,
                flag if RETRANSMIT_FLAGS.contains(&flag) => first_lost.is_none(),
                _ => false,
            };
            if !is_explained && !explained.contains(flag) {
                let mut problem = format!("{count} of our segments: {flag} (first: {first}");
                if let Some((sent, acked_by)) =
                    first_lost.filter(|_| RETRANSMIT_FLAGS.contains(flag))
                {
                    let (from, to) = sent.bytes;
                    let _ = write!(
                        problem,
                        "; lost: {from} to {to} in {}, TSval {:?}; acknowledged in {}, TSecr {:?}",
                        sent.frame, sent.sent_at, acked_by.frame, acked_by.echo
                    );
                }
                problems.push(problem + ")");
            }
        }
        problems
    }

    /// Applies ACK, D-SACK and timestamp echo of a peer's segment to our retransmissions.
    fn on_peer_segment(&mut self, segment: &SegmentRow) {
        let is_reported = |sent: &Retransmission| {
            let (from, to) = sent.bytes;
            segment.dsack.is_some_and(|(left, right)| left < to && from < right)
        };
        let mut of_stream: Vec<_> =
            self.retransmissions.iter_mut().filter(|sent| sent.stream == segment.stream).collect();
        let reports_duplicate = of_stream.iter().any(|sent| is_reported(sent));
        for retransmission in &mut of_stream {
            retransmission.is_spurious |= is_reported(retransmission);
            if retransmission.acked_by.is_none() && segment.ack >= retransmission.bytes.1 {
                let SegmentRow { frame, echo, .. } = *segment;
                retransmission.acked_by = Some(Acknowledgment { frame, echo });
                let stamps = segment.echo.zip(retransmission.sent_at);
                retransmission.is_spurious |= reports_duplicate
                    || stamps.is_some_and(|(echo, sent)| echo.wrapping_sub(sent).cast_signed() < 0);
            }
        }
    }
}

/// Checks the packets that `ours` sent in `file`: no malformed packet, no wrong checksum, no FPDU
/// with a bad CRC, and no unexplained flag of the TCP analysis. Returns a short summary.
///
/// # Errors
/// With the first few problems; [`LostSegments`] if that is all.
pub fn check_capture(case: &Case, file: &Path, ours: IpAddr) -> io::Result<String> {
    // Both at once: a run of tshark takes a quarter of a second or more.
    let (dissection, analysis) = thread::scope(|scope| {
        let analysis = scope.spawn(|| analyze(file, ours));
        (capture::dissect(file, ours, true), analysis.join().expect("it does not panic"))
    });
    let (dissection, analysis) = (dissection?, analysis?);
    let mut problems = dissection.problems.clone();
    if dissection.bad_crc > 0 {
        problems.push(format!("{} FPDUs with a bad CRC", dissection.bad_crc));
    }
    if case.has_fpdus && dissection.fpdus() == 0 {
        problems.push("no FPDU of ours was captured".into());
    }
    let explained = &case.expected_analysis;
    let has_lost_alone = problems.is_empty() && analysis.has_lost_alone(explained);
    problems.extend(analysis.unexplained(explained));
    if !problems.is_empty() {
        problems.truncate(5);
        let text = format!("packets: {}", problems.join("; "));
        let lost = has_lost_alone.then(|| io::Error::other(LostSegments(text.clone())));
        return Err(lost.unwrap_or_else(|| failure(text)));
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

/// Runs the TCP analysis of the segments of `ours` and its peer.
///
/// # Errors
/// If tshark cannot be run or refuses the file.
pub fn analyze(file: &Path, ours: IpAddr) -> io::Result<TcpAnalysis> {
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
    let result = process::run(&mut command, Duration::from_secs(120))?;
    if !result.success() {
        return Err(failure(format!("tshark: {}", result.output)));
    }
    Ok(read(&result.output, ours))
}

/// Fields printed for each segment, after its source address.
const FIELDS: [&str; 9] = [
    "frame.number",
    "tcp.stream",
    "tcp.seq",
    "tcp.nxtseq",
    "tcp.ack",
    "tcp.options.timestamp.tsval",
    "tcp.options.timestamp.tsecr",
    "tcp.options.sack.dsack_le",
    "tcp.options.sack.dsack_re",
];

/// A segment parsed from tshark's fields.
#[derive(Clone, Debug)]
struct SegmentRow {
    is_ours: bool,
    frame: u64,
    stream: u32,
    bytes: (u64, u64),
    ack: u64,
    stamp: Option<u32>,
    echo: Option<u32>,
    /// Edges of the D-SACK block.
    dsack: Option<(u64, u64)>,
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
            dsack: number(8).zip(number(9)),
            flags: flags.filter(|(_, value)| !value.is_empty()).map(|(flag, _)| flag).collect(),
        })
    }
}

fn read(text: &str, ours: IpAddr) -> TcpAnalysis {
    let mut analysis = TcpAnalysis::default();
    for line in text.lines().filter_map(|line| SegmentRow::read(line, ours)) {
        let is_retransmit = line.flags.iter().any(|flag| RETRANSMIT_FLAGS.contains(flag));
        if !line.is_ours {
            analysis.peer_retransmits += usize::from(is_retransmit);
            analysis.on_peer_segment(&line);
            continue;
        }
        for flag in &line.flags {
            analysis.ours.entry(flag).or_insert((0, line.frame)).0 += 1;
        }
        if is_retransmit {
            let SegmentRow { frame, stream, bytes, stamp: sent_at, .. } = line;
            analysis.retransmissions.push(Retransmission {
                frame,
                stream,
                bytes,
                sent_at,
                acked_by: None,
                is_spurious: false,
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

    /// Returns a line of tshark's output.
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
        // Sequence numbers from and to, acknowledgment, timestamp, echo, edges of the D-SACK.
        text += &line(OURS, 1, "100|140|1|7000|50||", &[]);
        text += &line(OURS, 2, "100|140|1|7900|50||", &["retransmission"]);
        let pending = text.clone();
        assert_eq!(unexplained_of(&pending, &[]), [""; 0], "not acknowledged yet");
        // By D-SACK.
        text += &line(THEIRS, 3, "1|1|140|51|7900|100|140", &[]);
        assert_eq!(unexplained_of(&text, &[]), [""; 0]);
        // By the timestamp of the original transmission.
        let echoed = pending.clone() + &line(THEIRS, 3, "1|1|140|51|7000||", &[]);
        assert_eq!(unexplained_of(&echoed, &[]), [""; 0]);
        // By neither: it was lost.
        let lost = pending.clone() + &line(THEIRS, 3, "1|1|140|51|7900||", &[]);
        let problem = "1 of our segments: retransmission (first: 2; lost: 100 to 140 in 2, \
                       TSval Some(7900); acknowledged in 3, TSecr Some(7900))";
        assert_eq!(unexplained_of(&lost, &[]), [problem]);
        assert_eq!(unexplained_of(&lost, &["retransmission"]), [""; 0]);
        let lost_alone = |text: &str| read(text, OURS.parse().unwrap()).has_lost_alone(&[]);
        assert!(lost_alone(&lost));
        assert!(!lost_alone(
            &(lost.clone() + &line(OURS, 4, "140|140|1|8000|51||", &["zero_window"]))
        ));
        // Two retransmissions, which the peer merges and reports by one D-SACK.
        let merged = pending.clone()
            + &line(OURS, 3, "140|200|1|7900|50||", &["out_of_order"])
            + &line(THEIRS, 4, "1|1|200|51|7900|100|200", &[]);
        assert_eq!(unexplained_of(&merged, &[]), [""; 0]);
        // The one ACK of both reports the last.
        let last_only = merged.replace("|100|200|", "|140|200|");
        assert_eq!(unexplained_of(&last_only, &[]), [""; 0]);
        let other_part = merged.replace("|100|200|", "|200|240|");
        assert_eq!(unexplained_of(&other_part, &[]).len(), 2, "a D-SACK of other bytes");
        // ACKs of another stream are ignored.
        let other = pending + &line(THEIRS, 3, "1|1|140|51|7900||", &[]).replace("|3|0|", "|3|1|");
        assert!(read(&other, OURS.parse().unwrap()).retransmissions[0].acked_by.is_none());
    }

    #[test]
    fn dup_acks_are_matched_to_peer_retransmits() {
        let mut text = line(THEIRS, 1, "100|140|1|7000|50||", &["spurious_retransmission"]);
        text += &line(OURS, 2, "1|1|140|51|7000||", &["duplicate_ack"]);
        assert_eq!(unexplained_of(&text, &[]), [""; 0]);
        text += &line(OURS, 3, "1|1|140|51|7000||", &["duplicate_ack"]);
        text += &line(OURS, 4, "1|1|140|51|7000||", &["zero_window"]);
        assert_eq!(unexplained_of(&text, &[]).len(), 2);
        assert_eq!(unexplained_of(&text, &["duplicate_ack"]).len(), 1);
    }
}
