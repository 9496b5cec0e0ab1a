//! The release of DPDK: of the headers, and of the library.

use std::ffi::CStr;
use std::sync::OnceLock;

use crate::sys;

/// Returns the version of the DPDK that is loaded, such as `24.11.8`. The headers of the build were
/// of the same release, the first two numbers, or [`Eal::init`](crate::Eal::init) fails.
#[must_use]
pub fn version() -> &'static str {
    static VERSION: OnceLock<&str> = OnceLock::new();
    VERSION.get_or_init(|| {
        // SAFETY: the function fills a buffer that lives as long as the library, here alone.
        let text = unsafe { sys::rte_version() };
        // SAFETY: a string in that buffer, which does not change once it is filled.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_str().unwrap_or_default().trim_start_matches("DPDK ")
    })
}

/// True if the library is of the release of the headers: layouts and inline functions of another
/// would be wrong.
pub(crate) fn is_of_headers() -> bool {
    // SAFETY: returns a number.
    let year = unsafe { sys::rte_version_year() };
    // SAFETY: as above.
    let month = unsafe { sys::rte_version_month() };
    (year, month) == (sys::RTE_VER_YEAR, sys::RTE_VER_MONTH)
}

/// Returns the release of the headers, such as `24.11`.
pub(crate) fn of_headers() -> String {
    format!("{}.{:02}", sys::RTE_VER_YEAR, sys::RTE_VER_MONTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_of_the_release_of_the_headers() {
        assert!(is_of_headers());
        let rest = version().strip_prefix(&of_headers()).unwrap();
        assert!(rest.starts_with('.'), "{}", version());
    }

    /// A library that is loaded first takes the place of DPDK's function.
    #[test]
    #[cfg(not(feature = "static"))]
    fn library_of_another_release_is_refused() {
        const ALONE: &str = "FERROWARP_OTHER_RELEASE";
        if std::env::var_os(ALONE).is_some() {
            let refused = crate::Eal::init(&crate::EalConfig::default()).unwrap_err();
            assert_eq!(refused, crate::Error::OtherRelease);
            let text = refused.to_string();
            assert!(text.contains(&of_headers()) && text.contains(version()), "{text}");
            return assert!(!text.contains('\n') && text.contains("cargo clean"), "{text}");
        }
        let name = format!("ferrowarp-release-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let (source, library) = (folder.join("other.c"), folder.join("other.so"));
        std::fs::write(&source, "unsigned int rte_version_year(void) { return 19; }\n").unwrap();
        let compiled = std::process::Command::new("cc")
            .args(["-shared", "-o"])
            .args([&library, &source])
            .status();
        assert!(compiled.unwrap().success());
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "version::tests::library_of_another_release_is_refused"]);
        let ended = command.env(ALONE, "1").env("LD_PRELOAD", &library).output();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(ended.as_ref().is_ok_and(|ended| ended.status.success()), "{ended:?}");
    }
}
