//! SYN cookies (RFC 4987 section 3.6): stateless under a SYN flood. The state a connection needs is
//! encoded in the SYN-ACK and returned by the ACK.
//!
//! The sequence number has an index into a table of MSS values in its low 3 bits. Its upper 29 bits
//! are a keyed hash of the four-tuple, the peer's ISS, a time counter and all encoded values. The
//! counter itself is not encoded: a guess has to match one of the two counter values that are
//! valid, with a probability of 2^-28 for any guess. The low 6 bits of our timestamp encode the
//! other options, in the layout of Linux, and return in TSecr: a connection made from a cookie has
//! the same options as one made from a SYN. Without timestamps only the MSS is encoded.

use core::hash::{Hash, Hasher};

use crate::net::siphash_keys::{KeyPurpose, Secret};
use crate::tcp::{Config, IssAndTsOffset, default_mss};
use crate::time::{Instant, MICROSECOND, SECOND};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Fields, Flags, Options, Segment};

/// Period of the time counter. A cookie is valid in its own period and in the next.
const PERIOD_NS: u64 = 64 * SECOND;
/// Upper bound of the lifetime of a cookie.
pub(crate) const LIFETIME_NS: u64 = 2 * PERIOD_NS;
/// Largest time from cookie to ACK that is used as an RTT sample.
const RTT_MAX_NS: u64 = SECOND;
/// MSS values that a cookie can encode; the peer's is rounded down. The smallest is the least that
/// is accepted; then IPv4 without the option, the minimum of IPv6, tunnels, and Ethernet without
/// and with jumbo frames, each over IPv6 and IPv4.
const MSS_TABLE: [u16; 8] = [64, 536, 1220, 1400, 1440, 1460, 8940, 8960];
const MSS_INDEX_MASK: u32 = 7;

/// Bits in the timestamp: window scale or none; SACK; ECN.
const OPTIONS_MASK: u32 = 0x3f;
const WSCALE_MASK: u32 = 0x0f;
const NO_WSCALE: u32 = 0x0f;
const SACK_BIT: u32 = 0x10;
const ECN_BIT: u32 = 0x20;
/// In the hash only: no timestamps, hence no options.
const NO_TIMESTAMPS: u32 = 0x40;

/// State recovered from a valid cookie.
#[derive(Clone, Debug)]
pub(crate) struct VerifiedCookie {
    /// The SYN, reconstructed.
    pub(crate) syn: Segment,
    /// Sequence number of the SYN-ACK.
    pub(crate) cookie: Seq,
    /// Time at which the SYN-ACK was sent, if known from the timestamp echo.
    pub(crate) sent_at: Option<Instant>,
}

/// Generates and verifies SYN cookies.
#[doc(alias = "SYN cookie")]
pub(crate) struct SynCookies {
    secret: Secret,
}

impl SynCookies {
    pub(crate) fn new(seed: u64) -> Self {
        Self { secret: Secret::new(seed, KeyPurpose::Cookies) }
    }

    /// Builds the SYN-ACK in reply to `syn`, with its options encoded.
    pub(crate) fn syn_ack(
        &self,
        now: Instant,
        cfg: &Config,
        syn: &Segment,
        iss_ts: IssAndTsOffset,
    ) -> Fields {
        let ts = syn.options.ts.filter(|_| cfg.timestamps);
        let keeps_ecn = syn.flags.has(Flags::ECE | Flags::CWR) && cfg.accepts_ecn();
        let options = match ts {
            None => NO_TIMESTAMPS,
            Some(_) => {
                syn.options.wscale.map_or(NO_WSCALE, u32::from)
                    | if syn.options.sack_permitted && cfg.sack { SACK_BIT } else { 0 }
                    | if keeps_ecn { ECN_BIT } else { 0 }
            }
        };
        let size = syn.options.mss.unwrap_or(default_mss(&syn.tuple)).max(MSS_TABLE[0]);
        let index = MSS_TABLE.iter().rposition(|&known| known <= size).unwrap_or(0);
        let index = u32::try_from(index).unwrap_or(0);
        let iss = self.hash(syn, syn.seq, period_of(now), index, options) & !MSS_INDEX_MASK | index;
        let kept = options & OPTIONS_MASK;
        let has_options = ts.is_some();
        let ecn = if has_options && keeps_ecn { Flags::ECE } else { Flags::default() };
        Fields {
            seq: Seq(iss),
            ack: syn.seq + 1,
            flags: Flags::SYN | Flags::ACK | ecn,
            window: u16::try_from(cfg.startup_window).unwrap_or(u16::MAX),
            options: Options {
                mss: Some(cfg.mss),
                wscale: (has_options && kept & WSCALE_MASK != NO_WSCALE).then(|| cfg.wscale()),
                sack_permitted: has_options && kept & SACK_BIT != 0,
                ts: ts.map(|(val, _)| (encode_options(iss_ts.tsval(now), kept), val)),
                ..Options::default()
            },
            ..Fields::default()
        }
    }

    /// Verifies the cookie acknowledged by `ack`; `None` if it is invalid or too old.
    pub(crate) fn verify(
        &self,
        now: Instant,
        cfg: &Config,
        ack: &Segment,
        iss_ts: IssAndTsOffset,
    ) -> Option<VerifiedCookie> {
        let cookie = ack.ack - 1;
        let index = cookie.0 & MSS_INDEX_MASK;
        let echo = ack.options.ts.filter(|_| cfg.timestamps);
        let mut sent_at = None;
        // RFC 7323 section 3.2: TSecr returns our timestamp, with the options in its low bits.
        let options = match echo {
            None => NO_TIMESTAMPS,
            Some((_, echo)) => {
                let age = u64::from(iss_ts.tsval(now).wrapping_sub(echo)) * MICROSECOND;
                if age > LIFETIME_NS {
                    return None;
                }
                // Later than TSecr by the encoded bits at most. A large age may mean that the
                // peer's first ACK was lost: then there is no RTT sample.
                if age <= RTT_MAX_NS {
                    sent_at = Some(Instant::from_nanos(now.as_nanos().saturating_sub(age)));
                }
                echo & OPTIONS_MASK
            }
        };
        // RFC 4987 section 3.6: the hash is recomputed over all that was encoded, in both valid
        // periods.
        let period = period_of(now);
        let irs = ack.seq - 1;
        let is_ours = [period, period.wrapping_sub(1)].into_iter().any(|period| {
            (self.hash(ack, irs, period, index, options) ^ cookie.0) & !MSS_INDEX_MASK == 0
        });
        if !is_ours {
            return None;
        }
        // The SYN as it would have been processed.
        let scale = options & WSCALE_MASK;
        let has = |bit| echo.is_some() && options & bit != 0;
        let mut syn = ack.clone();
        syn.seq = irs;
        syn.flags = if has(ECN_BIT) { Flags::SYN | Flags::ECE | Flags::CWR } else { Flags::SYN };
        syn.options = Options {
            mss: Some(MSS_TABLE[index as usize]),
            wscale: u8::try_from(scale).ok().filter(|_| echo.is_some() && scale != NO_WSCALE),
            sack_permitted: has(SACK_BIT),
            ts: ack.options.ts,
            ..Options::default()
        };
        syn.payload = 0..0;
        Some(VerifiedCookie { syn, cookie, sent_at })
    }

    #[expect(clippy::cast_possible_truncation, reason = "half of a hash")]
    fn hash(&self, segment: &Segment, irs: Seq, period: u64, index: u32, options: u32) -> u32 {
        let mut hasher = self.secret.hasher();
        segment.tuple.hash(&mut hasher);
        hasher.write_u64(period);
        hasher.write_u64(u64::from(irs.0) << 32 | u64::from(index << 8 | options));
        hasher.finish() as u32
    }
}

const fn period_of(now: Instant) -> u64 {
    now.as_nanos() / PERIOD_NS
}

/// Returns the latest timestamp up to `clock` whose low bits are `options`. It never is ahead of
/// the clock, so that later segments do not look older.
const fn encode_options(clock: u32, options: u32) -> u32 {
    let value = clock & !OPTIONS_MASK | options;
    if options > clock & OPTIONS_MASK { value.wrapping_sub(OPTIONS_MASK + 1) } else { value }
}

#[cfg(test)]
mod tests;
