//! Writer of pcap files with Ethernet frames, which Wireshark reads.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::time::Duration;

/// Magic number of a file with times in nanoseconds, version 2.4, and two words that are zero.
const BEGIN: [u32; 4] = [0xa1b2_3c4d, 4 << 16 | 2, 0, 0];
/// Longest frame, and the link type of Ethernet.
const END: [u32; 2] = [1 << 16, 1];

/// A capture file; numbers are little-endian.
#[derive(Debug)]
pub struct PcapWriter(BufWriter<File>);

impl PcapWriter {
    /// Creates the file.
    ///
    /// # Errors
    /// I/O errors.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut writer = Self(BufWriter::new(File::create(path)?));
        writer.write_words(BEGIN.iter().chain(&END))?;
        Ok(writer)
    }

    /// Appends a frame, captured at `time` since the epoch.
    ///
    /// # Errors
    /// I/O errors, and a frame or time that the format cannot hold.
    pub fn write(&mut self, time: Duration, frame: &[u8]) -> io::Result<()> {
        let seconds = u32::try_from(time.as_secs()).map_err(io::Error::other)?;
        let len = u32::try_from(frame.len()).map_err(io::Error::other)?;
        self.write_words([seconds, time.subsec_nanos(), len, len].iter())?;
        self.0.write_all(frame)?;
        self.0.flush()
    }

    fn write_words<'a>(&mut self, words: impl Iterator<Item = &'a u32>) -> io::Result<()> {
        words.into_iter().try_for_each(|word| self.0.write_all(&word.to_le_bytes()))
    }
}
