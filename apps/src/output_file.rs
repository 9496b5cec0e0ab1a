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

/// Links that the kernel follows at most.
const LINKS_MAX: usize = 40;

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
    /// A new file without a name, which will be this one.
    Unnamed(PathBuf),
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
        let opened = match Self::open_any(path, false) {
            // Created in this moment.
            Err(error) if is_there(&error) => Self::open_any(path, false),
            opened => opened,
        };
        opened.with_context(|| cannot_write(path))
    }

    /// Opens a file that may exist only as a pipe or a device.
    ///
    /// # Errors
    /// As [`OutputFile::open`], and if there is a file already.
    pub fn create_new(path: &Path) -> anyhow::Result<Self> {
        Self::open_any(path, true).with_context(|| cannot_write(path))
    }

    fn open_any(path: &Path, is_new: bool) -> anyhow::Result<Self> {
        let new = |file, kind| Self { path: path.to_owned(), file, kind };
        if path == Path::new("-") {
            return Ok(new(duplicate(io::stdout().as_fd())?, Kind::Stdout).taking_stdout());
        }
        let meta = match path.metadata() {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                ensure_new(!is_new || !path.is_symlink())?;
                let (file, kind) = create(target_of(path))?;
                return Ok(new(file, kind));
            }
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
        ensure_new(!is_new || !meta.is_file())?;
        let file = options().open(path)?;
        let is_file = file.metadata()?.is_file();
        ensure_new(!is_new || !is_file)?;
        Ok(new(file, if is_file { Kind::Existing } else { Kind::Stream }))
    }

    fn taking_stdout(self) -> Self {
        output::take_stdout();
        self
    }

    /// True if the bytes of both would end up in one place.
    ///
    /// # Errors
    /// If a file cannot be examined.
    pub fn is_same(&self, other: &Self) -> io::Result<bool> {
        match (&self.kind, &other.kind) {
            (Kind::Stdout, Kind::Stdout) => return Ok(true),
            // Two files, until they get their names.
            (Kind::Unnamed(mine), Kind::Unnamed(theirs)) => {
                return Ok(name_of(mine)? == name_of(theirs)?);
            }
            _ => {}
        }
        let [mine, theirs] = [self.file.metadata()?, other.file.metadata()?];
        let is_same = (mine.dev(), mine.ino()) == (theirs.dev(), theirs.ino());
        Ok(is_same && !mine.file_type().is_char_device())
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
        self.give_name().map_err(io::Error::from).with_context(|| cannot_write(&self.path))
    }

    fn give_name(&mut self) -> nix::Result<()> {
        if let Kind::Unnamed(name) = &self.kind {
            let number = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let flags = AtFlags::AT_SYMLINK_FOLLOW;
            linkat(AT_FDCWD, Path::new(&number), AT_FDCWD, name, flags)?;
        }
        if matches!(self.kind, Kind::Unnamed(_) | Kind::Named(_)) {
            self.kind = Kind::Complete;
        }
        Ok(())
    }

    /// Writes these bytes as the whole contents.
    ///
    /// # Errors
    /// If they cannot be written; an existing file then keeps its contents.
    pub fn replace(mut self, bytes: &[u8]) -> anyhow::Result<()> {
        if matches!(self.kind, Kind::Existing) {
            let written = replace(&self.file, bytes);
            return self.check(written);
        }
        self.write_all(bytes)?;
        match self.give_name() {
            // Created since: the name was free.
            Err(Errno::EEXIST) => Self::open(&self.path)?.replace(bytes),
            named => named.with_context(|| cannot_write(&self.path)),
        }
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
        if let Kind::Named(name) = &self.kind {
            let _ = std::fs::remove_file(name);
        }
    }
}

/// Returns the folder and the name of a file that need not exist.
fn name_of(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default();
    Ok(folder_of(path).canonicalize()?.join(name))
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
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
/// Character devices are opened again: they have no offset, and everybody may write /dev/null.
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

/// Fails unless no file is in the way of a new one.
fn ensure_new(is_new: bool) -> io::Result<()> {
    if is_new { Ok(()) } else { Err(Errno::EEXIST.into()) }
}

fn is_there(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
}

/// Follows a link to a file that does not exist.
fn target_of(path: &Path) -> PathBuf {
    let mut name = path.to_owned();
    // Each one is relative to its own folder.
    for _ in 0..LINKS_MAX {
        let Ok(target) = name.read_link() else { break };
        name = name.parent().unwrap_or(Path::new("")).join(target);
    }
    name
}

/// Creates a new file; it never opens one that exists.
fn create(name: PathBuf) -> io::Result<(File, Kind)> {
    // `Path` does not see the slash, and the file would be refused when it gets its name.
    if name.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(Errno::EISDIR.into());
    }
    let mut unnamed = OpenOptions::new();
    unnamed.write(true).custom_flags(OFlag::O_TMPFILE.bits());
    match unnamed.open(folder_of(&name)) {
        Ok(file) if Path::new("/proc/self/fd").exists() => Ok((file, Kind::Unnamed(name))),
        _ => create_named(name),
    }
}

/// Creates a new file under its name.
fn create_named(name: PathBuf) -> io::Result<(File, Kind)> {
    let file = options().create_new(true).open(&name)?;
    Ok((file, Kind::Named(name)))
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
    fn file_that_appears_meanwhile_is_kept_where_a_new_one_needs_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("file");
        let named = |name: &Path| {
            let (file, kind) = create_named(name.to_owned())?;
            io::Result::Ok(OutputFile { path: name.to_owned(), file, kind })
        };
        drop(named(&name).unwrap());
        assert!(!name.exists(), "an incomplete file stays");
        fs::write(&name, "of somebody else").unwrap();
        assert_eq!(named(&name).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&name).unwrap(), "of somebody else");
        fs::remove_file(&name).unwrap();
        named(&name).unwrap().replace(b"new").unwrap();
        assert_eq!(fs::read_to_string(&name).unwrap(), "new");
    }

    #[test]
    fn links_to_a_new_file_are_relative_to_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("inner")).unwrap();
        symlink("inner/second", path("first")).unwrap();
        symlink("../target", path("inner/second")).unwrap();
        let mut file = OutputFile::open(&path("first")).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!path("target").exists(), "an incomplete file has a name");
        file.replace(b"").unwrap();
        assert_eq!(fs::read_to_string(path("target")).unwrap(), "half");
        assert!(path("first").is_symlink() && path("inner/second").is_symlink());
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
