//! TCP options: MSS, window scale, SACK, timestamps (RFC 9293 section 3.2, RFC 7323, RFC 2018).

use arrayvec::ArrayVec;

use crate::wire::bytes::{be16, be32};
use crate::wire::parse_error::ParseError;
use crate::wire::seq::Seq;

/// Length of the timestamps option in a data segment, padding included, in bytes.
pub const TIMESTAMPS_LEN: u8 = 12;
/// Largest window scale (RFC 7323 section 2.3).
pub const MAX_WSCALE: u8 = 14;

/// NOP, NOP, then kind and length of the timestamps option: the layout every common sender uses.
pub(super) const TIMESTAMPS_PREFIX: [u8; 4] = [1, 1, 8, 10];

/// SACK block: left and right edge, the first sequence number and the one after the last.
pub type SackBlock = (Seq, Seq);

/// TCP options of a segment. Other options are skipped on receipt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size (SYN only).
    pub mss: Option<u16>,
    /// Window scale, at most 14 (SYN only).
    pub wscale: Option<u8>,
    /// SACK-Permitted (SYN only).
    pub sack_permitted: bool,
    /// SACK blocks, in the order of the option.
    pub sack: ArrayVec<SackBlock, 4>,
    /// Timestamps: TSval, TSecr.
    pub ts: Option<(u32, u32)>,
}

impl Options {
    /// Returns the timestamps option alone, or no options, as for data segments.
    #[inline]
    #[must_use]
    pub fn timestamps(ts: Option<(u32, u32)>) -> Self {
        Self { ts, ..Self::default() }
    }

    /// True if there is no option other than timestamps.
    #[inline]
    pub(super) fn is_ts_only(&self) -> bool {
        self.mss.is_none() && self.wscale.is_none() && !self.sack_permitted && self.sack.is_empty()
    }

    /// Returns the number of SACK blocks to send: at most 4, or 3 next to the timestamps option
    /// (RFC 2018 section 3).
    fn sack_count(&self) -> usize {
        self.sack.len().min(if self.ts.is_some() { 3 } else { 4 })
    }

    /// Returns the length of these options in a header, a multiple of 4 bytes. SACK blocks that do
    /// not fit are left out.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        let ts = if self.ts.is_some() { TIMESTAMPS_LEN.into() } else { 0 };
        if self.is_ts_only() {
            return ts;
        }
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let wscale = if self.wscale.is_some() { 4 } else { 0 };
        // The two bytes of SACK-Permitted replace the padding of timestamps.
        let permitted = if self.sack_permitted && self.ts.is_none() { 4 } else { 0 };
        let sack = if self.sack.is_empty() { 0 } else { 4 + 8 * self.sack_count() };
        mss + wscale + permitted + ts + sack
    }

    /// Writes the options to `out`, which has exactly [`Options::wire_len`] bytes.
    pub(super) fn emit(&self, out: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(mss) = self.mss {
            put(&[2, 4]);
            put(&mss.to_be_bytes());
        }
        match (self.sack_permitted, self.ts) {
            (true, Some(_)) => put(&[4, 2, 8, 10]),
            (true, None) => put(&[1, 1, 4, 2]),
            (false, Some(_)) => put(&TIMESTAMPS_PREFIX),
            (false, None) => {}
        }
        if let Some((val, ecr)) = self.ts {
            put(&val.to_be_bytes());
            put(&ecr.to_be_bytes());
        }
        if let Some(shift) = self.wscale {
            put(&[1, 3, 3, shift]);
        }
        let count = self.sack_count();
        if count > 0 {
            // Option length, at most 2 + 4 * 8 = 34.
            put(&[1, 1, 5, 2 + 8 * u8::try_from(count).unwrap_or(0)]);
            for (start, end) in &self.sack[..count] {
                put(&start.0.to_be_bytes());
                put(&end.0.to_be_bytes());
            }
        }
    }

    /// Parses the options, the bytes between the fixed header and the payload.
    #[inline(always)]
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        if bytes.len() == usize::from(TIMESTAMPS_LEN) && bytes[..4] == TIMESTAMPS_PREFIX {
            return Ok(Self::timestamps(Some((be32(bytes, 4), be32(bytes, 8)))));
        }
        Self::parse_slow(bytes)
    }

    #[cold]
    fn parse_slow(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut options = Self::default();
        let mut rest = bytes;
        while let [kind, tail @ ..] = rest {
            match kind {
                0 => break,
                1 => {
                    rest = tail;
                    continue;
                }
                _ => {}
            }
            let len = usize::from(*tail.first().ok_or(ParseError::BadOption)?);
            if len < 2 || len > rest.len() {
                return Err(ParseError::BadOption);
            }
            let body = &rest[2..len];
            match (kind, body.len()) {
                (2, 2) => options.mss = Some(be16(body, 0)),
                // A shift count above 14 is used as 14 (RFC 7323 section 2.3).
                (3, 1) => options.wscale = Some(body[0].min(MAX_WSCALE)),
                (4, 0) => options.sack_permitted = true,
                (5, n) if n % 8 == 0 => {
                    for block in body.chunks_exact(8).take(4) {
                        options.sack.push((Seq(be32(block, 0)), Seq(be32(block, 4))));
                    }
                }
                (8, 8) => options.ts = Some((be32(body, 0), be32(body, 4))),
                (2..=5 | 8, _) => return Err(ParseError::BadOption),
                _ => {}
            }
            rest = &rest[len..];
        }
        Ok(options)
    }
}
