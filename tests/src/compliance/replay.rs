//! Replays an exchange against one engine and compares what it sends byte by byte.
//!
//! Calls of the application:
//! - `mss N`: MSS of the peer.
//! - `unframed`: listen for connections without MPA startup frames.
//! - `accept`, `connect`: options `revision=`, `ird=`, `ord=`, `crc=`, `markers=`, `rdmap=draft00`
//!   and `data=`.
//! - `region NAME AT LEN RIGHTS`: letters `r`, `w`, `a` for remote read, write and atomic; `i`: for
//!   this stream alone, which the peer may invalidate; `f`: of another protection domain.
//! - `fill AT BYTES`: write to memory.
//! - `recv ID AT LEN`
//! - `send ID BYTES [se] [inv=STAG]`, `sendfrom ID AT LEN`
//! - `write ID STAG TO BYTES`, `writefrom ID STAG TO AT LEN AT LEN`: from two places in memory.
//! - `read ID STAG TO LEN SINK AT`
//! - `atomic ID STAG TO SINK AT add WORD` or `... cmpswap WORD WORD`
//! - `immediate ID BYTES [se]`, `writeimm ID STAG TO BYTES BYTES`
//! - `close`
//!
//! Expected results:
//! - `established`
//! - `memory AT BYTES`: contents of memory.
//! - `done ID RESULT [LEN] [se] [invalidated] [imm=BYTES]`: the next completion.
//! - `idle`: no completion.
//! - `ended WHY`

use std::net::SocketAddr;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, EndReason};
use ferrowarp_proto::verbs::wr::{
    AtomicOp, ImmediateData, Operation, Payload, RecvWr, SgList, Sge,
};

use super::fixture::{FpduFixture, PORT};
use super::golden_exchange::{Step, parse_hex_word};
use crate::raw::CQ;
use crate::sim::world::address;

impl FpduFixture {
    /// Runs an exchange.
    ///
    /// # Panics
    /// If the stack behaves differently; the message names the step.
    pub fn run(&mut self, name: &str, steps: &[Step]) {
        for (index, step) in steps.iter().enumerate() {
            let place = format!("{name}, step {index}");
            match step {
                Step::Stack(words) => {
                    let words: Vec<_> = words.iter().map(String::as_str).collect();
                    self.run_app_step(&place, &words);
                }
                Step::Peer(bytes) => {
                    let bytes = bytes.resolve(&self.stags).expect(&place);
                    self.inject(&bytes);
                }
                Step::Expect(bytes) => {
                    let expected = bytes.resolve(&self.stags).expect(&place);
                    self.settle();
                    let sent = std::mem::take(&mut self.received);
                    assert!(
                        sent == expected,
                        "{place}:\nsent     {sent:02x?}\nexpected {expected:02x?}"
                    );
                }
            }
        }
    }

    fn run_app_step(&mut self, place: &str, words: &[&str]) {
        let number = |word: &str| -> u32 {
            let digits = word.strip_prefix("0x");
            let value = digits.map_or_else(|| word.parse(), |hex| u32::from_str_radix(hex, 16));
            value.unwrap_or_else(|_| panic!("{place}: {word} is no number"))
        };
        let bytes = |word: &str| parse_hex_word(word).expect(place);
        let inline = |word: &str| Payload::inline(&bytes(word)).unwrap();
        match *words {
            ["mss", mss] => self.mss = u16::try_from(number(mss)).expect(place),
            ["unframed"] => {
                self.engine.unlisten(PORT);
                self.engine.listen_unframed(PORT, 8).expect(place);
            }
            ["accept", ref options @ ..] => {
                self.settle();
                let qp = self.create_qp();
                let request = self.request.take().expect(place);
                let param = conn_param(place, options);
                self.engine.accept(self.now, request, qp, &param).expect(place);
            }
            ["connect", ref options @ ..] => {
                let qp = self.create_qp();
                let remote = SocketAddr::new(address(0), PORT);
                let param = conn_param(place, options);
                self.engine.connect(self.now, qp, remote, &param).expect(place);
            }
            ["region", name, at, len, rights] => {
                let mut access = Access::LOCAL_READ | Access::LOCAL_WRITE;
                for (letter, right) in [
                    ('r', Access::REMOTE_READ),
                    ('w', Access::REMOTE_WRITE),
                    ('a', Access::REMOTE_ATOMIC),
                ] {
                    access = if rights.contains(letter) { access | right } else { access };
                }
                let (at, len) = (u64::from(number(at)), u64::from(number(len)));
                let stag = if rights.contains('i') {
                    self.register_for_stream(at, len, access)
                } else {
                    self.register(at, len, access, rights.contains('f'))
                };
                self.stags.insert(name.to_owned(), stag);
            }
            ["fill", at, word] => self.arena.write(number(at) as usize, &bytes(word)),
            ["memory", at, word] => {
                let expected = bytes(word);
                let found = self.arena.read(number(at) as usize, expected.len());
                assert_eq!(found, expected, "{place}");
            }
            ["recv", id, at, len] => {
                let sg_list = [self.sge(number(at), number(len))].into();
                let wr = RecvWr { wr_id: u64::from(number(id)), sg_list };
                self.engine.post_recv(self.qp.expect(place), wr).expect(place);
            }
            ["send", id, word, ref flags @ ..] => {
                let stag = flags.iter().find_map(|flag| flag.strip_prefix("inv="));
                let invalidate = stag.map(&number);
                let payload = if word == "-" { Payload::empty() } else { inline(word) };
                let solicited = flags.contains(&"se");
                self.post_wr(place, number(id), Operation::Send { payload, solicited, invalidate });
            }
            ["sendfrom", id, at, len] => {
                let list = [self.sge(number(at), number(len))].into();
                let payload = Payload::Gather(list);
                let operation = Operation::Send { payload, solicited: false, invalidate: None };
                self.post_wr(place, number(id), operation);
            }
            ["write", id, stag, to, word] => {
                let (rkey, remote) = (number(stag), u64::from(number(to)));
                let payload = if word == "-" { Payload::empty() } else { inline(word) };
                self.post_wr(place, number(id), Operation::Write { payload, rkey, remote });
            }
            ["writefrom", id, stag, to, at, len, other_at, other_len] => {
                let (rkey, remote) = (number(stag), u64::from(number(to)));
                let places = [(at, len), (other_at, other_len)];
                let elements = places.map(|(at, len)| self.sge(number(at), number(len)));
                let payload = Payload::Gather(SgList::try_from_iter(elements).unwrap());
                self.post_wr(place, number(id), Operation::Write { payload, rkey, remote });
            }
            ["read", id, stag, to, len, sink, at] => {
                let lkey = self.stags[sink];
                let sink = Sge { addr: u64::from(number(at)), len: number(len), lkey };
                let (rkey, remote) = (number(stag), u64::from(number(to)));
                self.post_wr(
                    place,
                    number(id),
                    Operation::Read { sink: [sink].into(), rkey, remote },
                );
            }
            ["atomic", id, stag, to, sink, at, ref op @ ..] => {
                let sink = Sge { addr: u64::from(number(at)), len: 8, lkey: self.stags[sink] };
                let word = |word: &str| u64::from_str_radix(word, 16).expect(place);
                let op = match *op {
                    ["add", add] => AtomicOp::fetch_add(word(add)),
                    ["cmpswap", compare, swap] => AtomicOp::cmp_swap(word(compare), word(swap)),
                    _ => panic!("{place}: {op:?} is no atomic operation"),
                };
                let (rkey, remote) = (number(stag), u64::from(number(to)));
                self.post_wr(place, number(id), Operation::Atomic { op, sink, rkey, remote });
            }
            ["immediate", id, data, ref flags @ ..] => {
                let (data, solicited) = (immediate_data(place, data), flags.contains(&"se"));
                self.post_wr(place, number(id), Operation::Immediate { data, solicited });
            }
            ["writeimm", id, stag, to, word, data] => {
                let (rkey, remote, payload) = (number(stag), u64::from(number(to)), inline(word));
                let (data, solicited) = (immediate_data(place, data), false);
                let operation =
                    Operation::WriteImmediate { payload, rkey, remote, data, solicited };
                self.post_wr(place, number(id), operation);
            }
            ["close"] => self.engine.disconnect(self.now, self.qp.expect(place)).expect(place),
            ["established"] => {
                self.settle();
                let event = self.engine.next_event();
                assert!(matches!(event, Some(ConnEvent::Established { .. })), "{place}: {event:?}");
            }
            ["done", id, result, ref len @ ..] => {
                self.settle();
                let wc = self.queues.poll(CQ).unwrap_or_else(|| panic!("{place}: nothing is done"));
                let mut seen = format!("{} {:?}", wc.wr_id, wc.status);
                if !len.is_empty() {
                    seen += &format!(" {}", wc.byte_len);
                }
                for (set, word) in
                    [(wc.solicited, " se"), (wc.invalidated().is_some(), " invalidated")]
                {
                    seen += if set { word } else { "" };
                }
                if let Some(data) = wc.immediate() {
                    seen += &format!(" imm={:016x}", u64::from_be_bytes(data));
                }
                let expected = [&[id, result], len].concat().join(" ");
                assert_eq!(seen, expected, "{place}");
            }
            ["idle"] => {
                self.settle();
                assert_eq!(self.queues.poll(CQ), None, "{place}");
            }
            ["ended", why] => {
                self.settle();
                let event = self.engine.next_event();
                let Some(ConnEvent::Disconnected { reason, .. }) = event else {
                    panic!("{place}: {event:?}")
                };
                let seen = match reason {
                    EndReason::TerminateSent(terminate) => {
                        format!(
                            "sent/{}/{}/{}",
                            terminate.layer, terminate.error_type, terminate.code
                        )
                    }
                    EndReason::TerminateReceived(terminate) => {
                        format!(
                            "received/{}/{}/{}",
                            terminate.layer, terminate.error_type, terminate.code
                        )
                    }
                    other => format!("{other:?}"),
                };
                assert_eq!(seen, why, "{place}");
            }
            _ => panic!("{place}: {words:?} is nothing to do"),
        }
    }
}

fn immediate_data(place: &str, word: &str) -> ImmediateData {
    parse_hex_word(word).expect(place).try_into().expect(place)
}

/// Parses connection parameters.
fn conn_param(place: &str, options: &[&str]) -> ConnParam {
    let mut param = ConnParam::default();
    param.ird = 4;
    param.ord = 4;
    param.peer_to_peer = false;
    for option in options {
        let (name, value) = option.split_once('=').expect(place);
        match name {
            "revision" => param.revision = value.parse().expect(place),
            "ird" => param.ird = value.parse().expect(place),
            "ord" => param.ord = value.parse().expect(place),
            "crc" => param.crc = value == "on",
            "markers" => param.markers = value == "on",
            "rdmap" => param.rdmap_draft00 = value == "draft00",
            "data" => {
                param.private_data =
                    parse_hex_word(value).expect(place).as_slice().try_into().unwrap()
            }
            _ => panic!("{place}: {name} is no option"),
        }
    }
    param
}
