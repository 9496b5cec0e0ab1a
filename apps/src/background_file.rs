//! An output file that a thread writes.
//!
//! A write to a pipe, a terminal or a network file system may block for as long as the other side
//! likes. The thread that polls a device goes on meanwhile.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::Context as _;

use crate::output_file::OutputFile;

/// A new file, a pipe or a device, and the thread that writes it.
///
/// Dropping it does not wait for the thread, which may be stuck.
#[derive(Debug)]
pub struct BackgroundFile {
    file: OutputFile,
    filled: Sender<Vec<u8>>,
    written: Receiver<io::Result<Vec<u8>>>,
    free: Vec<Vec<u8>>,
    /// Buffers that are not written yet.
    pending: usize,
}

impl BackgroundFile {
    /// Opens a file as [`OutputFile::create_new`], with so many buffers.
    ///
    /// # Errors
    /// As [`OutputFile::create_new`], and if no thread can be started.
    pub fn create_new(path: &Path, buffers: usize) -> anyhow::Result<Self> {
        let file = OutputFile::create_new(path)?;
        let mut writer = file.writer()?;
        let (filled, chunks) = channel::<Vec<u8>>();
        let (done, written) = channel();
        let write = move || {
            for chunk in chunks {
                let outcome = writer.write_all(&chunk).map(|()| chunk);
                let has_failed = outcome.is_err();
                if done.send(outcome).is_err() || has_failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("output".into());
        thread.spawn(write).context("cannot start a thread: raise ulimit -u")?;
        Ok(Self { file, filled, written, free: vec![Vec::new(); buffers], pending: 0 })
    }

    /// Returns a buffer to fill, unless all are waiting to be written.
    ///
    /// # Errors
    /// If the file cannot be written; one line that names it.
    pub fn take_buffer(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        self.collect()?;
        Ok(self.free.pop())
    }

    /// Appends the contents of a buffer.
    pub fn write(&mut self, buffer: Vec<u8>) {
        self.pending += 1;
        // The thread ends after an error, which is collected next.
        let _ = self.filled.send(buffer);
    }

    /// True if all bytes are written.
    ///
    /// # Errors
    /// As [`Self::take_buffer`].
    pub fn is_written(&mut self) -> anyhow::Result<bool> {
        self.collect()?;
        Ok(self.pending == 0)
    }

    /// Gives a new file, which is written, its name.
    ///
    /// # Errors
    /// As [`OutputFile::complete`].
    pub fn complete(self) -> anyhow::Result<()> {
        self.file.complete()
    }

    fn collect(&mut self) -> anyhow::Result<()> {
        while let Ok(written) = self.written.try_recv() {
            self.free.push(self.file.check(written)?);
            self.pending -= 1;
        }
        Ok(())
    }
}
