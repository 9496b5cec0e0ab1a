//! Reports: counters of the emulated link, and errors of the emulator itself.

use std::fmt::Write as _;

use serde::Serialize;

use crate::iwlink::forward::Forwarder;

/// Counters of one direction.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DirectionReport {
    /// Ingress device.
    pub from: String,
    /// Egress device.
    pub to: String,
    /// Frames received.
    pub frames_in: u64,
    /// Bytes of these frames.
    #[serde(rename = "octets_in")]
    pub bytes_in: u64,
    /// Frames forwarded.
    pub frames_out: u64,
    /// Bytes of these frames.
    #[serde(rename = "octets_out")]
    pub bytes_out: u64,
    /// Dropped by random loss.
    pub lost: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Dropped because the packet exceeds the path MTU, or the frame is too long for the port.
    pub too_long: u64,
    /// Marked CE.
    pub marked: u64,
    /// Corrupted.
    pub corrupted: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// Delayed so that later frames overtake.
    pub reordered: u64,
    /// Errors of the emulator itself.
    pub own: EmulatorErrors,
}

/// Errors of the emulator itself. A measurement is valid only if all are zero, except for a small
/// lateness.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EmulatorErrors {
    /// Frames sent later than `--late` after their due time.
    pub late: u64,
    /// Maximum lateness, in microseconds.
    pub latest_us: u64,
    /// Frames dropped, or not duplicated, because no buffer was free.
    pub no_buffer: u64,
    /// Frames dropped because the egress port accepted none for a while.
    pub port_full: u64,
    /// Frames that the ports dropped, or could not receive because no mbuf was free.
    pub port_lost: u64,
}

impl EmulatorErrors {
    /// Returns the number of frames dropped by errors of the emulator.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.no_buffer + self.port_full + self.port_lost
    }
}

/// Returns the reports of both directions: left to right, right to left.
#[must_use]
pub fn collect(forwarder: &Forwarder) -> [DirectionReport; 2] {
    let ports = forwarder.ports();
    [0, 1].map(|index| {
        let (from, to) = (&ports[index], &ports[1 - index]);
        let (counters, late) = forwarder.counters(index);
        let (losses_in, losses_out) = (from.losses(), to.losses());
        DirectionReport {
            from: from.name().to_owned(),
            to: to.name().to_owned(),
            frames_in: counters.sent,
            bytes_in: counters.sent_bytes,
            frames_out: counters.arrived,
            bytes_out: counters.arrived_bytes,
            lost: counters.lost,
            overflowed: counters.overflowed,
            too_long: counters.too_long + to.counters().too_long,
            marked: counters.marked,
            corrupted: counters.corrupted,
            duplicated: counters.duplicated,
            reordered: counters.reordered,
            own: EmulatorErrors {
                late: late.count,
                latest_us: late.max_ns / 1000,
                no_buffer: counters.no_buffer + from.counters().not_copied,
                port_full: to.counters().overrun,
                port_lost: losses_in.missed
                    + losses_in.no_buffer
                    + losses_in.rx_errors
                    + losses_out.tx_errors,
            },
        }
    })
}

/// Returns the table printed on exit.
#[must_use]
pub fn table(ways: &[DirectionReport; 2], late_after_ns: u64) -> String {
    let mut text = format!("{:28}{:>16}{:>16}\n", "", "left to right", "right to left");
    let mut line = |name: &str, value: fn(&DirectionReport) -> u64| {
        let _ = writeln!(text, "{name:28}{:>16}{:>16}", value(&ways[0]), value(&ways[1]));
    };
    line("frames in", |way| way.frames_in);
    line("bytes in", |way| way.bytes_in);
    line("lost", |way| way.lost);
    line("dropped, queue full", |way| way.overflowed);
    line("dropped, too long", |way| way.too_long);
    line("marked", |way| way.marked);
    line("corrupted", |way| way.corrupted);
    line("duplicated", |way| way.duplicated);
    line("reordered", |way| way.reordered);
    line("frames out", |way| way.frames_out);
    line("bytes out", |way| way.bytes_out);
    let late_after_us = late_after_ns / 1000;
    text.push_str("emulator errors\n");
    let mut line = |name: &str, value: fn(&EmulatorErrors) -> u64| {
        let [a, b] = [0, 1].map(|index| value(&ways[index].own));
        let _ = writeln!(text, "  {name:26}{a:>16}{b:>16}");
    };
    line(&format!("late by more than {late_after_us} us"), |own| own.late);
    line("latest, us", |own| own.latest_us);
    line("dropped, no buffer", |own| own.no_buffer);
    line("dropped, port full", |own| own.port_full);
    line("dropped by the ports", |own| own.port_lost);
    text
}

/// Heading of the lines of `--report`.
pub const HEADING: &str = "          | left to right                             \
                           | right to left\n  \
                           seconds |    Mb/s  frames/s    lost    full    late \
                           |    Mb/s  frames/s    lost    full    late";

/// Returns one line of `--report`: the changes between two reports, `seconds` apart.
#[must_use]
pub fn line(
    at_seconds: f64,
    seconds: f64,
    before: &[DirectionReport; 2],
    now: &[DirectionReport; 2],
) -> String {
    let mut text = format!("{at_seconds:>9.1}");
    for (before, now) in before.iter().zip(now) {
        let per_second = |before: u64, now: u64| (now - before) as f64 / seconds;
        let _ = write!(
            text,
            " |{:>8.1}{:>10.0}{:>8}{:>8}{:>8}",
            per_second(before.bytes_out, now.bytes_out) * 8e-6,
            per_second(before.frames_out, now.frames_out),
            now.lost - before.lost,
            now.overflowed - before.overflowed,
            now.own.late - before.own.late + now.own.dropped() - before.own.dropped(),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_line_aligns_with_heading() {
        let before = [DirectionReport::default(), DirectionReport::default()];
        let mut now = before.clone();
        now[0].bytes_out = 125_000_000;
        now[0].lost = 7;
        now[1].own.late = 3;
        let line = line(2.0, 2.0, &before, &now);
        let heading: Vec<usize> =
            HEADING.lines().nth(1).unwrap().match_indices('|').map(|(at, _)| at).collect();
        let found: Vec<usize> = line.match_indices('|').map(|(at, _)| at).collect();
        assert_eq!(heading, found, "\n{HEADING}\n{line}");
        assert!(line.contains("   500.0"), "{line}");
        assert!(line.ends_with("  3"), "{line}");
        let first: Vec<usize> =
            HEADING.lines().next().unwrap().match_indices('|').map(|(at, _)| at).collect();
        assert_eq!(first, found, "\n{HEADING}\n{line}");
    }

    #[test]
    fn table_lists_every_counter() {
        let mut ways = [DirectionReport::default(), DirectionReport::default()];
        ways[1].own.latest_us = 1234;
        let table = table(&ways, 200_000);
        assert!(table.contains("late by more than 200 us"), "{table}");
        assert!(
            table.contains("  latest, us                               0            1234"),
            "{table}"
        );
        assert!(table.lines().skip(1).all(|line| line.len() == 60 || line == "emulator errors"));
    }
}
