//! Messages between the shards of a port.

use crate::net::fragments::Reassembled;
use crate::net::icmp_error::IcmpError;
use crate::net::neighbor::{Advert, Solicit};
use crate::wire::tcp::Segment;

/// Message from one shard to another. What is rare is boxed, so that a slot of a ring is small.
#[derive(Debug)]
pub(crate) enum Message<R> {
    /// A frame as the port received it, for its owner.
    Frame(R),
    /// A TCP segment reassembled from fragments, for its owner.
    Segment(Box<(Segment, Reassembled)>),
    /// An ICMP error, for the owner of the four-tuple that it quotes.
    IcmpError(Box<IcmpError>),
    /// A neighbor has sent its hardware address.
    Advert(Box<Advert>),
    /// There are as many connections over all shards as there may be: the receiver is to remove the
    /// one that it has had in TIME-WAIT for the longest time.
    RecycleTimeWait,
    /// The shard that sends all solicitations is to send this one.
    Solicit(Box<Solicit>),
}
