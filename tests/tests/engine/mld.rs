//! Multicast Listener Discovery (MLD): a snooping switch learns the stack's multicast groups.

use std::net::Ipv6Addr;

use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::net::ndp::solicited_node;
use ferrowarp_proto::time::{Instant, MILLISECOND, SECOND};
use ferrowarp_tests::frame::is_membership_report;
use ferrowarp_tests::ip;
use ferrowarp_tests::raw::{SegmentFixture, device};
use ferrowarp_tests::sim::world::{address, address_v6};

const QUERIER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Offsets of a report's type and first record; an MLDv1 report has its group at TYPE + 8, too.
const TYPE: usize = 14 + 48;
const RECORD: usize = TYPE + 8;

fn new_fixture(change: impl FnOnce(&mut EngineConfig)) -> SegmentFixture {
    let mut config = EngineConfig::new(address_v6(1), 64, 7);
    change(&mut config);
    SegmentFixture::with_device(device(64), config)
}

/// Advances time; returns the reports sent, with their times.
fn reports_within(fx: &mut SegmentFixture, ns: u64) -> Vec<(Instant, Vec<u8>)> {
    let (end, mut reports) = (fx.now + ns, Vec::new());
    while fx.now < end {
        fx.drive();
        for frame in fx.take_sent() {
            if is_membership_report(&frame) {
                reports.push((fx.now, frame));
            }
        }
        let next = fx.engine.deadline().unwrap_or(end).max(fx.now + MILLISECOND);
        fx.now = next.min(end);
    }
    reports
}

fn inject_query(fx: &SegmentFixture, len: u8, delay_ms: u16, group: Ipv6Addr) {
    let dst = if group.is_unspecified() { ALL_NODES } else { group };
    let mut message = vec![0; usize::from(len)];
    message[0] = 130;
    message[4..6].copy_from_slice(&delay_ms.to_be_bytes());
    message[8..24].copy_from_slice(&group.octets());
    let addresses = [QUERIER.octets(), dst.octets()].concat();
    let sum = ip::transport_checksum(&addresses, 58, &message);
    message[2..4].copy_from_slice(&sum);
    let [.., a, b, c, d] = dst.octets();
    let mut frame = vec![0x33, 0x33, a, b, c, d, 2, 0, 0, 0, 0, 9, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, 8 + len, 0, 1]);
    frame.extend(QUERIER.octets());
    frame.extend(dst.octets());
    frame.extend([58, 0, 5, 2, 0, 0, 1, 0]);
    frame.extend(message);
    fx.inject(frame);
}

fn our_solicited_node_group() -> Ipv6Addr {
    let std::net::IpAddr::V6(ours) = address_v6(1) else { panic!("an IPv6 address") };
    solicited_node(ours)
}

#[test]
fn mld_reports_are_sent_twice_at_startup() {
    let mut fx = new_fixture(|_| {});
    let reports = reports_within(&mut fx, 60 * SECOND);
    assert_eq!(reports.len(), 2);
    assert!(reports[1].0.since(reports[0].0) <= SECOND);
    for (_, report) in &reports {
        assert_eq!(report[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
        assert_eq!(
            (report[TYPE], report[TYPE + 7], report[RECORD]),
            (143, 1, 4),
            "one, from now on"
        );
        assert_eq!(report[RECORD + 4..RECORD + 20], our_solicited_node_group().octets());
    }
}

#[test]
fn mld_query_is_answered_within_its_response_delay() {
    for group in [Ipv6Addr::UNSPECIFIED, our_solicited_node_group()] {
        let mut fx = new_fixture(|_| {});
        reports_within(&mut fx, 5 * SECOND);
        let asked = fx.now;
        inject_query(&fx, 28, 2000, group);
        let reports = reports_within(&mut fx, 60 * SECOND);
        assert_eq!(reports.len(), 1);
        assert!(reports[0].0.since(asked) <= 2 * SECOND);
        assert_eq!((reports[0].1[TYPE], reports[0].1[RECORD]), (143, 2), "as it is");
        // A querier of MLDv1 understands no MLDv2 reports.
        inject_query(&fx, 24, 2000, group);
        let reports = reports_within(&mut fx, 60 * SECOND);
        assert_eq!((reports.len(), reports[0].1[TYPE]), (1, 131));
        assert_eq!(reports[0].1[TYPE + 8..TYPE + 24], our_solicited_node_group().octets());
    }
}

#[test]
fn mld_query_for_other_groups_is_ignored() {
    let mut fx = new_fixture(|_| {});
    reports_within(&mut fx, 5 * SECOND);
    inject_query(&fx, 28, 1000, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0x7777));
    assert!(reports_within(&mut fx, 10 * SECOND).is_empty());
    let mut v4 = new_fixture(|config| config.addresses[0].ip = address(1));
    assert!(reports_within(&mut v4, 10 * SECOND).is_empty());
    inject_query(&v4, 28, 1000, Ipv6Addr::UNSPECIFIED);
    assert!(reports_within(&mut v4, 10 * SECOND).is_empty());
}

#[test]
fn mld_report_waits_for_a_free_frame() {
    let mut fx = new_fixture(|_| {});
    fx.engine.device().set_exhausted([false, true]);
    assert!(reports_within(&mut fx, SECOND).is_empty());
    fx.engine.device().set_exhausted([false, false]);
    assert_eq!(reports_within(&mut fx, 10 * SECOND).len(), 2);
}
