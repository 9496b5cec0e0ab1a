//! `iwperf` over vhost-user next to `iwperf` over `memif`: two ways through memory from one process
//! to another.

use anyhow::Result;

use super::{Case, Setup};
use crate::iwperf::{Place, Test};
use crate::model::row_name;
use crate::runner::Group;

pub(crate) const CASE: Case = Case {
    name: "vhost",
    title: "vhost-user next to memif",
    rounds: 21,
    seconds: 0.8,
    quick: (3, 0.3),
};

pub(crate) fn groups(setup: &Setup) -> Result<Vec<Group>> {
    let iwperf = setup.iwperf()?;
    let cores = setup.two_cores();
    let group = |(name, size, mtu, figure): (&'static str, u64, u16, &'static str)| {
        let checksum = Some("software");
        let test = Test { name, mtu: Some(mtu), size, checksum, ..Test::default() };
        Group::new("", row_name(name, size, mtu))
            .contender("vhost", iwperf.measure(Place::Vhost(cores), test.clone()))
            .contender("memif", iwperf.measure(Place::Memif(cores), test))
            .compare("vhost", "memif", figure, None)
    };
    let rows = [
        ("write-bw", 65_536, 1500, "Gb/s"),
        ("write-bw", 65_536, 9000, "Gb/s"),
        ("write-bw", 4096, 1500, "Gb/s"),
        ("write-bw", 64, 1500, "M/s"),
        ("write-lat", 64, 1500, "us, p50"),
        ("read-lat", 64, 1500, "us, p50"),
    ];
    Ok(rows.map(group).into())
}
