//! Selection of the offloads that a port is asked for: each by itself, as far as it offers them.

use dpdk_sys::{Offload, Offloads, PortInfo};
use ferrowarp_proto::device::ChecksumMode;

use crate::device::device_error::DeviceError;
use crate::device::open_config::OpenConfig;
use crate::device::quirks::DriverQuirks;
use crate::device::spec::DeviceSpec;

/// Offloads of a port in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortOffloads {
    /// Place where checksums are computed.
    pub(super) checksum: ChecksumMode,
    /// Offloads that the port is asked for.
    pub(super) wanted: Offloads,
    /// Most segments into which the port cuts a frame; 0 if it does not.
    pub(super) tso_segments_max: u16,
}

impl PortOffloads {
    /// Selects what to ask of a port. `is_scattered`: a frame may be longer than a receive buffer;
    /// `has_rss`: RSS is on.
    ///
    /// # Errors
    /// [`DeviceError::NoChecksumOffload`] and [`DeviceError::ChecksumNeeded`] if the requested mode
    /// is not possible.
    pub(super) fn select(
        spec: &DeviceSpec,
        config: &OpenConfig,
        quirks: &DriverQuirks,
        info: &PortInfo,
        (is_scattered, has_rss): (bool, bool),
    ) -> Result<Self, DeviceError> {
        let checksum = checksum_mode(spec, config, quirks, info.offloads)?;
        let mut asked = Vec::new();
        if checksum.is_offloaded() {
            asked.extend([Offload::TxTcpChecksum, Offload::RxTcpChecksum, Offload::RxIpv4Checksum]);
        }
        if checksum == ChecksumMode::Offload {
            asked.push(Offload::TxIpv4Checksum);
        }
        let tso_segments_max = tso_segments_max(config, checksum, info.offloads, info);
        if tso_segments_max != 0 {
            asked.push(Offload::TxTcpSegmentation);
        }
        if is_scattered {
            // Some virtual devices scatter without offering it.
            asked.push(Offload::RxScatter);
        }
        if has_rss {
            asked.push(Offload::RxRssHash);
        }
        let offered = asked.into_iter().filter(|&offload| info.offloads.has(offload));
        let wanted = offered.fold(Offloads::NONE, Offloads::with);
        Ok(Self { checksum, wanted, tso_segments_max })
    }
}

/// Reason for which a checksum mode is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The port does not compute the TCP checksum.
    NoOffload,
    /// The peer verifies checksums.
    Needed,
}

/// Returns the checksum mode to use, if the port and its link support the requested one.
fn checksum_mode(
    spec: &DeviceSpec,
    config: &OpenConfig,
    quirks: &DriverQuirks,
    offered: Offloads,
) -> Result<ChecksumMode, DeviceError> {
    let offload = best_checksum_offload(quirks, offered);
    match config.checksum {
        None if spec.is_pair() => Ok(ChecksumMode::NotNeeded),
        None => {
            let by_default = offload.filter(|_| quirks.offload_by_default);
            Ok(by_default.unwrap_or(ChecksumMode::Software))
        }
        Some(mode) => requested_checksum_mode(mode, quirks, offload).map_err(|refused| {
            let device = spec.to_string();
            match refused {
                Refused::NoOffload => DeviceError::NoChecksumOffload { device },
                Refused::Needed => DeviceError::ChecksumNeeded { device },
            }
        }),
    }
}

/// Returns the mode that leaves as much to a port with these offloads as it computes; `None` if it
/// does not compute the TCP checksum.
pub(super) fn best_checksum_offload(
    quirks: &DriverQuirks,
    offloads: Offloads,
) -> Option<ChecksumMode> {
    if !offloads.has(Offload::TxTcpChecksum) || quirks.checksum_in_software {
        return None;
    }
    let has_ipv4 = offloads.has(Offload::TxIpv4Checksum);
    Some(if has_ipv4 { ChecksumMode::Offload } else { ChecksumMode::OffloadTcp })
}

/// Returns the mode to use for a requested one; `offered` is that of [`best_checksum_offload`].
///
/// # Errors
/// [`Refused`].
pub(super) fn requested_checksum_mode(
    mode: ChecksumMode,
    quirks: &DriverQuirks,
    offered: Option<ChecksumMode>,
) -> Result<ChecksumMode, Refused> {
    match mode {
        ChecksumMode::NotNeeded if !quirks.checksum_optional => Err(Refused::Needed),
        ChecksumMode::Offload => offered.ok_or(Refused::NoOffload),
        ChecksumMode::OffloadTcp if offered.is_none() => Err(Refused::NoOffload),
        mode => Ok(mode),
    }
}

/// Returns the most segments into which a port with these offloads cuts a frame; 0 if it does not,
/// or is not to. A port that computes checksums of IPv4 headers has to do so for the segments that
/// it cuts; one that offers none of these corrects the headers by itself.
pub(super) fn tso_segments_max(
    config: &OpenConfig,
    checksum: ChecksumMode,
    offloads: Offloads,
    info: &PortInfo,
) -> u16 {
    let has_headers = match checksum {
        ChecksumMode::Offload => true,
        ChecksumMode::OffloadTcp => !info.offloads.has(Offload::TxIpv4Checksum),
        ChecksumMode::Software | ChecksumMode::NotNeeded => false,
    };
    let is_on = config.tso && has_headers && offloads.has(Offload::TxTcpSegmentation);
    if is_on && info.tx_segments_max > 1 { info.tx_segments_max } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(
        device: &str,
        driver: &str,
        offered: &[Offload],
        checksum: Option<ChecksumMode>,
    ) -> Result<PortOffloads, DeviceError> {
        let mut info = PortInfo::default();
        info.driver = driver.to_owned();
        info.offloads = offered.iter().copied().fold(Offloads::NONE, Offloads::with);
        info.tx_segments_max = 40;
        let config = OpenConfig { checksum, ..OpenConfig::new() };
        let quirks = DriverQuirks::of(driver);
        PortOffloads::select(&device.parse().unwrap(), &config, quirks, &info, (true, true))
    }

    const TCP: [Offload; 2] = [Offload::TxTcpChecksum, Offload::RxTcpChecksum];
    const IPV4: [Offload; 2] = [Offload::TxIpv4Checksum, Offload::RxIpv4Checksum];

    #[test]
    fn checksums_are_asked_for_piece_by_piece() {
        let both = [TCP, IPV4].concat();
        for (offered, mode) in [
            (&both[..], ChecksumMode::Offload),
            (&TCP, ChecksumMode::OffloadTcp),
            (&TCP[..1], ChecksumMode::OffloadTcp),
            (&IPV4, ChecksumMode::Software),
            (&[], ChecksumMode::Software),
        ] {
            let selected = select("pci:00:01.0", "net_nic", offered, None).unwrap();
            assert_eq!(selected.checksum, mode, "{offered:?}");
            let wanted = offered.iter().filter(|_| mode.is_offloaded()).copied();
            assert_eq!(selected.wanted, wanted.fold(Offloads::NONE, Offloads::with), "{offered:?}");
        }
    }

    #[test]
    fn requested_mode_is_used_or_refused() {
        let both = [TCP, IPV4].concat();
        let nic = |offered: &[Offload], mode| select("pci:00:01.0", "net_nic", offered, Some(mode));
        let mode = |offered: &[Offload], mode| nic(offered, mode).map(|found| found.checksum).ok();
        assert_eq!(mode(&both, ChecksumMode::Software), Some(ChecksumMode::Software));
        assert_eq!(nic(&both, ChecksumMode::Software).unwrap().wanted, Offloads::NONE);
        assert_eq!(mode(&both, ChecksumMode::OffloadTcp), Some(ChecksumMode::OffloadTcp));
        assert_eq!(
            mode(&TCP, ChecksumMode::Offload),
            Some(ChecksumMode::OffloadTcp),
            "the stack does the rest"
        );
        for offered in [&IPV4[..], &[]] {
            let refused = nic(offered, ChecksumMode::Offload).unwrap_err();
            assert!(matches!(refused, DeviceError::NoChecksumOffload { .. }), "{refused}");
        }
        assert!(matches!(
            nic(&both, ChecksumMode::NotNeeded),
            Err(DeviceError::ChecksumNeeded { .. })
        ));
        // What the driver itself would compute, after a copy, is not used.
        assert!(select("tap:a", "net_tap", &both, Some(ChecksumMode::Offload)).is_err());
        let memory = select("virtio-user:/a", "net_virtio_user", &TCP, None).unwrap();
        assert_eq!(
            memory.checksum,
            ChecksumMode::Software,
            "only on request where the link is memory"
        );
    }

    #[test]
    fn port_cuts_frames_where_it_completes_all_their_headers() {
        let cuts = |offered: &[Offload], checksum| {
            let selected = select("pci:00:01.0", "net_nic", offered, checksum).unwrap();
            assert_eq!(
                selected.tso_segments_max > 0,
                selected.wanted.has(Offload::TxTcpSegmentation)
            );
            selected.tso_segments_max
        };
        let tso = [Offload::TxTcpSegmentation];
        let tcp = [&TCP[..], &tso].concat();
        let both = [&tcp[..], &IPV4].concat();
        assert_eq!([cuts(&tcp, None), cuts(&both, None)], [40, 40]);
        assert_eq!(cuts(&both, Some(ChecksumMode::OffloadTcp)), 0, "headers would be wrong");
        assert_eq!(cuts(&both, Some(ChecksumMode::Software)), 0);
        assert_eq!(cuts(&[TCP, IPV4].concat(), None), 0);
    }

    #[test]
    fn scattered_receive_and_rss_hash_are_asked_for_where_they_are_offered() {
        let offered = [Offload::RxScatter, Offload::RxRssHash];
        let wanted = select("pci:00:01.0", "net_nic", &offered, None).unwrap().wanted;
        assert!(offered.iter().all(|&offload| wanted.has(offload)));
        let wanted = select("pci:00:01.0", "net_nic", &[], None).unwrap().wanted;
        assert_eq!(wanted, Offloads::NONE);
    }
}
