//! Encoding and decoding of fields of control messages.

use crate::perf::control::{ControlError, MAGIC, Region, Tally, VERSION};

/// Appends fields, big-endian.
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn region(&mut self, region: Region) -> &mut Self {
        self.u64(region.addr).u64(region.len).u32(region.rkey)
    }
}

/// Consumes fields from the front, big-endian.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], ControlError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(ControlError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, ControlError> {
        Ok(self.take::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, ControlError> {
        self.take().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, ControlError> {
        self.take().map(u32::from_be_bytes)
    }

    /// Returns a field that peers may omit: 0 then.
    pub(super) fn optional_u32(&mut self) -> u32 {
        self.u32().unwrap_or(0)
    }

    pub(super) fn u64(&mut self) -> Result<u64, ControlError> {
        self.take().map(u64::from_be_bytes)
    }

    pub(super) fn region(&mut self) -> Result<Region, ControlError> {
        Ok(Region { addr: self.u64()?, len: self.u64()?, rkey: self.u32()? })
    }

    pub(super) fn credit(&mut self) -> Result<(u32, u64), ControlError> {
        let qp = self.u32()?;
        self.u32()?;
        Ok((qp, self.u64()?))
    }

    pub(super) fn tally(&mut self) -> Result<Tally, ControlError> {
        Ok(Tally {
            messages: self.u64()?,
            bytes: self.u64()?,
            verified: self.u64()?,
            errors: self.u64()?,
            duration_ns: self.u64()?,
        })
    }

    pub(super) fn preamble(&mut self) -> Result<(), ControlError> {
        if self.u32()? != MAGIC {
            return Err(ControlError::NotControl);
        }
        match self.u16()? {
            VERSION => Ok(()),
            other => Err(ControlError::Version(other)),
        }
    }
}
