//! The files of the workspace.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Folders without sources: build output, the repository itself, inputs of fuzzers.
const SKIPPED: [&str; 4] = ["target", ".git", "corpus", "artifacts"];

/// The root of the workspace.
///
/// # Panics
/// If the package is not in a folder of the workspace.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

/// Every file below `folder`, or those with this extension; sorted. Symbolic links are left out.
///
/// # Errors
/// I/O errors.
pub fn files(folder: &Path, extension: Option<&str>) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() && !SKIPPED.iter().any(|name| entry.file_name() == *name) {
                folders.push(path);
            } else if kind.is_file()
                && extension.is_none_or(|wanted| path.extension().is_some_and(|it| it == wanted))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
