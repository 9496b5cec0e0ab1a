//! Rates of links: their codes, Mb/s and multiples of 2.5 Gb/s.

use std::ffi::c_int;

use crate::abi;

/// A rate of InfiniBand.
struct Rate {
    code: abi::ibv_rate,
    /// With what the encoding of the link leaves.
    mbps: c_int,
    /// Nominal rate in units of 2.5 Gb/s, where it has one.
    mult: Option<c_int>,
}

const fn rate(code: abi::ibv_rate, mbps: c_int, mult: Option<c_int>) -> Rate {
    Rate { code, mbps, mult }
}

const RATES: [Rate; 23] = [
    rate(abi::IBV_RATE_2_5_GBPS, 2_500, Some(1)),
    rate(abi::IBV_RATE_5_GBPS, 5_000, Some(2)),
    rate(abi::IBV_RATE_10_GBPS, 10_000, Some(4)),
    rate(abi::IBV_RATE_14_GBPS, 14_062, None),
    rate(abi::IBV_RATE_20_GBPS, 20_000, Some(8)),
    rate(abi::IBV_RATE_25_GBPS, 25_781, None),
    rate(abi::IBV_RATE_28_GBPS, 28_125, Some(11)),
    rate(abi::IBV_RATE_30_GBPS, 30_000, Some(12)),
    rate(abi::IBV_RATE_40_GBPS, 40_000, Some(16)),
    rate(abi::IBV_RATE_50_GBPS, 53_125, Some(20)),
    rate(abi::IBV_RATE_56_GBPS, 56_250, None),
    rate(abi::IBV_RATE_60_GBPS, 60_000, Some(24)),
    rate(abi::IBV_RATE_80_GBPS, 80_000, Some(32)),
    rate(abi::IBV_RATE_100_GBPS, 103_125, None),
    rate(abi::IBV_RATE_112_GBPS, 112_500, None),
    rate(abi::IBV_RATE_120_GBPS, 120_000, Some(48)),
    rate(abi::IBV_RATE_168_GBPS, 168_750, None),
    rate(abi::IBV_RATE_200_GBPS, 206_250, None),
    rate(abi::IBV_RATE_300_GBPS, 309_375, None),
    rate(abi::IBV_RATE_400_GBPS, 425_000, Some(160)),
    rate(abi::IBV_RATE_600_GBPS, 637_500, Some(240)),
    rate(abi::IBV_RATE_800_GBPS, 850_000, Some(320)),
    rate(abi::IBV_RATE_1200_GBPS, 1_275_000, Some(480)),
];

fn of_code(code: abi::ibv_rate) -> Option<&'static Rate> {
    RATES.iter().find(|rate| rate.code == code)
}

/// Returns the multiple of 2.5 Gb/s, or -1.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mult(code: abi::ibv_rate) -> c_int {
    of_code(code).and_then(|rate| rate.mult).unwrap_or(-1)
}

/// Returns the code of a multiple of 2.5 Gb/s, or `IBV_RATE_MAX`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> abi::ibv_rate {
    RATES.iter().find(|rate| rate.mult == Some(mult)).map_or(abi::IBV_RATE_MAX, |rate| rate.code)
}

/// Returns the rate in Mb/s, or -1.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mbps(code: abi::ibv_rate) -> c_int {
    of_code(code).map_or(-1, |rate| rate.mbps)
}

/// Returns the code of a rate in Mb/s, or `IBV_RATE_MAX`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> abi::ibv_rate {
    RATES.iter().find(|rate| rate.mbps == mbps).map_or(abi::IBV_RATE_MAX, |rate| rate.code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stock::{LIBIBVERBS, Stock};

    #[test]
    fn rates_are_those_of_the_stock_library() {
        let Some(stock) = Stock::open(LIBIBVERBS) else { return };
        for code in 0..64 {
            let to_mult = stock.int_function(c"ibv_rate_to_mult");
            assert_eq!(ibv_rate_to_mult(code), to_mult(code.cast_signed()), "{code}");
            let to_mbps = stock.int_function(c"ibv_rate_to_mbps");
            assert_eq!(ibv_rate_to_mbps(code), to_mbps(code.cast_signed()), "{code}");
        }
        let of_mult = stock.int_function(c"mult_to_ibv_rate");
        for mult in -1..1_000 {
            assert_eq!(mult_to_ibv_rate(mult).cast_signed(), of_mult(mult), "{mult}");
        }
        let of_mbps = stock.int_function(c"mbps_to_ibv_rate");
        for mbps in -1..3_000_000 {
            assert_eq!(mbps_to_ibv_rate(mbps).cast_signed(), of_mbps(mbps), "{mbps}");
        }
    }
}
