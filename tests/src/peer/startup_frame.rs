//! MPA Request and Reply Frames (RFC 5044 section 7.1, RFC 6581 section 4).

use std::io::{self, Read};

use super::invalid_data;

/// Role of the sender of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends the Request.
    Initiator,
    /// Sends the Reply.
    Responder,
}

impl Role {
    const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Initiator => b"MPA ID Req Frame",
            Self::Responder => b"MPA ID Rep Frame",
        }
    }
}

/// Fields of the peer's startup frame.
#[derive(Clone, Debug)]
pub struct Startup {
    /// 1 (RFC 5044) or 2 (RFC 6581, with IRD and ORD).
    pub revision: u8,
    /// Flag C: CRCs preferred.
    pub crc: bool,
    /// Flag M: markers required.
    pub markers: bool,
    /// Flag R, Reply only: rejected.
    pub reject: bool,
    /// IRD (revision 2); the two highest bits are flags A and B.
    pub ird: u16,
    /// ORD (revision 2); the two highest bits are flags C and D.
    pub ord: u16,
    /// Private data of the application.
    pub private_data: Vec<u8>,
}

impl Default for Startup {
    fn default() -> Self {
        Self {
            revision: 2,
            crc: true,
            markers: false,
            reject: false,
            ird: 8,
            ord: 8,
            private_data: Vec::new(),
        }
    }
}

impl Startup {
    /// Encodes the frame.
    ///
    /// # Panics
    /// If the private data is longer than 65531 bytes.
    #[must_use]
    pub fn encode(&self, role: Role) -> Vec<u8> {
        let enhanced = self.revision >= 2;
        let mut data = Vec::new();
        if enhanced {
            data.extend_from_slice(&self.ird.to_be_bytes());
            data.extend_from_slice(&self.ord.to_be_bytes());
        }
        data.extend_from_slice(&self.private_data);
        let mut flags = 0;
        for (set, bit) in
            [(self.markers, 0x80), (self.crc, 0x40), (self.reject, 0x20), (enhanced, 0x10)]
        {
            flags |= if set { bit } else { 0 };
        }
        let len = u16::try_from(data.len()).expect("private data fits in its length field");
        let mut bytes = role.key().to_vec();
        bytes.extend_from_slice(&[flags, self.revision]);
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(&data);
        bytes
    }
}

/// A received startup frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupFrame {
    /// The byte with M, C, R and S.
    pub flags: u8,
    /// Revision.
    pub revision: u8,
    /// Private data, with the IRD/ORD block in front if S is set.
    pub private_data: Vec<u8>,
}

impl StartupFrame {
    /// Reads exactly one frame sent by `role`.
    ///
    /// # Errors
    /// I/O errors; `InvalidData` if the frame violates a rule.
    pub fn read(stream: &mut impl Read, role: Role) -> io::Result<Self> {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        if head[..16] != role.key()[..] {
            return Err(invalid_data("not the key of a startup frame"));
        }
        let len = usize::from(u16::from_be_bytes([head[18], head[19]]));
        if len > 512 {
            return Err(invalid_data(format!("{len} bytes of private data")));
        }
        let mut private_data = vec![0; len];
        stream.read_exact(&mut private_data)?;
        let frame = Self { flags: head[16], revision: head[17], private_data };
        if frame.flags & 0x0F != 0 {
            return Err(invalid_data("reserved bits of a startup frame are set"));
        }
        if frame.is_enhanced() && (len < 4 || frame.revision < 2) {
            return Err(invalid_data("flag S without the IRD/ORD block"));
        }
        Ok(frame)
    }

    /// True if flag C is set.
    #[must_use]
    pub const fn wants_crc(&self) -> bool {
        self.flags & 0x40 != 0
    }

    /// True if flag M is set.
    #[must_use]
    pub const fn wants_markers(&self) -> bool {
        self.flags & 0x80 != 0
    }

    /// True if flag R is set.
    #[must_use]
    pub const fn is_rejected(&self) -> bool {
        self.flags & 0x20 != 0
    }

    /// True if flag S is set: the frame has the IRD/ORD block of RFC 6581.
    #[must_use]
    pub const fn is_enhanced(&self) -> bool {
        self.flags & 0x10 != 0
    }

    /// Returns the two words of the block of RFC 6581: flags A, B and IRD; flags C, D and ORD.
    #[must_use]
    pub fn block(&self) -> Option<(u16, u16)> {
        let block = self.private_data.first_chunk::<4>().filter(|_| self.is_enhanced())?;
        let [ird_high, ird_low, ord_high, ord_low] = *block;
        let number = |high, low| u16::from_be_bytes([high, low]);
        Some((number(ird_high, ird_low), number(ord_high, ord_low)))
    }

    /// Returns IRD and ORD, if the frame has them.
    #[must_use]
    pub fn ird_ord(&self) -> Option<(u16, u16)> {
        self.block().map(|(ird, ord)| (ird & 0x3FFF, ord & 0x3FFF))
    }

    /// Returns the private data of the application.
    #[must_use]
    pub fn application_data(&self) -> &[u8] {
        if self.is_enhanced() { &self.private_data[4..] } else { &self.private_data }
    }
}
