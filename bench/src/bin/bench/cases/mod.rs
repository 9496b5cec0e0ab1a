//! The cases: which contenders are measured together, and which limits their figures have.

pub(crate) mod bound;
pub(crate) mod connections;
pub(crate) mod fairness;
pub(crate) mod loss;
mod lossy_port;
pub(crate) mod one_end;
pub(crate) mod peers;
pub(crate) mod processes;
pub(crate) mod tcp_vs_kernel;
pub(crate) mod testpmd;
pub(crate) mod vhost;

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Result;
use ferrowarp_tests::process::TempDir;

use crate::iwperf::Iwperf;

/// A case, with its rounds and the seconds of a measurement; `quick`: of a run of a minute or so.
/// Its method is the file of its name in `bench/methods`.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) quick: (usize, f64),
}

/// All cases, in the order of the pages.
pub(crate) const ALL: &[&Case] = &[
    &bound::CASE,
    &one_end::CASE,
    &loss::CASE,
    &fairness::CASE,
    &connections::CASE,
    &testpmd::CASE,
    &vhost::CASE,
    &processes::CASE,
    &tcp_vs_kernel::CASE,
    &peers::CASE,
];

/// What the cases share: programs, cores, a folder for files.
pub(crate) struct Setup {
    /// Folder of the programs that are measured.
    pub(crate) bin: PathBuf,
    /// Cores that the measurements may use, one or two.
    pub(crate) cores: Vec<usize>,
    pub(crate) scratch: TempDir,
    pub(crate) quick: bool,
}

impl Setup {
    pub(crate) fn iwperf(&self) -> Result<Rc<Iwperf>> {
        Ok(Rc::new(Iwperf::new(&self.bin.join("iwperf"), self.scratch.path())?))
    }

    /// Returns the cores of two ends; twice the same if there is one.
    pub(crate) fn two_cores(&self) -> [usize; 2] {
        [self.cores[0], self.cores.last().copied().unwrap_or(self.cores[0])]
    }

    /// Returns two different cores, if there are two.
    pub(crate) fn distinct_cores(&self) -> Option<[usize; 2]> {
        Some(self.two_cores()).filter(|[first, second]| first != second)
    }
}
