//! Reason for which EAL has refused the plug-ins with DPDK's drivers. EAL states it only in its
//! log, at a level that is off.

use std::ffi::{CStr, CString, OsStr};
use std::fs::read_dir;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::abi::ABI;
use crate::sys;
use crate::version::version;

/// Folder of the plug-ins of this DPDK.
const DEFAULT: &CStr = sys::RTE_EAL_PMD_PATH;

/// Returns the reason, with its remedy, why EAL loads none of its plug-ins with these extra
/// arguments, if there is one. Only after it has failed: what it would load is loaded.
pub(crate) fn refusal(extra: &[String]) -> Option<String> {
    let folder = PathBuf::from(OsStr::from_bytes(DEFAULT.to_bytes()));
    let folder = (!cfg!(feature = "static") && folder.is_dir()).then_some(folder);
    named(extra).chain(folder).find_map(|path| refusal_of(&path))
}

/// The values of EAL's argument `-d`.
fn named(extra: &[String]) -> impl Iterator<Item = PathBuf> {
    extra.iter().enumerate().filter_map(|(index, argument)| {
        let value = argument.strip_prefix("-d")?;
        let value = if value.is_empty() { extra.get(index + 1)? } else { value };
        Some(value.trim_start_matches('=').into())
    })
}

fn refusal_of(path: &Path) -> Option<String> {
    let real = path.canonicalize();
    let folders = real.as_ref().map(|real| real.ancestors()).into_iter().flatten();
    if let Some((folder, mode)) = folders.filter_map(world_writable).next() {
        let (path, folder) = (path.display(), folder.display());
        // As /tmp is, and has to be.
        let is_sticky = mode & libc::S_ISVTX != 0;
        let remedy = if is_sticky { "move it".to_owned() } else { format!("chmod o-w {folder}") };
        return Some(format!(
            "EAL loads no drivers from {path}, as everybody may write to {folder} ({remedy})"
        ));
    }
    if !path.is_dir() {
        return failure_to_load(path);
    }
    let files = read_dir(path).ok()?.filter_map(|file| Some(file.ok()?.path()));
    files.filter(|file| is_plugin(file)).find_map(|file| failure_to_load(&file))
}

/// Returns the folder, or the file, and its mode.
fn world_writable(folder: &Path) -> Option<(&Path, u32)> {
    let mode = folder.metadata().ok()?.mode();
    (mode & libc::S_IWOTH != 0).then_some((folder, mode))
}

/// True if EAL takes a file of the folder for a plug-in: `.so`, or `.so.25.0` of DPDK 24.11.
fn is_plugin(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let Some((_, suffix)) = name.split_once(".so") else { return false };
    suffix.is_empty() || suffix.starts_with(&format!(".{ABI}."))
}

/// Loads a plug-in, in the order of EAL: those before the one that fails are loaded already.
fn failure_to_load(file: &Path) -> Option<String> {
    let path = CString::new(file.as_os_str().as_bytes()).ok()?;
    // SAFETY: a string; EAL has run, or would have run, the same initialization.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if !library.is_null() {
        return None;
    }
    // SAFETY: returns a string, of this thread, or NULL.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return None;
    }
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    Some(format!(
        "a driver cannot be loaded: {text} (remove it, or install that of DPDK {})",
        version()
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn arguments_name_plugins() {
        let extra = ["-d", "/a", "--x", "-d/b.so", "-d=/c", "-d"].map(str::to_owned);
        let paths: Vec<_> = named(&extra).collect();
        assert_eq!(paths, ["/a", "/b.so", "/c"].map(PathBuf::from));
    }

    #[test]
    fn files_that_eal_would_not_load_are_no_plugins() {
        let of_this = format!("librte_net_x.so.{ABI}.0");
        for (name, expected) in [
            ("librte_net_x.so", true),
            (&of_this, true),
            ("librte_net_x.so.1.0", false),
            ("librte_net_x.a", false),
        ] {
            assert_eq!(is_plugin(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn reason_and_remedy_are_one_line() {
        let folder = std::env::temp_dir().join(format!("ferrowarp-plugins-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let open = refusal_of(&folder).unwrap();
        let broken = folder.join("librte_net_broken.so");
        fs::write(&broken, "no library").unwrap();
        let unloadable = failure_to_load(&broken).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(open.contains(&format!("(chmod o-w {})", folder.display())), "{open}");
        assert!(unloadable.contains("librte_net_broken.so: ") && unloadable.contains("(remove it"));
        assert!(!open.contains('\n') && !unloadable.contains('\n'), "{unloadable}");
        assert!(failure_to_load(Path::new("/absent.so")).is_some());
    }
}
