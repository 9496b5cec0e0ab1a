//! Options of a matrix: the cases to run, and the folder of their files.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::Parser;
use ferrowarp_tests::process::TempDir;

#[derive(Parser)]
pub(crate) struct Selection {
    /// Prints the names of the cases, and which belong to the quick matrix.
    #[arg(long)]
    list: bool,
    /// Only cases whose name contains this; repeatable.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Only the quick matrix.
    #[arg(long)]
    quick: bool,
    /// Keeps captures and logs in this folder; without it they are removed.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

impl Selection {
    /// True for a case to run.
    pub(crate) fn includes(&self, name: &str, is_quick: bool) -> bool {
        let is_named = self.only.is_empty() || self.only.iter().any(|part| name.contains(part));
        is_named && (is_quick || !self.quick)
    }

    /// Prints the cases if that is what was asked for.
    ///
    /// # Errors
    /// If there are none.
    pub(crate) fn is_list<'a>(
        &self,
        cases: impl ExactSizeIterator<Item = (&'a str, bool)>,
    ) -> io::Result<bool> {
        if cases.len() == 0 {
            return Err(io::Error::other("no case matches: --list prints the names"));
        }
        if self.list {
            cases.for_each(|(name, is_quick)| {
                println!("{name}{}", if is_quick { " (quick)" } else { "" });
            });
        }
        Ok(self.list)
    }

    /// Returns the folder for captures and logs; it exists.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(crate) fn folder(&self, temporary: &TempDir) -> io::Result<PathBuf> {
        let folder = self.keep.clone().unwrap_or_else(|| temporary.path().to_path_buf());
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}
