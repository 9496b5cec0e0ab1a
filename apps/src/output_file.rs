//! Files that a program writes: opened before its run, and complete or untouched after it.
//!
//! An existing file is written in place, so links to it, its mode and its owner stay as they are. A
//! new one has no name until it is complete. Pipes and devices are written as they are, and
//! standard output through its own descriptor: `-`, `/dev/stdout`, or the file that it is
//! redirected to.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};
use nix::unistd::linkat;

use crate::{output, stop};

/// Interval between two looks at a named pipe without a reader.
const FIFO_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A file to be written. Without [`complete`](Self::complete) or [`replace`](Self::replace) an
/// existing one keeps its contents, and a new one does not appear.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    file: File,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Standard output.
    Stdout,
    /// Standard error, a pipe or a device.
    Stream,
    /// A regular file that existed.
    Existing,
    /// A new file without a name.
    Unnamed,
    /// A new file of this name, to be removed unless it is complete, where the file system needs a
    /// name.
    Named(PathBuf),
    /// A new file that is complete.
    Complete,
}

impl OutputFile {
    /// Opens a file that will be created or replaced.
    ///
    /// # Errors
    /// If it cannot be written; one line that names it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        Self::open_any(path).with_context(|| cannot_write(path))
    }

    /// Opens a file that may exist only as a pipe or a device.
    ///
    /// # Errors
    /// As [`OutputFile::open`], and if there is a file already.
    pub fn create_new(path: &Path) -> anyhow::Result<Self> {
        let file = match path.symlink_metadata() {
            Ok(_) => match path.metadata() {
                Ok(meta) if !meta.is_file() || is_stdio(&meta, io::stdout().as_fd()) => {
                    Self::open(path)?
                }
                _ if path == Path::new("-") => Self::open(path)?,
                _ => {
                    let error = io::Error::from(Errno::EEXIST);
                    return Err(error).with_context(|| cannot_write(path));
                }
            },
            Err(_) => Self::open(path)?,
        };
        Ok(file)
    }

    fn open_any(path: &Path) -> anyhow::Result<Self> {
        let new = |file, kind| Self { path: path.to_owned(), file, kind };
        if path == Path::new("-") {
            return Ok(new(duplicate(io::stdout().as_fd())?, Kind::Stdout).taking_stdout());
        }
        let meta = match path.metadata() {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return create(path),
            Err(error) => return Err(error.into()),
        };
        // Through its own descriptor: another one would have an offset of its own, and a socket
        // cannot be opened.
        if is_stdio(&meta, io::stdout().as_fd()) {
            return Ok(new(duplicate(io::stdout().as_fd())?, Kind::Stdout).taking_stdout());
        }
        if is_stdio(&meta, io::stderr().as_fd()) {
            return Ok(new(duplicate(io::stderr().as_fd())?, Kind::Stream));
        }
        if meta.file_type().is_fifo() {
            return Ok(new(open_fifo(path)?, Kind::Stream));
        }
        let file = options().open(path)?;
        Ok(new(file, if meta.is_file() { Kind::Existing } else { Kind::Stream }))
    }

    fn taking_stdout(self) -> Self {
        output::take_stdout();
        self
    }

    /// Appends bytes to a new file.
    ///
    /// # Errors
    /// If they cannot be written; one line that names the file.
    pub fn write_all(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let written = self.file.write_all(bytes);
        self.check(written)
    }

    /// Gives a new file its name.
    ///
    /// # Errors
    /// If there is a file of this name by now.
    pub fn complete(mut self) -> anyhow::Result<()> {
        if matches!(self.kind, Kind::Unnamed) {
            let number = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let flags = AtFlags::AT_SYMLINK_FOLLOW;
            linkat(AT_FDCWD, Path::new(&number), AT_FDCWD, &self.path, flags)
                .with_context(|| cannot_write(&self.path))?;
        }
        if matches!(self.kind, Kind::Unnamed | Kind::Named(_)) {
            self.kind = Kind::Complete;
        }
        Ok(())
    }

    /// Writes these bytes as the whole contents.
    ///
    /// # Errors
    /// If they cannot be written; an existing file then keeps its contents.
    pub fn replace(mut self, bytes: &[u8]) -> anyhow::Result<()> {
        if !matches!(self.kind, Kind::Existing) {
            self.write_all(bytes)?;
            if matches!(self.kind, Kind::Unnamed) && self.path.exists() {
                // Created since: the name was free.
                return Self::open(&self.path)?.replace(bytes);
            }
            return self.complete();
        }
        let written = replace(&self.file, bytes);
        self.check(written)
    }

    /// Returns what writes the file in another thread; its errors are for [`Self::check`].
    pub(crate) fn writer(&self) -> anyhow::Result<File> {
        self.file.try_clone().with_context(|| cannot_write(&self.path))
    }

    /// Returns the outcome of a write; one line names the file.
    pub(crate) fn check<T>(&self, written: io::Result<T>) -> anyhow::Result<T> {
        match (written, &self.kind) {
            (Err(error), Kind::Stdout) => {
                output::note(Err(error));
                Err(stop::Stop::Output.into())
            }
            (written, _) => written.with_context(|| cannot_write(&self.path)),
        }
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Kind::Named(path) = &self.kind {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}: choose another place", path.display())
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlag::O_NOCTTY.bits());
    options
}

/// True if `fd`, which is standard output or standard error, is the same file, pipe or socket.
/// Character devices are opened anew: they have no offset, and /dev/null is everybody's.
fn is_stdio(meta: &Metadata, fd: BorrowedFd<'_>) -> bool {
    let same = |other: Metadata| (meta.dev(), meta.ino()) == (other.dev(), other.ino());
    let other = duplicate(fd).and_then(|file| file.metadata());
    !meta.file_type().is_char_device() && other.is_ok_and(same)
}

fn duplicate(fd: BorrowedFd<'_>) -> io::Result<File> {
    fd.try_clone_to_owned().map(File::from)
}

/// Waits for the reader of a named pipe, until a signal arrives.
fn open_fifo(path: &Path) -> anyhow::Result<File> {
    loop {
        let flags = OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
        match OpenOptions::new().write(true).custom_flags(flags.bits()).open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => {
                stop::check()?;
                std::thread::sleep(FIFO_POLL_INTERVAL);
            }
            opened => {
                let file = opened?;
                fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
                return Ok(file);
            }
        }
    }
}

/// Creates a new file.
fn create(path: &Path) -> anyhow::Result<OutputFile> {
    let new = |file, kind| OutputFile { path: path.to_owned(), file, kind };
    // The target of a link is created under its name.
    if path.symlink_metadata().is_err() {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut unnamed = OpenOptions::new();
        unnamed.write(true).custom_flags(OFlag::O_TMPFILE.bits());
        if let Ok(file) = unnamed.open(folder.unwrap_or(Path::new(".")))
            && Path::new("/proc/self/fd").exists()
        {
            return Ok(new(file, Kind::Unnamed));
        }
    }
    let file = options().create(true).open(path)?;
    let name = path.canonicalize()?;
    Ok(new(file, Kind::Named(name)))
}

/// Writes the whole contents of an existing file. If that fails for want of space, the file is as
/// it was.
fn replace(file: &File, bytes: &[u8]) -> io::Result<()> {
    let old_len = file.metadata()?.len();
    let len = bytes.len() as u64;
    let kept = bytes.len().min(usize::try_from(old_len).unwrap_or(usize::MAX));
    // Space first. Where it cannot be reserved, the bytes beyond the old end are written first:
    // only these need more of it.
    let extended = reserve(file, len).and_then(|()| file.write_all_at(&bytes[kept..], kept as u64));
    if let Err(error) = extended {
        file.set_len(old_len)?;
        return Err(error);
    }
    file.write_all_at(&bytes[..kept], 0)?;
    file.set_len(len)
}

/// Reserves space for so many bytes, if the file system can.
///
/// The C library's `posix_fallocate` reads the file instead if it cannot, and ours is for writing.
fn reserve(file: &File, len: u64) -> io::Result<()> {
    let len = i64::try_from(len.max(1)).unwrap_or(i64::MAX);
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, len) {
            // A program that was stopped and continued.
            Err(Errno::EINTR) => {}
            Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn existing_file_keeps_links_and_mode() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, hard] = ["file", "link", "hard"].map(|name| folder.path().join(name));
        fs::write(&file, "a longer text than the new one").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&file, &link).unwrap();
        fs::hard_link(&file, &hard).unwrap();
        OutputFile::open(&link).unwrap().replace(b"new").unwrap();
        for path in [&file, &link, &hard] {
            assert_eq!(fs::read_to_string(path).unwrap(), "new");
        }
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn new_file_appears_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            let mut abandoned = OutputFile::open(path).unwrap();
            abandoned.write_all(b"half").unwrap();
            drop(abandoned);
            assert!(!file.exists() && link.is_symlink());
            OutputFile::open(path).unwrap().replace(b"new").unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), "new");
            assert!(link.is_symlink());
            fs::remove_file(&file).unwrap();
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn nothing_that_exists_is_replaced_where_a_new_file_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, other] = ["file", "link", "other"].map(|name| folder.path().join(name));
        fs::write(&file, "old").unwrap();
        symlink(&other, &link).unwrap();
        for path in [&file, &link] {
            let error = OutputFile::create_new(path).unwrap_err();
            assert!(format!("{error:#}").contains("File exists"), "{error:#}");
        }
        let mut late = OutputFile::create_new(&other).unwrap();
        late.write_all(b"new").unwrap();
        fs::write(&other, "old").unwrap();
        assert!(late.complete().is_err());
        assert_eq!(fs::read_to_string(&other).unwrap(), "old");
        // A report is not lost for that.
        fs::remove_file(&other).unwrap();
        let late = OutputFile::open(&other).unwrap();
        fs::write(&other, "old").unwrap();
        late.replace(b"new").unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "new");
    }

    #[test]
    fn folders_and_missing_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_owned(), folder.path().join("missing/file")] {
            for open in [OutputFile::open, OutputFile::create_new] {
                let error = open(&path).unwrap_err().to_string();
                assert!(
                    error.starts_with("cannot write ") && error.ends_with(": choose another place")
                );
            }
        }
    }
}
