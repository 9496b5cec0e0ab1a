//! The command line of iwlink.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use clap::Parser;
use ferrowarp::device::DeviceSpec;
use ferrowarp_link::{Faults, wire_bytes};

use crate::environment;
use crate::iwlink::link_option::{LinkOption, LinkOptions, parse_time_ns};
use crate::option_values::{Checked, mtu_parser, seconds};

/// Default queue limit of a link with a rate, in bytes.
const QUEUE_DEFAULT: u64 = 256 << 10;

/// Minimum and maximum of the default number of frame buffers.
const FRAMES_DEFAULT_RANGE: (u64, u64) = (4096, 65_536);

/// Largest MTU for that minimum. It is lower above, so that both devices together need less than
/// 1 GiB of memory at any MTU.
const FRAMES_DEFAULT_MTU: u64 = 9000;

/// Network emulator: forwards frames between two devices with loss, delay, jitter, reordering,
/// duplication, corruption, rate limit and ECN marking.
///
/// Without options the link is perfect. Options apply to both directions; --to-right and --to-left
/// override them for one direction. All random decisions come from one seed: the n-th frame of a
/// direction gets the same random faults in each run, whenever it arrives. A higher loss rate loses
/// the same frames and more.
#[derive(Debug, Parser)]
#[command(name = "iwlink", version = environment::version())]
#[command(max_term_width = 100, after_help = EXAMPLE)]
pub struct IwlinkOptions {
    /// One device: tap:NAME, memif:SOCKET[,server|client], vhost:SOCKET, virtio-user:SOCKET,
    /// af_packet:IFACE, af_xdp:IFACE, pci:BDF or eal:ARGS.
    #[arg(long, value_name = "DEVICE")]
    pub left: DeviceSpec,
    /// The other device.
    #[arg(long, value_name = "DEVICE")]
    pub right: DeviceSpec,

    /// Frame loss, 1% or 0.01.
    #[arg(long, value_name = "FRACTION", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("loss", text))]
    pub loss: Option<LinkOption>,
    /// Mean length of loss bursts in frames (Gilbert-Elliott).
    #[arg(long, value_name = "FRAMES", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("burst", text))]
    pub burst: Option<LinkOption>,
    /// Loss rate within a burst [default: 100%].
    #[arg(long, value_name = "FRACTION", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("burst-loss", text))]
    pub burst_loss: Option<LinkOption>,
    /// One-way delay; a round trip takes twice as long.
    #[arg(long, value_name = "TIME", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("delay", text))]
    pub delay: Option<LinkOption>,
    /// Maximum of a random addition to the delay. Frames stay in order.
    #[arg(long, value_name = "TIME", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("jitter", text))]
    pub jitter: Option<LinkOption>,
    /// Fraction of frames that are delayed further, so that later ones overtake them.
    #[arg(long, value_name = "FRACTION", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("reorder", text))]
    pub reorder: Option<LinkOption>,
    /// Limit of that further delay [default: the delay plus 100us].
    #[arg(long, value_name = "TIME", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("hold", text))]
    pub hold: Option<LinkOption>,
    /// Fraction of frames duplicated.
    #[arg(long, value_name = "FRACTION", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("duplicate", text))]
    pub duplicate: Option<LinkOption>,
    /// Fraction of IP packets with one flipped bit, anywhere after the Ethernet header.
    #[arg(long, value_name = "FRACTION", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("corrupt", text))]
    pub corrupt: Option<LinkOption>,
    /// Link rate in bits per second, Ethernet overhead included: 1gbit.
    #[arg(long, value_name = "RATE", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("rate", text))]
    pub rate: Option<LinkOption>,
    /// Queue limit in bytes, tail drop [default with a rate: 256K].
    #[arg(long, value_name = "BYTES", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("queue", text))]
    pub queue: Option<LinkOption>,
    /// Queue length in bytes above which ECN-capable packets are marked CE.
    #[arg(long, value_name = "BYTES", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("mark", text))]
    pub mark: Option<LinkOption>,
    /// Path MTU: drops longer IP packets without sending ICMP (black hole).
    #[arg(long, value_name = "BYTES", help_heading = "Link emulation")]
    #[arg(value_parser = |text: &str| LinkOption::parse("path-mtu", text))]
    pub path_mtu: Option<LinkOption>,
    /// Overrides for frames from left to right: the options above, as in loss=3%,delay=1ms.
    #[arg(long, value_name = "LIST", help_heading = "Link emulation")]
    #[arg(value_parser = LinkOptions::parse)]
    pub to_right: Option<LinkOptions>,
    /// Overrides for frames from right to left.
    #[arg(long, value_name = "LIST", help_heading = "Link emulation")]
    #[arg(value_parser = LinkOptions::parse)]
    pub to_left: Option<LinkOptions>,
    /// Seed of all random decisions.
    #[arg(long, default_value_t = 1, value_name = "NUMBER", help_heading = "Link emulation")]
    pub seed: u64,

    /// Largest IP packet of the devices in bytes, 576 to 65280. Devices may support less.
    #[arg(long, default_value_t = 1500, value_name = "BYTES", value_parser = mtu_parser())]
    pub mtu: u16,
    /// Exits after so many seconds [default: on SIGINT or SIGTERM].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Prints statistics every so many seconds: traffic forwarded and lost.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub report: Option<Duration>,
    /// Writes the counters as JSON on exit; - is standard output, and text goes to standard error.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Frame buffers per direction [default: bandwidth-delay product and queue].
    #[arg(long, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    pub frames: Option<u32>,
    /// Polling interval while idle. Frames on tap devices also wake it.
    #[arg(long, default_value = "50us", value_name = "TIME", value_parser = parse_time_ns)]
    pub poll: u64,
    /// Busy-waits for frames that are due within this time. With 0 the program never keeps a core
    /// busy, and frames leave in small bursts.
    #[arg(long, default_value = "50us", value_name = "TIME", value_parser = parse_time_ns)]
    pub spin: u64,
    /// Counts frames sent later than this after their due time as late.
    #[arg(long, default_value = "200us", value_name = "TIME", value_parser = parse_time_ns)]
    pub late: u64,
    /// Core to pin the program to.
    #[arg(long)]
    pub core: Option<usize>,
}

impl Checked for IwlinkOptions {
    fn check(&self) -> anyhow::Result<()> {
        for (name, device) in [("--left", &self.left), ("--right", &self.right)] {
            ensure!(
                !device.is_pair(),
                "{name} ring: ring is inside one process, and the link has other programs at its \
                 ends: give memif:SOCKET, tap:NAME or another device"
            );
        }
        ensure!(self.left != self.right, "--left and --right are one device: give two");
        self.faults().map(drop)
    }
}

const EXAMPLE: &str = "\
Example: two hosts, 20 ms apart, on 1 Gb/s that loses one frame in a hundred (as root):

  ip netns add a; ip netns add b
  iwlink --left tap:a0 --right tap:b0 --delay 10ms --loss 1% --rate 1gbit --report 1 &
  ip link set a0 netns a; ip -n a addr add 198.18.1.1/24 dev a0; ip -n a link set a0 up
  ip link set b0 netns b; ip -n b addr add 198.18.1.2/24 dev b0; ip -n b link set b0 up
  ip netns exec a ping -c 3 198.18.1.2
  kill %1; ip netns del a; ip netns del b

A program of ferrowarp takes the place of a host over memif:

  iwlink --left memif:/tmp/wire.sock,server --right tap:b0 --delay 10ms &
  iwping client 198.18.1.2 --dev memif:/tmp/wire.sock,client --ip 198.18.1.1/24

On exit it prints the counters of the emulated link, and the emulator's own errors: frames sent
late, or dropped for lack of a buffer. A measurement with such errors is not valid.";

/// Faults of both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkFaults {
    /// From left to right.
    pub to_right: Faults,
    /// From right to left.
    pub to_left: Faults,
}

impl IwlinkOptions {
    /// Returns the faults of both directions.
    ///
    /// # Errors
    /// If options contradict each other.
    pub fn faults(&self) -> anyhow::Result<LinkFaults> {
        let common = [
            self.loss,
            self.burst,
            self.burst_loss,
            self.delay,
            self.jitter,
            self.reorder,
            self.hold,
            self.duplicate,
            self.corrupt,
            self.rate,
            self.queue,
            self.mark,
            self.path_mtu,
        ];
        let direction = |name: &str, own: &Option<LinkOptions>| {
            let mut faults = Faults::NONE;
            let own = own.iter().flat_map(|settings| settings.0.iter().copied());
            for setting in common.into_iter().flatten().chain(own) {
                setting.apply(&mut faults);
            }
            check_faults(&faults).map_err(|error| anyhow!("{name}: {error}"))?;
            if faults.rate.is_some() {
                faults.queue = faults.queue.or(Some(QUEUE_DEFAULT));
            }
            Ok::<_, anyhow::Error>(faults)
        };
        Ok(LinkFaults {
            to_right: direction("to the right", &self.to_right)?,
            to_left: direction("to the left", &self.to_left)?,
        })
    }

    /// Returns the number of frame buffers per direction.
    #[must_use]
    pub fn frames(&self, wire: &LinkFaults) -> u32 {
        let needs = [wire.to_right, wire.to_left].map(|faults| {
            let Some(rate) = faults.rate else { return 0 };
            let held_ns = faults.delay_ns + faults.jitter_ns;
            let in_flight = u128::from(rate) * u128::from(held_ns) / 1_000_000_000;
            let in_flight = u64::try_from(in_flight).unwrap_or(u64::MAX);
            // Mean frame length: half of a full frame.
            in_flight.saturating_add(faults.queue.unwrap_or(0)) / wire_bytes(700)
        });
        let (least, most) = FRAMES_DEFAULT_RANGE;
        let least = (least * FRAMES_DEFAULT_MTU / u64::from(self.mtu)).clamp(least / 4, least);
        let needed = needs.into_iter().max().unwrap_or(0).clamp(least, most);
        self.frames.unwrap_or_else(|| u32::try_from(needed).unwrap_or(u32::MAX))
    }
}

fn check_faults(faults: &Faults) -> anyhow::Result<()> {
    ensure!(
        faults.rate.is_some() || faults.queue.is_none(),
        "a queue limit needs a rate: add --rate"
    );
    ensure!(faults.rate.is_some() || faults.mark.is_none(), "CE marks need a rate: add --rate");
    ensure!(
        faults.loss > 0.0 || faults.bursts.is_none(),
        "loss bursts need a loss rate: add --loss"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> IwlinkOptions {
        let words = "iwlink --left tap:a --right tap:b".split(' ').chain(line.split_whitespace());
        IwlinkOptions::try_parse_from(words).unwrap()
    }

    #[test]
    fn to_left_overrides_common_faults() {
        let options = options("--loss 1% --delay 10ms --rate 1gbit --to-left loss=3%,delay=1ms");
        let wire = options.faults().unwrap();
        assert_eq!((wire.to_right.loss, wire.to_right.delay_ns), (0.01, 10_000_000));
        assert_eq!((wire.to_left.loss, wire.to_left.delay_ns), (0.03, 1_000_000));
        assert_eq!(wire.to_left.rate, Some(125_000_000));
        assert_eq!(wire.to_left.queue, Some(256 << 10));
        assert_eq!(options.frames(&wire), 4096);
    }

    #[test]
    fn default_frame_buffers_cover_bandwidth_delay_product() {
        let options = options("--delay 50ms --rate 1gbit");
        assert_eq!(options.frames(&options.faults().unwrap()), (6_250_000 + 262_144) / 724);
        for (mtu, expected) in [(1500, 4096), (9000, 4096), (18_000, 2048), (65_280, 1024)] {
            let options = self::options(&format!("--mtu {mtu}"));
            assert_eq!(options.frames(&options.faults().unwrap()), expected, "{mtu}");
        }
        let options = self::options("--delay 50ms --rate 1gbit --frames 99");
        assert_eq!(options.frames(&options.faults().unwrap()), 99);
    }

    #[test]
    fn conflicting_options_are_rejected() {
        use clap::CommandFactory;
        IwlinkOptions::command().debug_assert();
        for line in ["--queue 10k", "--mark 10k", "--burst 3", "--to-right queue=10k"] {
            assert!(options(line).check().is_err(), "{line}");
        }
        for (left, right) in [("ring", "tap:a"), ("tap:a", "ring"), ("tap:a", "tap:a")] {
            let line = ["iwlink", "--left", left, "--right", right];
            assert!(
                IwlinkOptions::try_parse_from(line).unwrap().check().is_err(),
                "{left} {right}"
            );
        }
        let line = ["iwlink", "--left", "tap:a"];
        assert!(IwlinkOptions::try_parse_from(line).is_err());
    }
}
