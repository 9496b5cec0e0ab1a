//! Kernel drivers and poll-mode drivers of cards, as DPDK 22.11, 24.11 and 25.11 have them: from
//! the PCI IDs and the kernel modules that their plug-ins declare (`dpdk-pmdinfo.py`).

use std::ops::RangeInclusive;

use dpdk_sys::ABI;

/// A kernel driver that keeps its card while DPDK's own driver uses it, through verbs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SharedDriver {
    /// The kernel driver.
    pub(super) name: &'static str,
    /// The modules that make a verbs device of the card.
    pub(super) modules: &'static str,
}

const MLX4: SharedDriver = SharedDriver { name: "mlx4_core", modules: "mlx4_ib ib_uverbs" };
const MLX5: SharedDriver = SharedDriver { name: "mlx5_core", modules: "mlx5_ib ib_uverbs" };
const MANA: SharedDriver = SharedDriver { name: "mana", modules: "mana_ib ib_uverbs" };

/// Returns the kernel driver through which DPDK drives the card, if it does.
pub(super) fn shared_driver(vendor: u16, device: u16) -> Option<&'static SharedDriver> {
    match (vendor, device) {
        // ConnectX-3 and its virtual function, ConnectX-3 Pro.
        (0x15b3, 0x1003 | 0x1004 | 0x1007) => Some(&MLX4),
        (0x15b3, _) => Some(&MLX5),
        (0x1414, 0x00b9 | 0x00ba) => Some(&MANA),
        _ => None,
    }
}

/// A driver of cards, and the binary interfaces ([`ABI`]) of the releases that have it.
type Driver = (&'static str, RangeInclusive<u32>);

const fn always(name: &'static str) -> Driver {
    (name, 0..=u32::MAX)
}

const fn since(abi: u32, name: &'static str) -> Driver {
    (name, abi..=u32::MAX)
}

const fn until(abi: u32, name: &'static str) -> Driver {
    (name, 0..=abi)
}

/// Drivers of a vendor's cards, by PCI vendor.
const BY_VENDOR: [(u16, &[Driver]); 30] = [
    (0x1022, &[always("axgbe")]),
    (0x1077, &[always("qede"), always("bnx2x")]),
    (0x10ec, &[since(25, "r8169")]),
    (0x10ee, &[always("sfc")]),
    (0x1131, &[since(26, "enetc")]),
    (0x1137, &[always("enic")]),
    (0x1414, &[since(24, "mana")]),
    (0x1425, &[always("cxgbe")]),
    (0x14e4, &[always("bnxt"), always("bnx2x")]),
    (0x15ad, &[always("vmxnet3")]),
    (0x15b3, &[always("mlx5"), always("mlx4")]),
    (0x177d, &[always("cnxk"), always("thunderx"), until(23, "liquidio"), always("octeon-ep")]),
    (0x18f4, &[since(25, "ntnic")]),
    (0x1924, &[always("sfc")]),
    (0x1957, &[always("enetc")]),
    (0x19e5, &[always("hinic"), always("hns3"), since(26, "hinic3")]),
    (0x19ee, &[always("nfp")]),
    (0x1ae0, &[always("gve")]),
    (0x1af4, &[always("virtio")]),
    (0x1cf2, &[since(25, "zxdh")]),
    (0x1d0f, &[always("ena")]),
    (0x1d6a, &[always("atlantic")]),
    (0x1d6c, &[always("ark")]),
    (0x1da8, &[always("nfp")]),
    (0x1dd8, &[always("ionic")]),
    (0x1f0f, &[since(26, "nbl")]),
    (0x1f67, &[since(26, "xsc")]),
    (
        0x8086,
        &[
            always("e1000"),
            // From 25.11 on, e1000 drives its cards.
            until(25, "igc"),
            always("ixgbe"),
            always("i40e"),
            always("ice"),
            always("iavf"),
        ],
    ),
    (0x8088, &[always("ngbe"), always("txgbe")]),
    (0x8848, &[since(26, "rnp")]),
];

/// Returns the names of the drivers of a vendor's cards in this release.
fn drivers(vendor: u16) -> impl Iterator<Item = &'static str> {
    let (_, drivers) =
        BY_VENDOR.iter().find(|(of, _)| *of == vendor).copied().unwrap_or((vendor, &[]));
    drivers.iter().filter(|(_, releases)| releases.contains(&ABI)).map(|(name, _)| *name)
}

/// Returns which distribution packages may have a driver of the card, as the end of a clause on
/// plug-ins.
pub(super) fn packages(vendor: u16) -> String {
    let package = |driver: &str| {
        // A digit is kept apart from the version.
        let dash = if driver.ends_with(|c: char| c.is_ascii_digit()) { "-" } else { "" };
        format!("librte-net-{driver}{dash}{ABI}")
    };
    let packages: Vec<String> = drivers(vendor).map(package).collect();
    match packages.as_slice() {
        [] => "of which Debian's librte-meta-net has none for this vendor".to_owned(),
        [only] => format!("Debian's package {only}"),
        several => format!("for this vendor Debian's {}", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Drivers of cards that are not for a host's network: accelerators, and old ones.
    const NOT_NAMED: [&str; 7] = ["avp", "cpfl", "fm10k", "idpf", "ifc", "ipn3ke", "octeontx"];

    /// The vendors of the PCI IDs that a plug-in declares.
    fn vendors(plugin: &Path) -> BTreeSet<u16> {
        let contents = fs::read(plugin).unwrap();
        let contents = String::from_utf8_lossy(&contents);
        let lists = contents.split("\"pci_ids\": [").skip(1);
        let ids = lists.flat_map(|list| list.split("]]").take(1)).flat_map(|ids| ids.split('['));
        ids.filter_map(|id| id.split(',').next()?.parse().ok()).collect()
    }

    /// Finds nothing to compare where DPDK is not Debian's, whose packages the table names.
    #[test]
    fn drivers_are_those_of_the_plugins_that_debian_has() {
        let installed = fs::read_dir("/usr/lib").unwrap().flatten().flat_map(|folder| {
            fs::read_dir(folder.path().join(format!("dpdk/pmds-{ABI}.0"))).into_iter().flatten()
        });
        let mut found = BTreeSet::new();
        for file in installed.flatten() {
            let name = file.file_name().into_string().unwrap();
            let name = name.strip_prefix("librte_net_").and_then(|name| name.strip_suffix(".so"));
            let Some(name) = name.map(|name| name.replace('_', "-")) else { continue };
            if NOT_NAMED.contains(&name.as_str()) {
                continue;
            }
            found.extend(vendors(&file.path()).into_iter().map(|vendor| (vendor, name.clone())));
        }
        let named = |vendor: u16| drivers(vendor).map(move |name| (vendor, name.to_owned()));
        let listed: BTreeSet<_> = BY_VENDOR.iter().flat_map(|(vendor, _)| named(*vendor)).collect();
        assert!(found.is_empty() || found == listed, "{found:x?}, but {listed:x?}");
    }

    #[test]
    fn packages_are_named_as_the_distribution_spells_them() {
        let mellanox =
            format!("for this vendor Debian's librte-net-mlx5-{ABI}, librte-net-mlx4-{ABI}");
        assert_eq!(packages(0x15b3), mellanox);
        assert_eq!(packages(0x1af4), format!("Debian's package librte-net-virtio{ABI}"));
        assert!(packages(0x8086).contains(&format!("librte-net-i40e{ABI}")));
        assert!(packages(0x8086).contains(&format!("librte-net-e1000-{ABI}")));
        assert!(packages(0xffff).contains("none for this vendor"));
        assert!(BY_VENDOR.is_sorted_by_key(|(vendor, _)| *vendor));
    }

    #[test]
    fn cards_that_stay_with_the_kernel_are_told_from_others() {
        assert_eq!(shared_driver(0x15b3, 0x1007), Some(&MLX4));
        assert_eq!(shared_driver(0x15b3, 0x1017), Some(&MLX5));
        assert_eq!(shared_driver(0x8086, 0x1572), None);
    }
}
