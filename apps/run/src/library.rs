//! Folder of the libraries.

use std::env;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The library, with all functions of both interfaces.
pub const LIBIBVERBS: &str = "libibverbs.so.1";
/// Second name of the library.
pub const LIBRDMACM: &str = "librdmacm.so.1";

/// Finds the folder of both libraries: `given`, or one near this program. Returns an absolute path.
///
/// # Errors
/// If they are not there.
pub fn find(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let candidates = given.map_or_else(near_program, |given| vec![given.to_owned()]);
    let is_there =
        |folder: &&PathBuf| [LIBIBVERBS, LIBRDMACM].iter().all(|name| folder.join(name).is_file());
    let Some(found) = candidates.iter().find(is_there) else {
        let looked: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        return Err(Failure::own(format!(
            "no {LIBIBVERBS} and {LIBRDMACM} in {}: build them with scripts/verbs build, or give \
             their folder with --library",
            looked.join(" or ")
        )));
    };
    let absolute = std::path::absolute(found)
        .map_err(|error| Failure::own(format!("{}: no absolute path: {error}", found.display())))?;
    check_separators(&absolute)?;
    Ok(absolute)
}

/// Returns the folders near this program: of an installation, and of a build tree.
fn near_program() -> Vec<PathBuf> {
    let program = env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("/"));
    let prefix = folder.parent().unwrap_or(Path::new("/"));
    [prefix, folder].map(|near| near.join("lib/ferrowarp")).into()
}

/// Refuses characters that the dynamic loader takes for separators, or expands.
fn check_separators(folder: &Path) -> Result<(), Failure> {
    let text = folder.to_string_lossy();
    let Some(character) = text.chars().find(|c| ":;$".contains(*c) || c.is_whitespace()) else {
        return Ok(());
    };
    Err(Failure::own(format!(
        "{}: the dynamic loader does not take {character:?} in a path: make a link elsewhere, and \
         give that with --library",
        folder.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_the_loader_would_split_are_refused() {
        for wrong in ["/a:b", "/a b", "/a;b", "/$LIB"] {
            assert!(check_separators(Path::new(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(check_separators(Path::new("/opt/ferrowarp-0.1/lib")), Ok(()));
    }
}
