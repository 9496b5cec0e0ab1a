//! Errors of Terminate messages in words (RFC 5040 section 4.8, RFC 5041 section 7.2, RFC 5044
//! section 8, RFC 6581 section 9).

use core::fmt;

use crate::wire::terminate::{LAYER_DDP, LAYER_MPA, LAYER_RDMAP, Terminate};

/// Ends of a connection, in words.
#[derive(Clone, Copy)]
pub(crate) struct EndNames {
    /// Sender of the message at fault, in the genitive ("the peer's", for example).
    pub(crate) whose: &'static str,
    /// Sender of the Terminate.
    pub(crate) reporter: &'static str,
}

/// Writes what happened.
pub(crate) fn describe(
    terminate: &Terminate,
    EndNames { whose, reporter }: EndNames,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let (layer, error_type, code) = terminate.cause();
    match (failure_text(layer, error_type, code), text(layer, error_type, code)) {
        (Some(failed), _) => write!(f, "{reporter} {failed}")?,
        (_, Some(("", after))) => f.write_str(after)?,
        (_, Some((before, after))) => write!(f, "{before}{whose} {after}")?,
        (None, None) => write!(f, "an error of {whose} messages that has no name")?,
    }
    let kind = match (layer, error_type) {
        (LAYER_RDMAP, 0) => "RDMAP local",
        (LAYER_RDMAP, 1) => "RDMAP remote protection",
        (LAYER_RDMAP, 2) => "RDMAP remote operation",
        (LAYER_DDP, 0) => "DDP local",
        (LAYER_DDP, 1) => "DDP tagged",
        (LAYER_DDP, 2) => "DDP untagged",
        (LAYER_MPA, 0) => "MPA",
        _ => return write!(f, " (layer {layer}, type {error_type}, {code})"),
    };
    write!(f, " ({kind}, {code})")
}

/// Returns the words for an error of the end that reports it, after its name.
const fn failure_text(layer: u8, error_type: u8, code: u8) -> Option<&'static str> {
    Some(match (layer, error_type, code) {
        (LAYER_RDMAP | LAYER_DDP, 0, _) => "failed in itself: see its log and its completions",
        (LAYER_RDMAP, 2, 0x08) => "has failed: its process, or its device",
        (LAYER_MPA, 0, 0x05) => "failed in itself at startup",
        _ => return None,
    })
}

/// Returns the words for an error of a message, before and after the owner of the message at fault;
/// nothing before: the message has no owner.
const fn text(layer: u8, error_type: u8, code: u8) -> Option<(&'static str, &'static str)> {
    Some(match (layer, error_type, code) {
        (LAYER_RDMAP, 1, 0x00) => (
            "the STag in ",
            "request is not valid: register the memory, and send its rkey, before it is used",
        ),
        (LAYER_RDMAP, 1, 0x01) => ("addresses in ", "request are outside the region or window"),
        (LAYER_RDMAP, 1, 0x02) => {
            ("an access right is missing for ", "request: register the memory with it")
        }
        (LAYER_RDMAP, 1, 0x03) => {
            ("the STag in ", "request is of another protection domain or queue pair")
        }
        (LAYER_RDMAP, 1, 0x04) => ("addresses in ", "request overflow 64 bits"),
        (LAYER_RDMAP, 1, 0x09) => (
            "the STag that is to be invalidated by ",
            "Send is of another protection domain or queue pair",
        ),
        (LAYER_RDMAP, 1, 0xff) => ("the application does not permit ", "access"),
        (LAYER_RDMAP, 2, 0x05) => ("the RDMAP version differs in ", "message: configure the same"),
        (LAYER_RDMAP, 2, 0x06) => (
            "an operation was not expected or is not supported in ",
            "message: do both ends have atomic operations and immediate data on?",
        ),
        (LAYER_RDMAP, 2, 0x07) => {
            ("", "the application ended the stream for an error of its own, or a header was cut")
        }
        (LAYER_RDMAP, 2, 0x09) => (
            "the STag that is to be invalidated by ",
            "Send is not valid, is shared, or has windows bound to it",
        ),
        (LAYER_RDMAP, 2, 0xff) => ("the application or the protocol does not know ", "message"),
        (LAYER_DDP, 1, 0x00) => (
            "the STag is not valid, or lacks an access right, for ",
            "Write or Read Response: register the memory before it is used",
        ),
        (LAYER_DDP, 1, 0x01) => {
            ("addresses of ", "Write or Read Response are outside the region or window")
        }
        (LAYER_DDP, 1, 0x02) => {
            ("the STag of ", "Write or Read Response is of another protection domain or queue pair")
        }
        (LAYER_DDP, 1, 0x03) => ("addresses of ", "Write or Read Response overflow 64 bits"),
        (LAYER_DDP, 1 | 2, 0x04 | 0x06) if (error_type == 1) == (code == 4) => {
            ("the DDP version differs in ", "message: configure the same")
        }
        (LAYER_DDP, 2, 0x01) => ("there is no such queue for ", "message"),
        (LAYER_DDP, 2, 0x02) => ("no receive was posted for ", "Send"),
        (LAYER_DDP, 2, 0x03) => {
            ("no receive was posted, or there are too few Reads at a time (IRD), for ", "message")
        }
        (LAYER_DDP, 2, 0x04) => ("the offset is wrong in a segment of ", "message"),
        (LAYER_DDP, 2, 0x05) => ("the buffer is too short for ", "message: post larger ones"),
        (LAYER_MPA, 0, 0x01) => ("", "the TCP connection was lost"),
        (LAYER_MPA, 0, 0x02) => ("the CRC is wrong in ", "data: something on the path changes it"),
        (LAYER_MPA, 0, 0x03) => ("a marker does not match in ", "data"),
        (LAYER_MPA, 0, 0x04) => ("no startup frame that can be used was in ", "data"),
        (LAYER_MPA, 0, 0x06) => ("too few Reads can be served at a time for ", "ORD: lower it"),
        (LAYER_MPA, 0, 0x07) => {
            ("no ready-to-receive message is common with ", "request: offer more kinds")
        }
        _ => return None,
    })
}

/// The error in words, with its layer, type and code. [`EndReason`] tells which end is at fault.
///
/// [`EndReason`]: crate::verbs::cm::EndReason
impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            EndNames { whose: "the other end's", reporter: "the end that sent the Terminate" };
        describe(self, names, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_named_with_its_code() {
        let text = |layer, kind, code| Terminate::new(layer, kind, code).to_string();
        assert_eq!(
            text(LAYER_DDP, 2, 2),
            "no receive was posted for the other end's Send (DDP untagged, 2)"
        );
        assert_eq!(text(LAYER_MPA, 0, 1), "the TCP connection was lost (MPA, 1)");
        assert_eq!(
            text(7, 3, 9),
            "an error of the other end's messages that has no name (layer 7, type 3, 9)"
        );
        assert!(text(LAYER_DDP, 1, 6).contains("no name"), "that of the other buffer model");
    }

    /// The codes of the specifications' tables, each with words of its own layer.
    #[test]
    fn every_code_of_the_tables_has_words() {
        let codes: [(u8, u8, &[u8]); 7] = [
            (LAYER_RDMAP, 0, &[0]),
            (LAYER_RDMAP, 1, &[0, 1, 2, 3, 4, 9, 0xff]),
            (LAYER_RDMAP, 2, &[5, 6, 7, 8, 9, 0xff]),
            (LAYER_DDP, 0, &[0]),
            (LAYER_DDP, 1, &[0, 1, 2, 3, 4]),
            (LAYER_DDP, 2, &[1, 2, 3, 4, 5, 6]),
            (LAYER_MPA, 0, &[1, 2, 3, 4, 5, 6, 7]),
        ];
        for (layer, kind, codes) in codes {
            for &code in codes {
                let of_message = super::text(layer, kind, code).is_some();
                let of_reporter = failure_text(layer, kind, code).is_some();
                assert!(of_message != of_reporter, "{layer}/{kind}/{code}");
                let words = Terminate::new(layer, kind, code).to_string();
                assert!(!words.contains('\n') && words.len() < 180, "{words}");
            }
        }
        // Others have no words, except local errors, which have one code.
        for (layer, kind, code) in (0..=u8::MAX)
            .flat_map(|high| (0..=u8::MAX).map(move |code| (high >> 4, high & 0x0f, code)))
        {
            let is_named = codes.iter().any(|&(of_layer, of_kind, codes)| {
                (of_layer, of_kind) == (layer, kind) && (codes == [0] || codes.contains(&code))
            });
            let words = Terminate::new(layer, kind, code).to_string();
            assert_eq!(!words.contains("no name"), is_named, "{layer}/{kind}/{code}: {words}");
        }
    }
}
