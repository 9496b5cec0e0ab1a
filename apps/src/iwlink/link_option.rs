//! Properties of the emulated link, as given on the command line.

use ferrowarp_link::{Faults, GilbertElliott};

use crate::option_values::bytes;

/// Largest queue limit, bytes.
const QUEUE_MAX: u64 = 1 << 30;

/// One property of the emulated link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkOption {
    /// Frame loss rate.
    Loss(f64),
    /// Mean length of loss bursts, in frames.
    Burst(f64),
    /// Loss rate within a burst.
    BurstLoss(f64),
    /// Fraction of frames duplicated.
    Duplicate(f64),
    /// Fraction of frames that later ones overtake.
    Reorder(f64),
    /// Limit of the further delay of such a frame, in nanoseconds.
    Hold(u64),
    /// Fraction of packets with a flipped bit.
    Corrupt(f64),
    /// One-way delay, in nanoseconds.
    Delay(u64),
    /// Maximum random addition to the delay, in nanoseconds.
    Jitter(u64),
    /// Link rate, in bytes per second.
    Rate(u64),
    /// Queue limit, in bytes.
    Queue(u64),
    /// Queue length in bytes above which packets are marked CE.
    Mark(u64),
    /// Path MTU, in bytes.
    Mtu(u16),
}

impl LinkOption {
    /// Parses the value of the option called `name`.
    ///
    /// # Errors
    /// A sentence that states the expected value.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        Ok(match name {
            "loss" => Self::Loss(parse_fraction(text)?),
            "burst" => Self::Burst(parse_frame_count(text)?),
            "burst-loss" => Self::BurstLoss(parse_fraction(text).and_then(|fraction| {
                if fraction > 0.0 { Ok(fraction) } else { Err("give more than 0".to_owned()) }
            })?),
            "duplicate" => Self::Duplicate(parse_fraction(text)?),
            "reorder" => Self::Reorder(parse_fraction(text)?),
            "hold" => Self::Hold(parse_time_ns(text)?),
            "corrupt" => Self::Corrupt(parse_fraction(text)?),
            "delay" => Self::Delay(parse_time_ns(text)?),
            "jitter" => Self::Jitter(parse_time_ns(text)?),
            "rate" => Self::Rate(parse_rate(text)?),
            "queue" => Self::Queue(bytes(text, QUEUE_MAX)?),
            "mark" => Self::Mark(bytes(text, QUEUE_MAX)?),
            "path-mtu" => Self::Mtu(parse_mtu(text)?),
            _ => return Err(format!("`{name}` is not an option of the emulated link")),
        })
    }

    /// Sets this property in `faults`.
    pub fn apply(self, faults: &mut Faults) {
        let bursts = faults.bursts.unwrap_or(GilbertElliott { mean_len: 1.0, loss: 1.0 });
        match self {
            Self::Loss(fraction) => faults.loss = fraction,
            Self::Burst(len) => faults.bursts = Some(GilbertElliott { mean_len: len, ..bursts }),
            Self::BurstLoss(loss) => faults.bursts = Some(GilbertElliott { loss, ..bursts }),
            Self::Duplicate(fraction) => faults.duplicate = fraction,
            Self::Reorder(fraction) => faults.reorder = fraction,
            Self::Hold(ns) => faults.hold_ns = Some(ns),
            Self::Corrupt(fraction) => faults.corrupt = fraction,
            Self::Delay(ns) => faults.delay_ns = ns,
            Self::Jitter(ns) => faults.jitter_ns = ns,
            Self::Rate(rate) => faults.rate = Some(rate),
            Self::Queue(bytes) => faults.queue = Some(bytes),
            Self::Mark(bytes) => faults.mark = Some(bytes),
            Self::Mtu(bytes) => faults.mtu = Some(bytes),
        }
    }
}

/// Properties of one direction: `loss=3%,delay=1ms`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkOptions(pub Vec<LinkOption>);

impl LinkOptions {
    /// Parses a list of `NAME=VALUE`, separated by commas.
    ///
    /// # Errors
    /// A sentence that states the expected value.
    pub fn parse(text: &str) -> Result<Self, String> {
        let one = |part: &str| {
            let (name, value) = part.split_once('=').ok_or_else(|| {
                format!("`{part}`: give NAME=VALUE,.., such as loss=3%,delay=1ms")
            })?;
            LinkOption::parse(name.trim(), value.trim()).map_err(|error| format!("{name}: {error}"))
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(Self)
    }
}

/// Parses a fraction: `1%` or `0.01`.
fn parse_fraction(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 0.01));
    match number.trim().parse::<f64>().map(|number| number * unit) {
        Ok(fraction) if (0.0..=1.0).contains(&fraction) => Ok(fraction),
        _ => Err("give a fraction, such as 1% or 0.01".to_owned()),
    }
}

/// Parses a mean number of frames.
fn parse_frame_count(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(frames) if (1.0..=1e6).contains(&frames) => Ok(frames),
        _ => Err("give a number of frames, 1 or more".to_owned()),
    }
}

/// Parses a number with a unit; `units` lists the names and their factors. From 0 to `most`.
fn parse_with_unit(text: &str, units: &[(&str, f64)], most: f64) -> Option<u64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(split);
    let (_, worth) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    let value = number.trim().parse::<f64>().ok()? * worth;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked against its bounds"
    )]
    (0.0..=most).contains(&value).then_some(value.round() as u64)
}

/// Parses a time up to a minute: `10ms`, `50us`, `1.5s`. Returns nanoseconds.
///
/// # Errors
/// A sentence that states the expected value.
pub fn parse_time_ns(text: &str) -> Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    parse_with_unit(text, &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)], 60e9)
        .ok_or_else(|| "give a time with its unit, up to 60s, such as 10ms or 50us".to_owned())
}

/// Parses a rate, `1gbit` or `100mbit`, and returns bytes per second.
fn parse_rate(text: &str) -> Result<u64, String> {
    let units = [("bit", 0.125), ("kbit", 125.0), ("mbit", 125e3), ("gbit", 125e6)];
    parse_with_unit(text, &units, 125e9)
        .filter(|rate| *rate > 0)
        .ok_or_else(|| "give bits per second with their unit, such as 1gbit or 50mbit".to_owned())
}

fn parse_mtu(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(mtu) if mtu >= 68 => Ok(mtu),
        _ => Err("give the length of an IP packet in bytes, 68 to 65535".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_parsed_and_applied() {
        let text = "loss=1%,burst=4,burst-loss=50%,duplicate=0.5,reorder=2%,hold=3ms,\
                    corrupt=0.1%,delay=10ms,jitter=50us,rate=1gbit,queue=256k,mark=30K,\
                    path-mtu=1400";
        let mut faults = Faults::NONE;
        for setting in LinkOptions::parse(text).unwrap().0 {
            setting.apply(&mut faults);
        }
        let expected = Faults {
            loss: 0.01,
            bursts: Some(GilbertElliott { mean_len: 4.0, loss: 0.5 }),
            duplicate: 0.5,
            reorder: 0.02,
            hold_ns: Some(3_000_000),
            corrupt: 0.001,
            payload_only: false,
            delay_ns: 10_000_000,
            jitter_ns: 50_000,
            rate: Some(125_000_000),
            queue: Some(256 << 10),
            mark: Some(30 << 10),
            mtu: Some(1400),
        };
        assert_eq!(faults, expected);
    }

    #[test]
    fn values_outside_unit_or_range_are_rejected() {
        assert_eq!(parse_time_ns("0"), Ok(0));
        assert_eq!(parse_time_ns("1.5s"), Ok(1_500_000_000));
        assert_eq!(parse_time_ns("7 us"), Ok(7000));
        assert_eq!(parse_rate("100Mbit"), Ok(12_500_000));
        assert_eq!(parse_rate("8bit"), Ok(1));
        for wrong in ["", "10", "ms", "-1ms", "61s", "1m", "NaNms", "1e3"] {
            assert!(parse_time_ns(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0gbit", "1", "1gb", "2tbit", "9999999gbit"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
        for wrong in ["101%", "-1%", "x", "1.1", "%"] {
            assert!(parse_fraction(wrong).is_err(), "{wrong}");
        }
        let wrong =
            ["loss", "loss=", "speed=1", "burst=0", "burst-loss=0", "path-mtu=67", "queue=0"];
        for wrong in wrong {
            assert!(LinkOptions::parse(wrong).is_err(), "{wrong}");
        }
    }
}
