//! A whole engine under test: listeners, several connections, segments without a connection.

use std::net::SocketAddr;
use std::rc::Rc;

use ferrowarp_proto::ddp::vec_memory::VecMemory;
use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam};
use ferrowarp_proto::verbs::qp::{QpCap, QpInit};
use ferrowarp_proto::verbs::wc::{CqId, QpId};

use super::packet::{arp_reply, is_tcp};
use super::script::number;
use super::settings::Settings;
use super::system_under_test::{MACS, OUR_PORT, PEER_PORT, SystemUnderTest, address};
use super::tcb_under_test::counter_by_name;
use crate::sim::heap_device::{FrameQueue, HeapDevice, PoolSizes};
use crate::sim::world::{CompletionQueues, SimEngine};

/// Passes of the engine at one point in time before it is considered an endless loop.
const PASSES_MAX: u32 = 1000;

/// See the [module's documentation](self).
pub struct EngineUnderTest {
    engine: SimEngine,
    settings: Settings,
    inbound: FrameQueue,
    outbound: FrameQueue,
    qp: Option<QpId>,
    events: Vec<String>,
}

impl EngineUnderTest {
    /// An engine without connections.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let pools = PoolSizes { data: 1024, reserve: 16, control: 64 };
        let headers = if settings.ipv6 { 60 } else { 40 };
        let mtu = settings.tcp.mss + headers;
        let device = HeapDevice::new(MACS[0], mtu, pools, usize::MAX);
        let prefix = if settings.ipv6 { 64 } else { 24 };
        let mut config = EngineConfig::new(address(settings, 0), prefix, 1);
        config.tcp = settings.tcp.clone();
        settings.set_engine(&mut config);
        let (inbound, outbound) = (Rc::clone(&device.inbound), Rc::clone(&device.outbound));
        let arena = Rc::new(VecMemory::new(4096));
        let engine = SimEngine::new(config, device, arena, CompletionQueues::new(16, 64));
        Self { engine, settings: settings.clone(), inbound, outbound, qp: None, events: Vec::new() }
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.engine.next_event() {
            let name = match event {
                ConnEvent::ConnectFailed { error, .. } => format!("ConnectFailed({error:?})"),
                event => {
                    let text = format!("{event:?}");
                    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("").to_owned()
                }
            };
            self.events.push(name);
        }
    }
}

impl SystemUnderTest for EngineUnderTest {
    fn receive(&mut self, _now: Instant, burst: &[Vec<u8>]) -> Result<(), String> {
        self.inbound.borrow_mut().extend(burst.iter().cloned());
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.engine.deadline()
    }

    fn poll_transmit(&mut self, now: Instant) -> Result<Vec<Vec<u8>>, String> {
        let mut out = Vec::new();
        for _ in 0..PASSES_MAX {
            let worked = self.engine.drive(now);
            self.handle_events();
            for frame in self.outbound.borrow_mut().drain(..) {
                // Traces are about TCP: ARP requests are answered here.
                if let Some(reply) = arp_reply(&frame, MACS[1]) {
                    self.inbound.borrow_mut().push_back(reply);
                } else if is_tcp(&frame) {
                    out.push(frame);
                }
            }
            if !worked && self.inbound.borrow().is_empty() {
                return Ok(out);
            }
        }
        Err("the engine never rests".to_owned())
    }

    fn call(&mut self, now: Instant, words: &[&str]) -> Result<(), String> {
        match *words {
            ["listen"] => self.engine.listen(OUR_PORT, 4).map_err(|error| error.to_string()),
            ["listen", "backlog", count] => {
                let count = usize::try_from(number(count)?).map_err(|_| "a negative count")?;
                self.engine.listen(OUR_PORT, count).map_err(|error| error.to_string())
            }
            ["listen", "unframed", "backlog", count] => {
                let count = usize::try_from(number(count)?).map_err(|_| "a negative count")?;
                self.engine.listen_unframed(OUR_PORT, count).map_err(|error| error.to_string())
            }
            ["unlisten"] => {
                self.engine.unlisten(OUR_PORT);
                Ok(())
            }
            ["connect"] => {
                let cq = CqId(0);
                let init = QpInit { pd: 1, send_cq: cq, recv_cq: cq, cap: QpCap::new(4, 4) };
                let qp = self.engine.create_qp(init).map_err(|error| error.to_string())?;
                self.qp = Some(qp);
                let peer = SocketAddr::new(address(&self.settings, 1), PEER_PORT);
                let param = ConnParam::default();
                self.engine.connect(now, qp, peer, &param).map_err(|error| error.to_string())
            }
            ["disconnect"] => {
                let qp = self.qp.ok_or("there is no queue pair")?;
                self.engine.disconnect(now, qp).map_err(|error| error.to_string())
            }
            _ => Err(format!("an engine has no call `{}`", words.join(" "))),
        }
    }

    fn state(&self) -> String {
        self.qp.map_or("None".to_owned(), |qp| format!("{:?}", self.engine.qp_state(qp)))
    }

    fn counter(&self, name: &str) -> Option<u64> {
        match name {
            "connections" => Some(self.engine.connection_count() as u64),
            _ => counter_by_name(&format!("{:?}", self.engine.counters()), name),
        }
    }

    fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }
}
