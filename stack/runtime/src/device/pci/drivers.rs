//! Kernel drivers and poll-mode drivers of cards, as DPDK 22.11 has them: from the PCI IDs and the
//! kernel modules that its plug-ins declare (`dpdk-pmdinfo.py`).

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

/// Drivers of a vendor's cards, by PCI vendor.
const BY_VENDOR: [(u16, &[&str]); 22] = [
    (0x1022, &["axgbe"]),
    (0x1077, &["qede", "bnx2x"]),
    (0x10ee, &["sfc"]),
    (0x1137, &["enic"]),
    (0x1425, &["cxgbe"]),
    (0x14e4, &["bnxt", "bnx2x"]),
    (0x15ad, &["vmxnet3"]),
    (0x15b3, &["mlx5", "mlx4"]),
    (0x177d, &["cnxk", "thunderx", "liquidio", "octeon-ep"]),
    (0x1924, &["sfc"]),
    (0x1957, &["enetc"]),
    (0x19e5, &["hinic", "hns3"]),
    (0x19ee, &["nfp"]),
    (0x1ae0, &["gve"]),
    (0x1af4, &["virtio"]),
    (0x1d0f, &["ena"]),
    (0x1d6a, &["atlantic"]),
    (0x1d6c, &["ark"]),
    (0x1da8, &["nfp"]),
    (0x1dd8, &["ionic"]),
    (0x8086, &["e1000", "igc", "ixgbe", "i40e", "ice", "iavf"]),
    (0x8088, &["ngbe", "txgbe"]),
];

/// Returns which distribution packages may have a driver of the card, as the end of a clause on
/// plug-ins.
pub(super) fn packages(vendor: u16) -> String {
    let drivers = BY_VENDOR.iter().find(|(of, _)| *of == vendor).map(|(_, drivers)| *drivers);
    let Some(drivers) = drivers else {
        return "of which Debian's librte-meta-net has none for this vendor".to_owned();
    };
    let package = |driver: &&str| {
        // A digit is kept apart from the version.
        let dash = if driver.ends_with(|c: char| c.is_ascii_digit()) { "-" } else { "" };
        format!("librte-net-{driver}{dash}{ABI}")
    };
    let packages: Vec<String> = drivers.iter().map(package).collect();
    match packages.as_slice() {
        [only] => format!("Debian's package {only}"),
        several => format!("for this vendor Debian's {}", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_named_as_the_distribution_spells_them() {
        let mellanox =
            format!("for this vendor Debian's librte-net-mlx5-{ABI}, librte-net-mlx4-{ABI}");
        assert_eq!(packages(0x15b3), mellanox);
        assert_eq!(packages(0x1af4), format!("Debian's package librte-net-virtio{ABI}"));
        assert!(packages(0x8086).contains(&format!("librte-net-i40e{ABI}")));
        assert!(packages(0x8086).contains(&format!("librte-net-e1000-{ABI}")));
        assert!(packages(0x10ec).contains("none for this vendor"));
        assert!(BY_VENDOR.is_sorted_by_key(|(vendor, _)| *vendor));
    }

    #[test]
    fn cards_that_stay_with_the_kernel_are_told_from_others() {
        assert_eq!(shared_driver(0x15b3, 0x1007), Some(&MLX4));
        assert_eq!(shared_driver(0x15b3, 0x1017), Some(&MLX5));
        assert_eq!(shared_driver(0x8086, 0x1572), None);
    }
}
