//! The attacks of the hostile host, one function for each case.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::peer::{Header, PEER_STAG, ReadRequest, Role, Startup, fpdu};

use super::host::{Host, State};
use super::junk::Junk;

/// Time limit for connecting; a stack that refuses some connections is not waited for any longer.
const CONNECTING: Duration = Duration::from_secs(2);
/// Time limit for one connection's part of an exchange.
const EXCHANGE: Duration = Duration::from_secs(60);
/// Time after which a request without an answer is sent again: the host's answers to probes are not
/// paced, so the interface's queue may drop any frame.
const REPEAT_AFTER: Duration = Duration::from_secs(1);
/// Bytes that `never_ack` and `zero_window` leave unacknowledged.
const IN_FLIGHT: u32 = 64 << 10;
/// Holes of `ooo_holes`.
const HOLES: usize = 4096;

/// Data shared between a case and its attack function.
pub(crate) struct AttackContext<'a> {
    /// Number of connections.
    pub(crate) count: usize,
    /// STag and address of the readable region.
    pub(crate) shared: (u32, u64),
    /// Set by the attack when it is in place and clients may start.
    pub(crate) is_set: &'a AtomicBool,
    /// Set when the clients are done.
    pub(crate) is_over: &'a AtomicBool,
}

impl AttackContext<'_> {
    /// Lets the clients start; returns true until they are done.
    fn signal_and_continue(&self) -> bool {
        self.is_set.store(true, Ordering::Relaxed);
        !self.is_over.load(Ordering::Relaxed)
    }
}

/// Opens all connections, calls `first` once for each that is up, and reopens those that were
/// reset.
fn connect_and_hold(
    host: &mut Host,
    context: &AttackContext<'_>,
    first: impl Fn(&mut Host, usize),
) {
    let mut limit = CONNECTING;
    loop {
        host.connect(context.count, limit);
        for index in host.up() {
            if host.conns[index].step == 0 {
                host.conns[index].step = 1;
                first(host, index);
            }
        }
        if !context.signal_and_continue() {
            return;
        }
        host.idle(Duration::from_millis(100));
        for index in 0..host.conns.len() {
            if host.conns[index].state == State::Reset {
                host.reopen(index);
            }
        }
        limit = Duration::from_millis(100);
    }
}

/// Connections that send nothing after the handshake.
pub(crate) fn silent(host: &mut Host, context: &AttackContext<'_>) {
    connect_and_hold(host, context, |_, _| {});
}

/// Connections that stop in the middle of the MPA Request.
pub(crate) fn partial_request(host: &mut Host, context: &AttackContext<'_>) {
    let request = Startup::default().encode(Role::Initiator);
    connect_and_hold(host, context, |host, index| host.send(index, &request[..13]));
}

/// Connections that have completed the MPA startup; all of the host's, if the stack accepts that
/// many.
fn started(host: &mut Host, context: &AttackContext<'_>) -> Vec<usize> {
    // In batches: the application accepts one after the other.
    let mut found = Vec::new();
    while host.conns.len() < context.count {
        let before = host.conns.len();
        host.connect((before + 64).min(context.count), CONNECTING);
        found.extend(host.start_from(before, EXCHANGE));
    }
    assert_eq!(found.len(), context.count, "of an idle stack all get their reply");
    found
}

/// Keeps all connections alive until the clients are done.
fn hold_until_over(host: &mut Host, context: &AttackContext<'_>) {
    while context.signal_and_continue() {
        host.idle(Duration::from_millis(20));
    }
}

fn send_fpdu(len: usize) -> Vec<u8> {
    fpdu(&Header::send(1, 0, true).encode(&vec![0x5A; len]), true)
}

/// Connections that stop in the middle of an FPDU.
pub(crate) fn partial_fpdu(host: &mut Host, context: &AttackContext<'_>) {
    let bytes = send_fpdu(1000);
    for index in started(host, context) {
        host.send(index, &bytes[..500]);
        host.poll();
    }
    hold_until_over(host, context);
}

/// A Read Request for the first bytes of the region.
fn read_fpdu(context: &AttackContext<'_>, msn: u32) -> Vec<u8> {
    let (source_stag, source_to) = context.shared;
    let request =
        ReadRequest { sink_stag: PEER_STAG, sink_to: 0, len: IN_FLIGHT, source_stag, source_to };
    fpdu(&Header::read(msn).encode(&request.encode()), true)
}

/// Puts 64 KiB in flight on every connection, none of it acknowledged.
fn fill_send_windows(host: &mut Host, context: &AttackContext<'_>) {
    let [first, second] = [1, 2].map(|msn| read_fpdu(context, msn));
    let started = started(host, context);
    // The first response is acknowledged, so that the congestion window admits all of the second.
    for &index in &started {
        let wanted = host.conns[index].received_len + u64::from(IN_FLIGHT);
        host.send(index, &first);
        let (since, mut sent_at) = (Instant::now(), Instant::now());
        while host.conns[index].received_len < wanted {
            let conn = &host.conns[index];
            assert!(
                since.elapsed() < EXCHANGE,
                "an idle stack sends what was asked for: {:?}, {} bytes of {wanted}",
                conn.state,
                conn.received_len
            );
            if sent_at.elapsed() > REPEAT_AFTER {
                sent_at = Instant::now();
                host.resend(index, &first);
            }
            host.poll();
        }
        host.idle(Duration::from_micros(200));
    }
    for index in started {
        host.conns[index].acks_data = false;
        host.send(index, &second);
        host.poll();
    }
    host.idle(Duration::from_millis(100));
}

/// Connections that stop acknowledging with 64 KiB in flight.
pub(crate) fn never_ack(host: &mut Host, context: &AttackContext<'_>) {
    fill_send_windows(host, context);
    hold_until_over(host, context);
}

/// Connections that keep their window closed with 64 KiB in flight: they repeat the zero-window ACK
/// and acknowledge no data.
pub(crate) fn zero_window(host: &mut Host, context: &AttackContext<'_>) {
    fill_send_windows(host, context);
    for conn in &mut host.conns {
        conn.window = 0;
    }
    loop {
        for index in host.up() {
            let seq = host.conns[index].seq;
            host.segment(index, Flags::ACK, seq, &[]);
        }
        if !context.signal_and_continue() {
            return;
        }
        host.idle(Duration::from_millis(500));
    }
}

/// Connections that send a byte per second: half of them of the MPA Request, the others of an FPDU.
pub(crate) fn one_byte_per_second(host: &mut Host, context: &AttackContext<'_>) {
    let fpdus = AttackContext { count: context.count / 2, ..*context };
    let started = started(host, &fpdus);
    let fpdu = send_fpdu(1000);
    let request = Startup::default().encode(Role::Initiator);
    loop {
        let since = Instant::now();
        host.connect(context.count, CONNECTING);
        for index in host.up() {
            let bytes = if index < started.len() { &fpdu } else { &request };
            let at = host.conns[index].step % bytes.len();
            host.conns[index].step += 1;
            host.send(index, &bytes[at..=at]);
            host.poll();
        }
        if !context.signal_and_continue() {
            return;
        }
        host.idle(Duration::from_secs(1).saturating_sub(since.elapsed()));
    }
}

/// Connections that open 4,096 holes of one byte, and retransmit the bytes between them.
pub(crate) fn ooo_holes(host: &mut Host, context: &AttackContext<'_>) {
    let bytes = send_fpdu(2 * HOLES);
    let started = started(host, context);
    loop {
        for at in 0..HOLES {
            for &index in &started {
                let offset = 2 * at + 1;
                let seq = host.conns[index].seq + u32::try_from(offset).expect("small");
                host.segment(index, Flags::ACK, seq, &bytes[offset..=offset]);
            }
            host.poll();
            if host.conns[0].step > 0 && !context.signal_and_continue() {
                return;
            }
        }
        host.conns[0].step += 1;
    }
}

/// Connections that send a request and a RST, one batch after the other.
pub(crate) fn request_and_reset(host: &mut Host, context: &AttackContext<'_>) {
    let request = Startup::default().encode(Role::Initiator);
    let mut asked = 0;
    loop {
        host.connect(32, Duration::from_millis(500));
        for index in host.up() {
            host.send(index, &request);
            let seq = host.conns[index].seq;
            host.segment(index, Flags::RST, seq, &[]);
            asked += 1;
        }
        for index in 0..host.conns.len() {
            if host.conns[index].state != State::SynSent {
                host.reopen(index);
            }
        }
        if asked >= context.count && !context.signal_and_continue() {
            return;
        }
    }
}

/// Junk of all kinds at link rate.
pub(crate) fn junk(host: &mut Host, context: &AttackContext<'_>) {
    let mut junk = Junk::new(host.macs());
    for _ in 0..context.count {
        let frame = junk.next();
        host.send_frame(&frame);
    }
    while context.signal_and_continue() {
        for _ in 0..64 {
            let frame = junk.next();
            host.send_frame(&frame);
        }
        host.poll();
    }
}
