//! Servers with several clients, and with clients that violate the protocol, over a pair of rings;
//! one thread steps all of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, RwLockWriteGuard};
use std::time::{Duration, Instant};

use ferrowarp::device::DeviceSpec;
use ferrowarp::{Access, Config, Context, ListenAddr, Wc};
use ferrowarp_apps::copy::copy_message::RdmaOp;
use ferrowarp_apps::copy::sink::{Sink, open_output};
use ferrowarp_apps::copy::source::Source;
use ferrowarp_apps::endpoint::{Endpoint, WrId, conn_param, poll_established};
use ferrowarp_apps::message_channel::MessageChannel;
use ferrowarp_apps::mpa_options::IrdOrdArgs;
use ferrowarp_apps::perf;
use ferrowarp_apps::ping;
use ferrowarp_apps::ping::advert::{Advert, SIZE_MAX};
use ferrowarp_apps::run_loop::{Step, Task};

use crate::{alone, perf_options, ping_options};

const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Idle timeout of the servers, and the limit for a step of a test. Nothing here takes as long,
/// even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

struct RingPair {
    client: Context,
    server: Context,
    _lock: RwLockWriteGuard<'static, ()>,
}

fn pair() -> RingPair {
    let lock = alone();
    let left = Config::new(DeviceSpec::Ring, Ipv4Addr::new(198, 18, 0, 1).into(), 24);
    let right = Config::new(DeviceSpec::Ring, SERVER.into(), 24);
    let (client, server) = Context::ring_pair(left, right).unwrap();
    RingPair { client, server, _lock: lock }
}

fn remote(port: u16) -> SocketAddr {
    SocketAddr::new(SERVER.into(), port)
}

/// Lines that a task reported.
#[derive(Clone, Default)]
pub(crate) struct CapturedLines(Arc<Mutex<Vec<String>>>);

impl CapturedLines {
    pub(crate) fn hook(&self) -> Box<dyn FnMut(&str) + Send> {
        let lines = self.clone();
        Box::new(move |line| lines.0.lock().unwrap().push(line.to_owned()))
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Steps the server and a client until the client is finished or fails.
fn run_client(server: &mut impl Task, client: &mut impl Task) -> anyhow::Result<()> {
    let start = Instant::now();
    while client.step()? == Step::Running {
        server.step().unwrap();
        assert!(start.elapsed() < 4 * TIMEOUT, "the client hangs");
    }
    Ok(())
}

fn drive_50_ms(server: &mut impl Task) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        server.step().unwrap();
    }
}

fn perf_server(context: &Context, port: u16, lines: &CapturedLines) -> perf::server::Server {
    let reads = IrdOrdArgs::default();
    let workers = perf::server::Server::workers(context, port, false, TIMEOUT, reads, lines.hook());
    workers.unwrap().remove(0)
}

fn perf_client(context: &Context, line: &str) -> perf::client::Client {
    crate::perf_client(context, remote(perf::iwperf_options::PORT), &perf_options(line))
}

#[test]
fn servers_listen_on_the_address_that_they_are_told() {
    let pair = pair();
    let (common, _) = ping_options("--timeout 30");
    let sink_on = |addr: ListenAddr| {
        let sink = Sink::new(&pair.server, addr, None, TIMEOUT)?;
        Ok::<_, anyhow::Error>(sink.local_addr())
    };
    let pings_on = |addr| {
        let hook = CapturedLines::default().hook();
        ping::ping_server::PingServer::workers(&pair.server, &common, addr, None, hook)
    };
    for (bind, is_local) in [("198.18.0.2", true), ("0.0.0.0", true), ("198.18.0.1", false)] {
        let addr = ListenAddr::from((bind.parse::<IpAddr>().unwrap(), 18516));
        assert_eq!(pings_on(addr).is_ok(), is_local, "{bind}");
        match sink_on(addr) {
            Ok(found) => assert_eq!((found, is_local), (addr, true)),
            Err(error) => assert!(!is_local && error.to_string().contains("local address")),
        }
    }
    assert_eq!(sink_on(ListenAddr::from(18516_u16)).unwrap().ip(), None, "all addresses");
}

#[test]
fn persistent_ping_server_serves_concurrent_clients() {
    let pair = pair();
    let failures = CapturedLines::default();
    let (common, rounds) = ping_options("--timeout 30 -S 1000 -V --markers");
    let workers = ping::ping_server::PingServer::workers(
        &pair.server,
        &common,
        common.port.into(),
        Some(8),
        failures.hook(),
    );
    let mut server = workers.unwrap().remove(0);
    let mut clients: Vec<ping::ping_client::PingClient> = (1..=8)
        .map(|n| {
            let count = n * 10;
            let remote = remote(common.port);
            ping::ping_client::PingClient::new(&pair.client, remote, &common, &rounds, count)
                .unwrap()
        })
        .collect();
    let mut running = vec![true; clients.len()];
    let start = Instant::now();
    while running.iter().any(|&on| on) {
        assert!(start.elapsed() < 4 * TIMEOUT, "a client hangs");
        server.step().unwrap();
        for (client, on) in clients.iter_mut().zip(&mut running) {
            *on = *on && client.step().unwrap() == Step::Running;
        }
    }
    for (n, client) in (1..).zip(&clients) {
        assert_eq!(client.latencies.histogram().len(), n * 10);
    }
    assert_eq!(failures.all(), Vec::<String>::new());
}

#[test]
fn perf_server_rejects_a_second_concurrent_session() {
    let pair = pair();
    let lines = CapturedLines::default();
    let mut server = perf_server(&pair.server, 18515, &lines);
    for line in ["send-bw -D 0.2 -q 3 -b --verify", "write-lat -D 0.2", "read-bw -D 0.2 -s 1"] {
        let mut first = perf_client(&pair.client, line);
        // The first session is accepted; a second client connects.
        for _ in 0..200 {
            let _ = first.step().unwrap();
            server.step().unwrap();
        }
        let mut second = perf_client(&pair.client, "write-bw");
        let refused = loop {
            let _ = first.step().unwrap();
            server.step().unwrap();
            match second.step() {
                Ok(Step::Running) => {}
                Ok(Step::Finished) => break None,
                Err(error) => break Some(error.to_string()),
            }
        };
        drop(second);
        run_client(&mut server, &mut first).unwrap();
        drive_50_ms(&mut server);
        assert_eq!(first.results[0].errors, 0);
        let reason = refused.expect("the second client was accepted");
        assert!(reason.contains("busy with another client"), "{reason}");
    }
    assert_eq!(lines.all(), ["send-bw", "write-lat", "read-bw"]);
}

#[test]
fn malformed_clients_are_rejected_and_next_is_served() {
    let pair = pair();
    let lines = CapturedLines::default();
    let mut server = perf_server(&pair.server, 18515, &lines);
    let group = perf::private_data::Group::single(1);
    let control =
        perf::private_data::ConnRole::Control { token: 1, qps: 1, tx_depth: 8, rx_depth: 8, group };
    let over_limit = perf::private_data::ConnRole::Control {
        token: 1,
        qps: u32::MAX,
        tx_depth: u32::MAX,
        rx_depth: u32::MAX,
        group,
    };
    let garbage = vec![0xA5; 40];
    let unannounced =
        perf::control::ControlFrame { run: 0, message: perf::control::Message::Go }.emit();
    // Private data, and the first message of clients that are accepted.
    let cases: [(Vec<u8>, Option<Vec<u8>>); 5] = [
        (Vec::new(), None),
        (garbage.clone(), None),
        (over_limit.emit(), None),
        (control.emit(), Some(garbage)),
        (control.emit(), Some(unannounced)),
    ];
    for (private, message) in cases {
        let end = Endpoint::new(&pair.client, 64).unwrap();
        let mut channel = MessageChannel::new(&end, 8, 256).unwrap();
        channel.qp.connect(remote(18515), conn_param(true, false, 4, &private).unwrap()).unwrap();
        let mut batch = [Wc::default(); 64];
        let mut is_up = false;
        let start = Instant::now();
        let outcome = loop {
            assert!(start.elapsed() < TIMEOUT, "the server does not reject the client");
            server.step().unwrap();
            let polled = end.poll(&mut batch);
            if !is_up {
                match poll_established(&channel.qp) {
                    Ok(Some(_)) => {
                        is_up = true;
                        channel
                            .send(message.as_ref().expect("a client to be rejected was accepted"))
                            .unwrap();
                    }
                    Ok(None) => {}
                    Err(error) => break error.to_string(),
                }
                continue;
            }
            let answers: anyhow::Result<Vec<_>> =
                polled.iter().map(|wc| channel.on_completion(WrId::unpack(wc.wr_id), wc)).collect();
            match answers {
                Ok(_) => {}
                Err(error) => break error.to_string(),
            }
        };
        assert_eq!(is_up, message.is_some(), "{outcome}");
        drop((channel, end));
        drive_50_ms(&mut server);
    }
    let mut client = perf_client(&pair.client, "write-bw -n 20 --verify --markers");
    run_client(&mut server, &mut client).unwrap();
    assert_eq!(client.results[0].bytes_verified, 20 * 65536);
    assert_eq!(lines.all().iter().filter(|line| line.contains("failed")).count(), 2);
}

#[test]
fn silent_server_times_out() {
    let pair = pair();
    let lines = CapturedLines::default();
    let mut server = perf_server(&pair.server, 18515, &lines);
    let mut client = perf_client(&pair.client, "write-lat -D 60 --timeout 0.3");
    let start = Instant::now();
    let error = loop {
        // After 100 ms the server is not stepped any more.
        if start.elapsed() < Duration::from_millis(100) {
            server.step().unwrap();
        }
        if let Err(error) = client.step() {
            break error.to_string();
        }
        assert!(start.elapsed() < TIMEOUT, "the client does not time out");
    };
    assert!(error.contains("nothing from the peer for 0.3 s"), "{error}");
    assert_eq!(client.unfinished().unwrap().errors, 1);
}

/// Steps source and sink of a copy until both have failed; returns their errors.
fn copy_errors(source: &mut Source, sink: &mut Sink, before: impl Fn(u32)) -> [String; 2] {
    let start = Instant::now();
    let mut errors = [None, None];
    let mut steps = 0;
    while errors.iter().any(Option::is_none) {
        assert!(start.elapsed() < TIMEOUT, "a copy hangs: {errors:?}");
        before(steps);
        steps += 1;
        let tasks: [&mut dyn Task; 2] = [source, sink];
        for (task, error) in tasks.into_iter().zip(&mut errors) {
            match task.step() {
                Err(failed) if error.is_none() => *error = Some(format!("{failed:#}")),
                _ => {}
            }
        }
    }
    errors.map(Option::unwrap)
}

#[test]
fn source_learns_why_the_sink_refuses_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (file, there) = (folder.path().join("file"), folder.path().join("there"));
    std::fs::write(&file, [7; 1000]).unwrap();
    std::fs::write(&there, "old").unwrap();
    let absent = folder.path().join("absent/file");
    for (out, cause) in [(&there, "File exists"), (&absent, "No such file or directory")] {
        // Before anybody can connect.
        let error = format!("{:#}", open_output(Some(out)).unwrap_err());
        assert!(error.starts_with("cannot write ") && error.contains(cause), "{error}");
    }
    let pair = pair();
    let out = open_output(Some(Path::new("/dev/full"))).unwrap();
    let mut sink = Sink::new(&pair.server, 18516, out, TIMEOUT).unwrap();
    let mut source =
        Source::new(&pair.client, remote(18516), &file, RdmaOp::Write, TIMEOUT).unwrap();
    let [at_source, at_sink] = copy_errors(&mut source, &mut sink, |_| {});
    let cause = "No space left on device";
    assert!(at_sink.contains(cause) && at_sink.contains("cannot write"), "{at_sink}");
    let expected = "the peer failed: its file cannot be read or written: ";
    assert!(at_source.starts_with(expected) && at_source.contains(cause), "{at_source}");
    assert_eq!(std::fs::read(&there).unwrap(), b"old");
}

#[test]
fn sink_learns_why_the_source_ends_early() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let copy = folder.path().join("copy");
    for by in [RdmaOp::Write, RdmaOp::Read] {
        std::fs::write(&file, vec![7; 20 << 20]).unwrap();
        let pair = pair();
        let mut sink =
            Sink::new(&pair.server, 18516, open_output(Some(&copy)).unwrap(), TIMEOUT).unwrap();
        let mut source = Source::new(&pair.client, remote(18516), &file, by, TIMEOUT).unwrap();
        let truncate = |step| {
            if step == 5 {
                std::fs::File::options().write(true).open(&file).unwrap().set_len(2 << 20).unwrap();
            }
        };
        let [at_source, at_sink] = copy_errors(&mut source, &mut sink, truncate);
        assert!(at_source.contains("did it change?"), "{at_source}");
        let expected = "the peer failed: its file cannot be read or written: ";
        assert!(at_sink.starts_with(expected), "{at_sink}");
        drop(sink);
        assert!(!copy.exists(), "an incomplete copy stays");
    }
}

#[test]
fn second_source_learns_that_the_sink_is_busy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, vec![7; 9 << 20]).unwrap();
    let pair = pair();
    let mut sink = Sink::new(&pair.server, 18516, None, TIMEOUT).unwrap();
    let source =
        || Source::new(&pair.client, remote(18516), &file, RdmaOp::Write, TIMEOUT).unwrap();
    let mut first = source();
    for _ in 0..20 {
        let _ = first.step().unwrap();
        let _ = sink.step().unwrap();
    }
    let mut second = source();
    let error = loop {
        let _ = first.step().unwrap();
        let _ = sink.step().unwrap();
        if let Err(error) = second.step() {
            break error.to_string();
        }
    };
    assert_eq!(error, "refused by the peer: busy with another file: try again later");
}

/// The client answers nothing once it has asked for the last Write of a round.
#[test]
fn ping_client_that_takes_nothing_is_given_up() {
    let pair = pair();
    let failures = CapturedLines::default();
    let (common, _) = ping_options("--timeout 0.5");
    let workers = ping::ping_server::PingServer::workers(
        &pair.server,
        &common,
        common.port.into(),
        Some(8),
        failures.hook(),
    );
    let mut server = workers.unwrap().remove(0);
    let end = Endpoint::new(&pair.client, 64).unwrap();
    let mut channel = MessageChannel::new(&end, 8, 16).unwrap();
    channel.qp.connect(remote(common.port), conn_param(true, false, 4, &[]).unwrap()).unwrap();
    let memory = end.alloc_mr(SIZE_MAX as usize, Access::ALL).unwrap();
    let advert = Advert { addr: memory.addr(), rkey: memory.rkey(), size: SIZE_MAX };
    let start = Instant::now();
    let mut batch = [Wc::default(); 64];
    let mut adverts = 0;
    while adverts < 2 {
        assert!(start.elapsed() < TIMEOUT, "the round hangs");
        let _ = server.step().unwrap();
        let polled = end.poll(&mut batch);
        let is_up = adverts == 0 && poll_established(&channel.qp).unwrap().is_some();
        let answers = polled
            .iter()
            .filter(|wc| channel.on_completion(WrId::unpack(wc.wr_id), wc).unwrap().is_some());
        if is_up || answers.count() > 0 {
            channel.send(&advert.emit()).unwrap();
            adverts += 1;
        }
    }
    end.drive();
    while failures.all().is_empty() {
        assert!(start.elapsed() < TIMEOUT, "the client is served for ever");
        let _ = server.step().unwrap();
    }
    let expected = "a client failed: nothing from the peer for 0.5 s while waiting for a client: \
                    is it still running?";
    assert_eq!(failures.all(), [expected]);
}
