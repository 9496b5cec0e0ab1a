//! Parsers of values: numbers, times and choices.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Parses a decimal number.
///
/// # Errors
/// A sentence that states the accepted values.
pub fn number<T: TryFrom<u64>>(text: &str, range: RangeInclusive<u64>) -> Result<T, String> {
    let is_decimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = text.parse().ok().filter(|value| is_decimal && range.contains(value));
    let form = || format!("give {} to {}", range.start(), range.end());
    parsed.and_then(|value| T::try_from(value).ok()).ok_or_else(form)
}

/// Parses a number with the prefix 0x, or a decimal one.
///
/// # Errors
/// A sentence that states the accepted values.
pub fn hex_or_decimal(text: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    let form = || format!("give a number, 0x{:x} to 0x{:x}", range.start(), range.end());
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    let is_number = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    let parsed = u32::from_str_radix(digits, radix).ok();
    parsed.filter(|value| is_number && range.contains(value)).ok_or_else(form)
}

/// Parses a number of seconds, from 0.001 to a day.
///
/// # Errors
/// A sentence that states the accepted values.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err("give seconds, 0.001 to 86400".to_owned()),
    }
}

/// Parses a number of milliseconds, at most a day.
///
/// # Errors
/// A sentence that states the accepted values.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    let milliseconds = number(text, 0..=86_400_000);
    let form = |error| format!("{error} milliseconds");
    milliseconds.map(Duration::from_millis).map_err(form)
}

/// Parses a switch.
///
/// # Errors
/// A sentence that states the accepted values.
pub fn switch(text: &str) -> Result<bool, String> {
    match text {
        "true" | "on" | "yes" | "1" => Ok(true),
        "false" | "off" | "no" | "0" => Ok(false),
        _ => Err("give true or false".to_owned()),
    }
}

/// Parses one of these words.
///
/// # Errors
/// A sentence with the words.
pub fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let found = choices.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
        let (last, rest) = words.split_last().unwrap_or((&"", &[]));
        format!("give {} or {last}", rest.join(", "))
    })
}

/// Parses a range of ports, `49152-65534`.
///
/// # Errors
/// A sentence that states the form.
pub fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let form = || "give the first and the last port, 1 to 65535, as in 49152-65534".to_owned();
    let (first, last) = text.split_once('-').ok_or_else(form)?;
    let port = |text| number::<u16>(text, 1..=65_535).map_err(|_| form());
    let (first, last) = (port(first)?, port(last)?);
    if first <= last { Ok(first..=last) } else { Err(form()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_digits_alone_and_a_range() {
        assert_eq!(number::<u16>("576", 576..=65_280), Ok(576));
        for wrong in ["", "575", "65281", "+600", "-1", "6e2", " 600", "99999999999999999999"] {
            let error = number::<u16>(wrong, 576..=65_280).unwrap_err();
            assert_eq!(error, "give 576 to 65280", "{wrong}");
        }
        assert!(number::<u8>("256", 0..=1000).is_err(), "the type's range");
    }

    #[test]
    fn vendor_ids_are_hexadecimal_or_decimal() {
        let parse = |text| hex_or_decimal(text, 1..=0xff_fffe);
        assert_eq!((parse("0x1425"), parse("5157")), (Ok(0x1425), Ok(0x1425)));
        for wrong in ["", "0x", "0", "0xffffff", "1425h", "0x+1", "0X1425", "0x100000000"] {
            assert_eq!(parse(wrong).unwrap_err(), "give a number, 0x1 to 0xfffffe", "{wrong}");
        }
    }

    #[test]
    fn times_have_a_range() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-3", "inf", "NaN", "x", "1e9", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(milliseconds("50"), Ok(Duration::from_millis(50)));
        for wrong in ["0.5", "86400001", ""] {
            assert!(milliseconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_are_listed() {
        let parse = |text| choice(text, &[("auto", 1), ("hot", 2), ("park", 3)]);
        assert_eq!(parse("hot"), Ok(2));
        assert_eq!(parse("Hot").unwrap_err(), "give auto, hot or park");
        for (text, value) in [("true", true), ("1", true), ("off", false), ("no", false)] {
            assert_eq!(switch(text), Ok(value));
        }
        assert!(switch("maybe").is_err());
    }

    #[test]
    fn ports_are_in_order() {
        assert_eq!(ports("1-65535"), Ok(1..=65_535));
        for wrong in ["", "1", "0-9", "9-1", "1-65536", "1-2-3", "a-b", "-"] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }
}
