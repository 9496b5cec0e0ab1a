//! MPA options of all programs, and the output of the negotiated parameters.

use anyhow::ensure;
use clap::{Args, ValueEnum};
use ferrowarp::cm::{RtrKinds, Start};
use ferrowarp::{ConnInfo, ConnParam};

/// Largest IRD and ORD.
const IRD_ORD_MAX: i64 = 128;
/// MPA revision with IRD and ORD negotiation and peer-to-peer mode (RFC 6581).
const MPA_REVISION_2: u8 = 2;

/// IRD and ORD: limits of outstanding RDMA Reads and atomic operations.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct IrdOrdArgs {
    /// IRD: concurrent inbound RDMA Read and atomic requests, 1 to 128. MPA revision 2 negotiates
    /// it, and a server raises its IRD to the client's ORD. With revisions 0 and 1, configure the
    /// peer's ORD to match.
    #[arg(long, value_name = "N", help_heading = "MPA")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=IRD_ORD_MAX))]
    pub ird: Option<u16>,
    /// ORD: concurrent outbound RDMA Read and atomic requests, 1 to 128. Further requests wait in
    /// the send queue. MPA revision 2 lowers it to the peer's IRD.
    #[arg(long, value_name = "N", help_heading = "MPA")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=IRD_ORD_MAX))]
    pub ord: Option<u16>,
}

impl IrdOrdArgs {
    /// Overrides IRD and ORD of `param` with the values given.
    pub fn apply_to(self, param: &mut ConnParam) {
        param.ird = self.ird.unwrap_or(param.ird);
        param.ord = self.ord.unwrap_or(param.ord);
    }
}

/// Kind of RTR (ready-to-receive) message (RFC 6581).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RtrKind {
    /// Zero-length Send.
    Send,
    /// Zero-length RDMA Write.
    Write,
    /// Zero-length RDMA Read; counts against IRD and ORD.
    Read,
}

/// MPA options of an initiator; a responder follows the request.
#[derive(Clone, Debug, Default, Args)]
pub struct MpaArgs {
    /// MPA revision to request: 2 (RFC 6581: negotiates IRD and ORD), 1 (RFC 5044), or 0 (RDMA
    /// Consortium: markers and CRC always on, version 0 of DDP and RDMAP, neither atomic
    /// operations nor immediate data) [default: 2].
    #[arg(long, value_name = "REVISION", help_heading = "MPA")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=i64::from(MPA_REVISION_2)))]
    pub mpa_revision: Option<u8>,
    /// RTR messages to offer in peer-to-peer mode (RFC 6581, MPA revision 2 only), in which either
    /// side may send first: the initiator's stack sends one that the responder supports [default:
    /// all].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND,..", help_heading = "MPA")]
    pub peer_to_peer: Vec<RtrKind>,
    /// Client-server mode: the responder sends nothing before it has received a message, and there
    /// is no RTR message.
    #[arg(long, help_heading = "MPA", conflicts_with = "peer_to_peer")]
    pub client_server: bool,
}

impl MpaArgs {
    /// Returns the requested MPA revision.
    #[must_use]
    pub fn revision(&self) -> u8 {
        self.mpa_revision.unwrap_or(MPA_REVISION_2)
    }

    /// Checks combinations of options. `crc`: CRC is not disabled.
    ///
    /// # Errors
    /// One line that names a remedy.
    pub fn check(&self, crc: bool, immediate: bool) -> anyhow::Result<()> {
        ensure!(
            !immediate || self.mpa_revision.is_none_or(|revision| revision == 0),
            "--immediate is MPA revision 0: omit --mpa-revision"
        );
        let revision = if immediate { 0 } else { self.revision() };
        ensure!(
            self.peer_to_peer.is_empty() || revision == MPA_REVISION_2,
            "--peer-to-peer needs MPA revision {MPA_REVISION_2}: omit --mpa-revision and \
             --immediate"
        );
        ensure!(crc || revision > 0, "MPA revision 0 always has CRCs: omit --no-crc");
        Ok(())
    }

    /// Sets these options in the parameters of an initiator.
    pub fn apply_to(&self, param: &mut ConnParam) {
        param.revision = self.revision();
        param.peer_to_peer = !self.client_server;
        if !self.peer_to_peer.is_empty() {
            let has = |kind| self.peer_to_peer.contains(&kind);
            param.rtr = RtrKinds {
                send: has(RtrKind::Send),
                write: has(RtrKind::Write),
                read: has(RtrKind::Read),
            };
        }
    }
}

/// Returns the start mode: immediate, or with MPA request and reply frames.
#[must_use]
pub const fn start_mode(immediate: bool) -> Start {
    if immediate { Start::Immediate } else { Start::Frames }
}

/// Formats the negotiated parameters as one line, from the local point of view.
#[must_use]
pub fn negotiated_line(info: &ConnInfo) -> String {
    let on = |value| if value { "on" } else { "off" };
    format!(
        "negotiated: MPA revision {}, CRC {}, markers received {}, markers sent {}, IRD {}, ORD {}",
        info.revision,
        on(info.crc),
        on(info.markers_in),
        on(info.markers_out),
        info.ird,
        info.ord,
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        reads: IrdOrdArgs,
        #[command(flatten)]
        mpa: MpaArgs,
    }

    fn line(text: &str) -> Result<Line, clap::Error> {
        Line::try_parse_from(["x"].into_iter().chain(text.split_whitespace()))
    }

    fn param(text: &str) -> ConnParam {
        let line = line(text).unwrap();
        let mut param = ConnParam::new();
        param.ird = 5;
        param.ord = 6;
        line.mpa.apply_to(&mut param);
        line.reads.apply_to(&mut param);
        param
    }

    #[test]
    fn options_override_conn_param() {
        let as_is = param("");
        assert_eq!((as_is.ird, as_is.ord, as_is.revision), (5, 6, 2));
        assert_eq!((as_is.peer_to_peer, as_is.rtr), (true, RtrKinds::ALL));
        assert!(!param("--client-server").peer_to_peer);
        let given = param("--ird 128 --ord 1 --mpa-revision 1");
        assert_eq!((given.ird, given.ord, given.revision), (128, 1, 1));
        assert_eq!(param("--mpa-revision 0").revision, 0);
        let peers = param("--peer-to-peer send,read");
        assert!(peers.peer_to_peer);
        assert_eq!(peers.rtr, RtrKinds { send: true, write: false, read: true });
        let write = RtrKinds { send: false, write: true, read: false };
        assert_eq!(param("--peer-to-peer write").rtr, write);
    }

    #[test]
    fn out_of_range_values_are_rejected() {
        for wrong in [
            "--ird 0",
            "--ird 129",
            "--ord 0",
            "--ord 129",
            "--mpa-revision 3",
            "--mpa-revision -1",
            "--peer-to-peer",
            "--peer-to-peer shout",
        ] {
            assert!(line(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn conflicting_options_are_rejected() {
        for (text, crc, immediate, is_good) in [
            ("", true, false, true),
            ("", false, false, true),
            ("", true, true, true),
            ("", false, true, false),
            ("--mpa-revision 0", true, true, true),
            ("--mpa-revision 0", true, false, true),
            ("--mpa-revision 0", false, false, false),
            ("--mpa-revision 1", true, true, false),
            ("--mpa-revision 1", false, false, true),
            ("--mpa-revision 1 --peer-to-peer write", true, false, false),
            ("--peer-to-peer write", true, true, false),
            ("--mpa-revision 2 --peer-to-peer write", true, false, true),
        ] {
            let checked = line(text).unwrap().mpa.check(crc, immediate);
            assert_eq!(checked.is_ok(), is_good, "{text}, CRC {crc}, immediate {immediate}");
        }
    }
}
