//! MPA: framing of ULPDUs on a TCP stream, and the startup exchange (RFC 5044, RFC 6581,
//! draft-culley-iwarp-mpa-02).

pub mod crc;
pub mod deframer;
pub mod fpdu;
pub mod fpdu_pool;
pub mod framing;
pub mod markers;
pub mod startup;
pub mod stream_bytes;
