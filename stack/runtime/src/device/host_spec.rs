//! Queues and mempool that a host program lends, by name: the device
//! `port:NAME,queues=FIRST-LAST,mempool=NAME`.

use core::fmt;
use core::ops::Range;

/// Queue pairs of a port that the host program owns, and a mempool for what is sent on them.
///
/// Its text is `port:NAME,queues=FIRST-LAST,mempool=NAME`, or `queues=N` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The port's name, as `rte_eth_dev_get_name_by_port` gives it, or its number in decimal.
    pub port: String,
    /// Numbers of the queue pairs: the receive and the transmit queue of each number. There are as
    /// many shards. At least one.
    pub queues: Range<u16>,
    /// Name of the mempool of mbufs from which the stack allocates all frames that it sends. It has
    /// to be looked up by `rte_mempool_lookup`, and best serves nothing else.
    pub mempool: String,
}

impl HostPort {
    /// Parses what follows `port:`, which has a comma.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let mut fields = text.split(',');
        let port =
            fields.next().filter(|name| !name.is_empty()).ok_or("the port's name is missing")?;
        let (mut queues, mut mempool) = (None, None);
        for field in fields {
            match field.split_once('=') {
                Some(("queues", range)) if queues.is_none() => queues = Some(parse_queues(range)?),
                Some(("mempool", "")) => return Err("the mempool's name is missing"),
                Some(("mempool", name)) if mempool.is_none() => mempool = Some(name.to_owned()),
                _ => return Err("give queues=FIRST-LAST and mempool=NAME after the port, once"),
            }
        }
        let queues = queues.ok_or("give the queues that are lent, queues=FIRST-LAST")?;
        let mempool = mempool.ok_or("give a mempool for what is sent, mempool=NAME")?;
        Ok(Self { port: port.to_owned(), queues, mempool })
    }
}

/// Parses `FIRST-LAST`, or the number of a single queue.
fn parse_queues(text: &str) -> Result<Range<u16>, &'static str> {
    const REASON: &str = "queues look like 2-3, or 2";
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u16>().map_err(|_| REASON);
    let (first, last) = (number(first)?, number(last)?);
    let end = last.checked_add(1).filter(|&end| first < end).ok_or(REASON)?;
    Ok(first..end)
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, queues: Range { start, end }, mempool } = self;
        write!(f, "port:{port},queues={start}")?;
        if end.saturating_sub(*start) != 1 {
            write!(f, "-{}", end.saturating_sub(1))?;
        }
        write!(f, ",mempool={mempool}")
    }
}
