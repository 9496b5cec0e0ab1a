//! Parsers of option values common to several programs, and checks of several values together.

use clap::builder::RangedI64ValueParser;
use ferrowarp::device::MTU_MAX;
use ferrowarp_settings::address::MTU_MIN;
pub use ferrowarp_settings::value::seconds;

/// A command line whose values are checked together after they were parsed, before anything else.
pub trait Checked: clap::Parser {
    /// Finds values that cannot work together.
    ///
    /// # Errors
    /// One line that names a remedy.
    fn check(&self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Parses a count: a number from 1.
///
/// # Errors
/// A sentence that states the expected value.
pub fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("give 1 or more".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err(format!("give a whole number, 1 to {}", u64::MAX)),
    }
}

/// Parses a number of bytes with optional suffix K or M, from 1 to `most`.
///
/// # Errors
/// A sentence that states the expected value.
pub fn bytes(text: &str, most: u64) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return Err("give a number, such as 64, 4K or 1M".to_owned());
    }
    // Too many digits are too many bytes.
    let number: u64 = digits.parse().unwrap_or(u64::MAX);
    match number.checked_mul(unit) {
        Some(bytes) if (1..=most).contains(&bytes) => Ok(bytes),
        _ => Err(format!("give 1 to {most} bytes")),
    }
}

/// Returns the parser of `--mtu`: up to the largest one of any device. The device checks its own
/// maximum.
#[must_use]
pub fn mtu_parser() -> RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(i64::from(MTU_MIN)..=i64::from(MTU_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_suffix_and_range_are_checked() {
        let size = |text| bytes(text, 1 << 30);
        assert_eq!(size("64"), Ok(64));
        assert_eq!(size("4K"), Ok(4096));
        assert_eq!(size("1m"), Ok(1 << 20));
        assert_eq!(size("1024M"), Ok(1 << 30));
        let large = ["1025M", "99999999999999999999", "18446744073709551615K"];
        for wrong in ["", "K", "0", "-1", "1G", "µ"].into_iter().chain(large) {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_state_the_expected_value() {
        let size = |text| bytes(text, 1024).unwrap_err();
        assert_eq!(size("99999999999999999999"), "give 1 to 1024 bytes");
        assert_eq!(size("4G"), "give a number, such as 64, 4K or 1M");
        assert_eq!(count("1"), Ok(1));
        assert_eq!(count("0").unwrap_err(), "give 1 or more");
        for wrong in ["", "-1", "1.5", "18446744073709551616"] {
            assert!(count(wrong).unwrap_err().starts_with("give a whole number"), "{wrong}");
        }
    }
}
