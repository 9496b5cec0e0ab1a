//! The file of `--hdr`: an HdrHistogram log, one interval per size, in nanoseconds.

use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

/// Latencies of one run, and its time.
pub struct Interval {
    /// Start of the run, relative to the start of the log.
    pub start: Duration,
    /// Duration of the run.
    pub duration: Duration,
    /// Name of the interval: no comma, no space.
    pub tag: String,
    /// Latencies in nanoseconds.
    pub histogram: Histogram<u64>,
}

/// Returns a log in the HdrHistogram log format. `origin` is the start of the first interval.
///
/// # Errors
/// If a histogram cannot be encoded.
pub fn log(origin: SystemTime, intervals: &[Interval]) -> anyhow::Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("latencies in nanoseconds; the tag is test and bytes per message")
        .with_start_time(origin)
        .with_base_time(origin)
        // Maxima are shown in microseconds.
        .with_max_value_divisor(1000.0)
        .begin_log_with(&mut out, &mut serializer)
        .context("cannot begin the histogram log")?;
    for interval in intervals {
        log.write_histogram(
            &interval.histogram,
            interval.start,
            interval.duration,
            Tag::new(&interval.tag),
        )
        .map_err(|error| anyhow::anyhow!("cannot write the histogram log: {error:?}"))?;
    }
    drop(log);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn log_round_trips() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        histogram.record_n(1500, 99).unwrap();
        histogram.record(90_000).unwrap();
        let interval = Interval {
            start: Duration::from_secs(1),
            duration: Duration::from_millis(250),
            tag: "write-lat-64".to_owned(),
            histogram,
        };
        let bytes = log(SystemTime::now(), &[interval]).unwrap();

        let mut found = 0;
        for entry in IntervalLogIterator::new(&bytes) {
            let LogEntry::Interval(entry) = entry.unwrap() else { continue };
            found += 1;
            assert_eq!(entry.tag().unwrap().as_str(), "write-lat-64");
            let raw = decode_base64(entry.encoded_histogram());
            let decoded: Histogram<u64> = Deserializer::new().deserialize(&mut &raw[..]).unwrap();
            assert_eq!((decoded.len(), decoded.value_at_quantile(0.5)), (100, 1500));
        }
        assert_eq!(found, 1);
    }

    fn decode_base64(text: &str) -> Vec<u8> {
        let value = |c: u8| match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        let mut out = Vec::new();
        let (mut bits, mut count) = (0u32, 0);
        for c in text.bytes().filter(|&c| c != b'=') {
            bits = bits << 6 | u32::from(value(c));
            count += 6;
            if count >= 8 {
                count -= 8;
                out.push((bits >> count & 0xFF) as u8);
            }
        }
        out
    }
}
