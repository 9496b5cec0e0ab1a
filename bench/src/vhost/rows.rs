//! What is measured over both devices.

use anyhow::{Result, ensure};

use crate::baseline::plan::Topology;
use crate::baseline::report::row_name;
use crate::baseline::runner::{Iwperf, Sample};
use crate::paired::pairs::{Paired, both};
use crate::paired::rows::Figure;

/// How TCP and IP checksums are computed over both, as `iwperf` reports it.
const CHECKSUM: &str = "software";

/// A pair of runs.
#[derive(Clone, Debug, Default)]
pub struct Pair {
    /// Over `vhost` and `virtio-user`.
    pub vhost: Sample,
    /// Over `memif`.
    pub memif: Sample,
}

/// A test of `iwperf`, and its pairs.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name, by which `--rows` selects it.
    pub name: String,
    /// The test.
    pub test: &'static str,
    /// Bytes per message.
    pub size: u64,
    /// MTU in bytes.
    pub mtu: u16,
    /// The figure that is compared.
    pub figure: Figure,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

/// Returns the rows, without results.
#[must_use]
pub fn rows() -> Vec<Row> {
    let row = |test, size, mtu, figure| Row {
        name: row_name(test, size, mtu),
        test,
        size,
        mtu,
        figure,
        pairs: Vec::new(),
    };
    vec![
        row("write-bw", 65_536, 1500, Figure::Bandwidth),
        row("write-bw", 65_536, 9000, Figure::Bandwidth),
        row("write-bw", 4096, 1500, Figure::Bandwidth),
        row("write-bw", 64, 1500, Figure::MessageRate),
        row("write-lat", 64, 1500, Figure::Median),
        row("read-lat", 64, 1500, Figure::Median),
    ]
}

impl Row {
    /// Returns the figures over `memif`, as the reference, and over `vhost`.
    #[must_use]
    pub fn figures(&self) -> Paired {
        let of = |sample| self.figure.of(sample);
        self.pairs.iter().map(|pair| [of(&pair.memif), of(&pair.vhost)]).collect()
    }

    /// Measures a pair, server and client on these cores; returns its figures as text.
    ///
    /// # Errors
    /// If a run fails, or computes checksums in another way than the report says.
    pub fn measure(
        &mut self,
        iwperf: &Iwperf,
        cores: [usize; 2],
        seconds: f64,
        vhost_first: bool,
    ) -> Result<String> {
        let Self { test, size, mtu, figure, .. } = *self;
        let over = |topology: Topology| -> Result<Sample> {
            let sample = iwperf.run(test, &topology, mtu, size, seconds, &[])?;
            let checksum = &sample.checksum;
            ensure!(checksum == CHECKSUM, "checksums: {checksum} in place of {CHECKSUM}");
            Ok(sample)
        };
        let vhost = || over(Topology::Vhost(cores));
        let memif = || over(Topology::Memif(cores));
        let (vhost, memif) = both(vhost_first, ["vhost", "memif"], vhost, memif)?;
        let [of_vhost, of_memif] = [&vhost, &memif].map(|sample| figure.of(sample));
        self.pairs.push(Pair { vhost, memif });
        Ok(format!("vhost {of_vhost:.3}, memif {of_memif:.3} {}", figure.unit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names_of_their_own() {
        let mut names: Vec<_> = rows().into_iter().map(|row| row.name).collect();
        let expected = [
            "read-lat-64-1500",
            "write-bw-4K-1500",
            "write-bw-64-1500",
            "write-bw-64K-1500",
            "write-bw-64K-9000",
            "write-lat-64-1500",
        ];
        names.sort_unstable();
        assert_eq!(names, expected);
    }

    #[test]
    fn each_test_is_compared_by_its_figure() {
        let vhost = Sample { gbit_s: 2.0, rate_mops: 3.0, p50_us: 5.0, ..Sample::default() };
        let memif = Sample { gbit_s: 1.0, rate_mops: 1.0, p50_us: 10.0, ..Sample::default() };
        for mut row in rows() {
            row.pairs.push(Pair { vhost: vhost.clone(), memif: memif.clone() });
            let expected = match (row.test, row.size) {
                ("write-bw", 64) => 3.0,
                ("write-bw", _) => 2.0,
                _ => 0.5,
            };
            assert_eq!(row.figures().ratio().unwrap().median, expected, "{}", row.name);
        }
    }

    /// In place of iwperf: a server that makes its socket and stays until there is a result, and a
    /// client that writes one, which depends on the device.
    const SCRIPT: &str = r#"#!/bin/sh
while [ $# -gt 1 ]; do
    case $1 in --dev) device=$2 ;; --json) json=$2 ;; esac
    shift
done
if [ -n "$json" ]; then
    case $device in virtio-user:*) gbit_s=3 ;; memif:*) gbit_s=2 ;; esac
    echo '{"results": [{"bw_gbit_s": '$gbit_s', "msg_rate_mops": 1, "errors": 0, "lat_us": null,
        "checksum": "CHECKSUM"}]}' >"$json"
    exit
fi
socket=${device#*:} socket=${socket%,*}
: >"$socket"
until [ -s "${socket%/*}/result.json" ]; do sleep 0.01; done
"#;

    /// Measures a pair with [`SCRIPT`].
    fn measure(row: &mut Row, checksum: &str, vhost_first: bool) -> Result<String> {
        let folder = ferrowarp_tests::process::temp_dir()?;
        let [text, program] = ["script", "iwperf"].map(|name| folder.path().join(name));
        std::fs::write(&text, SCRIPT.replace("CHECKSUM", checksum))?;
        // By another process: a program cannot start while it is open for writing, as it would be
        // in a child that another test starts at this time.
        let mut install = std::process::Command::new("install");
        ensure!(install.args(["-m", "755"]).args([&text, &program]).status()?.success());
        let iwperf = Iwperf::new(Some(&program), folder.path())?;
        row.measure(&iwperf, [0, 0], 0.1, vhost_first)
    }

    #[test]
    fn each_pair_is_of_both_devices() {
        let mut row = rows().remove(0);
        for vhost_first in [true, false] {
            let text = measure(&mut row, CHECKSUM, vhost_first).unwrap();
            assert_eq!(text, "vhost 3.000, memif 2.000 Gb/s");
        }
        assert_eq!(row.figures().pairs, [[2.0, 3.0]; 2]);
    }

    #[test]
    fn other_checksums_are_refused() {
        let mut row = rows().remove(0);
        for (vhost_first, device) in [(true, "vhost"), (false, "memif")] {
            let error = format!("{:#}", measure(&mut row, "none", vhost_first).unwrap_err());
            assert_eq!(error, format!("{device}: checksums: none in place of software"));
        }
        assert!(row.pairs.is_empty());
    }
}
