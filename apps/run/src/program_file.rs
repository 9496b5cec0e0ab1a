//! The program: its file, and reasons why the dynamic loader would not load our libraries into it.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, getgid, getuid};

use crate::failure::Failure;
use crate::system_calls::has_attribute;

/// Folders that are searched without PATH, as by the C library.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Bytes of program headers that are read, at most: programs have some 700.
const PROGRAM_HEADERS_BYTES_MAX: usize = 1 << 16;
/// Length of the header of a 64-bit ELF file.
const ELF_HEADER_BYTES: usize = 64;
/// ELF's number of this processor (`e_machine`).
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// Program header that names the dynamic loader.
const PT_INTERP: u32 = 3;

/// Finds a program as a shell does: by its path if the name has a slash, else in the folders of
/// `search`, the value of PATH.
///
/// # Errors
/// With status 127 if there is none, and 126 if it is not executable.
pub fn find(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let shown = name.to_string_lossy();
    let not_found =
        || Failure { status: Failure::NOT_FOUND, about: format!("{shown}: no such program") };
    let is_path = name.as_bytes().contains(&b'/');
    let candidates: Vec<PathBuf> = if is_path {
        vec![name.into()]
    } else if name.is_empty() {
        return Err(not_found());
    } else {
        let folders = search.unwrap_or(OsStr::new(DEFAULT_PATH)).as_bytes().split(|&b| b == b':');
        // An empty one is the current folder.
        let folder = |bytes: &[u8]| match bytes {
            [] => PathBuf::from("."),
            bytes => PathBuf::from(OsStr::from_bytes(bytes)),
        };
        folders.map(|bytes| folder(bytes).join(name)).collect()
    };
    let mut refused = None;
    for path in candidates {
        match fs::metadata(&path) {
            Ok(found) if found.is_dir() && is_path => refused = Some((path, "it is a folder")),
            Ok(found) if found.is_dir() => {}
            Ok(_) if access(&path, AccessFlags::X_OK).is_ok() => return Ok(path),
            Ok(_) => refused = Some((path, "it is not executable")),
            // The program may be in another folder of PATH than one that is closed to this user.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_path => {
                refused = Some((path, "permission denied"));
            }
            Err(_) => {}
        }
    }
    let Some((path, reason)) = refused else { return Err(not_found()) };
    Err(Failure::refused(&path, reason))
}

/// Finds reasons why the dynamic loader would not load our libraries into this program. A file that
/// can be executed but not read is taken as it is.
///
/// # Errors
/// With such a reason.
pub fn check(path: &Path) -> Result<(), Failure> {
    let refuse = |reason: &str| Err(Failure::refused(path, reason));
    let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
    if let Some(reason) = gains_rights(path, &metadata) {
        return refuse(&format!(
            "it has {reason}, for which the dynamic loader ignores LD_LIBRARY_PATH and LD_PRELOAD: \
             copy it without"
        ));
    }
    let Ok(file) = File::open(path) else { return Ok(()) };
    elf_reason(&file).map_or(Ok(()), |reason| refuse(&reason))
}

/// Returns the rights that a user gains by starting the program, if it does (`AT_SECURE`).
fn gains_rights(path: &Path, metadata: &Metadata) -> Option<&'static str> {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2010;
    let mode = metadata.mode();
    if mode & SETUID != 0 && metadata.uid() != getuid().as_raw() {
        Some("the setuid bit")
    } else if mode & SETGID == SETGID && metadata.gid() != getgid().as_raw() {
        Some("the setgid bit")
    } else if !getuid().is_root() && has_attribute(path, "security.capability") {
        // Root has all capabilities anyway.
        Some("file capabilities")
    } else {
        None
    }
}

/// Returns the reason why an ELF program does not load our libraries; `None` for one that does, and
/// for scripts.
fn elf_reason(file: &File) -> Option<String> {
    let mut header = [0; ELF_HEADER_BYTES];
    if file.read_exact_at(&mut header, 0).is_err() || !header.starts_with(b"\x7fELF") {
        return None;
    }
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    // Class 2 has 64 bits, data 1 the least significant byte first.
    if header[4..6] != [2, 1] || half(18) != MACHINE {
        return Some("it is a program of another kind of processor than our libraries".to_owned());
    }
    let mut offset = [0; 8];
    offset.copy_from_slice(&header[32..40]);
    let (len, count) = (usize::from(half(54)), usize::from(half(56)));
    let mut headers = vec![0; (len * count).min(PROGRAM_HEADERS_BYTES_MAX)];
    file.read_exact_at(&mut headers, u64::from_le_bytes(offset)).ok()?;
    let interpreter = |header: &&[u8]| header.starts_with(&PT_INTERP.to_le_bytes());
    let Some(header) = headers.chunks_exact(len.max(1)).find(interpreter) else {
        let about = "it is linked statically: it loads no libraries (link it with -libverbs)";
        return Some(about.to_owned());
    };
    let loader = interpreter_path(file, header)?;
    let is_musl = loader.contains("ld-musl");
    is_musl.then(|| format!("its loader is {loader}: our libraries need the GNU C library"))
}

/// Reads the path that a program header names.
fn interpreter_path(file: &File, header: &[u8]) -> Option<String> {
    let word = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
    let mut path = [0; 256];
    let len = usize::try_from(word(32)?).ok()?.min(path.len());
    file.read_exact_at(&mut path[..len], word(8)?).ok()?;
    Some(String::from_utf8_lossy(&path[..len]).trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A file with these bytes.
    fn file(bytes: &[u8]) -> File {
        use std::io::Write as _;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// An ELF file with a program header of this type.
    fn elf(class: u8, machine: u16, kind: u32, loader: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..4].copy_from_slice(b"\x7fELF");
        bytes[4..6].copy_from_slice(&[class, 1]);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64..68].copy_from_slice(&kind.to_le_bytes());
        bytes[72] = 120;
        bytes[96] = u8::try_from(loader.len()).unwrap();
        bytes.extend_from_slice(loader);
        bytes
    }

    #[test]
    fn programs_that_do_not_load_our_libraries_are_told_apart() {
        let glibc = b"/lib64/ld-linux-x86-64.so.2\0";
        let reason = |bytes: &[u8]| elf_reason(&file(bytes));
        assert_eq!(reason(&elf(2, MACHINE, PT_INTERP, glibc)), None);
        assert_eq!(reason(b"#!/bin/sh\n"), None);
        assert_eq!(reason(b""), None);
        for (bytes, part) in [
            (elf(1, MACHINE, PT_INTERP, glibc), "another kind of processor"),
            (elf(2, 3, PT_INTERP, glibc), "another kind of processor"),
            (elf(2, MACHINE, 1, glibc), "linked statically"),
            (elf(2, MACHINE, PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0"), "the GNU C library"),
        ] {
            assert!(reason(&bytes).unwrap().contains(part), "{part}");
        }
    }

    #[test]
    fn damaged_files_are_left_to_the_kernel() {
        let whole = elf(2, MACHINE, PT_INTERP, b"/lib64/ld-linux-x86-64.so.2\0");
        for len in 0..whole.len() {
            assert_eq!(elf_reason(&file(&whole[..len])), None, "{len}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] = 0xff;
            let _ = elf_reason(&file(&bytes));
        }
    }

    #[test]
    fn programs_are_searched_as_by_a_shell() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::create_dir(folder.path().join("folder")).unwrap();
        fs::write(&program, "").unwrap();
        let search = format!("/absent:{}", folder.path().display());
        let found = |name: &str| find(OsStr::new(name), Some(OsStr::new(&search)));
        assert_eq!(found("program").unwrap_err().status, Failure::NOT_STARTED);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(found("program").unwrap(), program);
        for (name, status) in [
            ("absent", Failure::NOT_FOUND),
            ("", Failure::NOT_FOUND),
            ("./absent/program", Failure::NOT_FOUND),
            ("/", Failure::NOT_STARTED),
            ("folder", Failure::NOT_FOUND),
        ] {
            assert_eq!(found(name).unwrap_err().status, status, "{name}");
        }
        assert!(find(OsStr::new("sh"), None).is_ok());
    }
}
