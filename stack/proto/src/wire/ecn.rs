//! ECN field of the IP header.

/// ECN field of the IP header (RFC 3168 section 5); the values are those on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-Capable Transport.
    #[default]
    NotEct = 0,
    /// ECN-Capable Transport, ECT(1).
    Ect1 = 1,
    /// ECN-Capable Transport, ECT(0).
    Ect0 = 2,
    /// Congestion Experienced.
    Ce = 3,
}

impl Ecn {
    #[inline]
    pub(super) const fn from_traffic_class(byte: u8) -> Self {
        match byte & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}
