use super::*;
use crate::GilbertElliott;

/// TCP frame over IPv4 with ECT(0), `len` bytes in all, that contains its number.
fn frame(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..16].copy_from_slice(&[0x45, 2]);
    bytes[23] = 6;
    bytes[46] = 0x50;
    bytes[len - 4..].copy_from_slice(&u32::try_from(number).unwrap().to_be_bytes());
    bytes
}

fn number(frame: &[u8]) -> usize {
    u32::from_be_bytes(*frame.last_chunk().unwrap()) as usize
}

fn link(faults: Faults) -> LinkEmulator<Vec<u8>> {
    LinkEmulator::new(faults, 7)
}

/// Sends `count` frames, one per microsecond, and returns those that arrive with their times.
fn send_all(link: &mut LinkEmulator<Vec<u8>>, count: usize) -> Vec<(u64, Vec<u8>)> {
    for index in 0..count {
        link.send(index as u64 * 1000, frame(index, 100), |frame| Some(frame.clone()));
    }
    drain(link)
}

fn drain(link: &mut LinkEmulator<Vec<u8>>) -> Vec<(u64, Vec<u8>)> {
    let mut arrived = Vec::new();
    while let Some(at) = link.next_arrival_ns() {
        assert!(at == 0 || link.receive(at - 1).is_none());
        arrived.push((at, link.receive(at).unwrap()));
    }
    arrived
}

fn numbers(arrived: &[(u64, Vec<u8>)]) -> Vec<usize> {
    arrived.iter().map(|(_, frame)| number(frame)).collect()
}

#[test]
fn faultless_link_delivers_in_order_after_delay() {
    let mut link = link(Faults { delay_ns: 5000, ..Faults::NONE });
    let arrived = send_all(&mut link, 100);
    for (index, (at, bytes)) in arrived.iter().enumerate() {
        assert_eq!((*at, bytes), (index as u64 * 1000 + 5000, &frame(index, 100)));
    }
    assert_eq!(arrived.len(), 100);
    let counters = link.counters();
    assert_eq!((counters.sent, counters.arrived), (100, 100));
    assert_eq!((counters.sent_bytes, counters.arrived_bytes), (10_000, 10_000));
}

#[test]
fn same_seed_gives_same_faults_at_any_pace() {
    let faults = Faults {
        loss: 0.1,
        duplicate: 0.1,
        corrupt: 0.1,
        delay_ns: 1 << 40,
        jitter_ns: 100,
        ..Faults::NONE
    };
    let at_pace = |pace_ns: u64, seed| {
        let mut link = LinkEmulator::new(faults, seed);
        for index in 0..1000 {
            link.send(index as u64 * pace_ns, frame(index, 100), |frame| Some(frame.clone()));
        }
        let mut frames: Vec<_> = drain(&mut link).into_iter().map(|(_, frame)| frame).collect();
        frames.sort();
        frames
    };
    assert_eq!(at_pace(10, 1), at_pace(77_777, 1));
    assert_ne!(at_pace(10, 1), at_pace(10, 2));
}

#[test]
fn higher_loss_drops_a_superset() {
    let lost_with = |loss| {
        let mut link = link(Faults { loss, ..Faults::NONE });
        let arrived = numbers(&send_all(&mut link, 20_000));
        assert_eq!(link.counters().lost, 20_000 - arrived.len() as u64);
        arrived
    };
    let (few, many) = (lost_with(0.01), lost_with(0.05));
    assert!((150..250).contains(&(20_000 - few.len())), "{}", few.len());
    assert!((850..1150).contains(&(20_000 - many.len())), "{}", many.len());
    let few: std::collections::HashSet<_> = few.into_iter().collect();
    assert!(many.iter().all(|index| few.contains(index)));
    assert_eq!(lost_with(1.0).len(), 0);
}

#[test]
fn burst_loss_keeps_mean_length_and_rate() {
    for (len, loss, loss_in_bad) in [(5.0, 0.05, 1.0), (20.0, 0.02, 0.5), (3.0, 0.3, 1.0)] {
        let bursts = Some(GilbertElliott { mean_len: len, loss: loss_in_bad });
        let mut link = link(Faults { loss, bursts, ..Faults::NONE });
        let count = 200_000;
        let mut is_lost = vec![true; count];
        for index in numbers(&send_all(&mut link, count)) {
            is_lost[index] = false;
        }
        let lost = is_lost.iter().filter(|lost| **lost).count() as f64;
        let mean = lost / count as f64;
        assert!((mean / loss - 1.0).abs() < 0.15, "{mean} instead of {loss}");
        if loss_in_bad == 1.0 {
            let runs = is_lost.windows(2).filter(|pair| pair[1] && !pair[0]).count() as f64;
            assert!((lost / runs / len - 1.0).abs() < 0.1, "{} instead of {len}", lost / runs);
        }
    }
}

#[test]
fn full_burst_loss_drops_everything() {
    let bursts = Some(GilbertElliott { mean_len: 2.0, loss: 1.0 });
    let mut link = link(Faults { loss: 1.0, bursts, ..Faults::NONE });
    assert!(send_all(&mut link, 1000).is_empty());
}

#[test]
fn duplicates_are_identical_and_counted() {
    let mut link = link(Faults { duplicate: 0.1, delay_ns: 10, ..Faults::NONE });
    let arrived = numbers(&send_all(&mut link, 10_000));
    assert!((900..1100).contains(&(arrived.len() - 10_000)));
    assert_eq!(link.counters().duplicated, arrived.len() as u64 - 10_000);
    let mut without_memory = LinkEmulator::new(Faults { duplicate: 1.0, ..Faults::NONE }, 1);
    without_memory.send(0, frame(0, 60), |_| None);
    assert_eq!((without_memory.len(), without_memory.counters().no_buffer), (1, 1));
}

#[test]
fn only_reordered_frames_are_overtaken() {
    let smooth = Faults { delay_ns: 20_000, jitter_ns: 15_000, ..Faults::NONE };
    let arrived = numbers(&send_all(&mut link(smooth), 1000));
    assert!(arrived.is_sorted());

    let hold_ns = Some(40_000);
    let mut link = link(Faults { reorder: 0.05, hold_ns, delay_ns: 20_000, ..Faults::NONE });
    let arrived = send_all(&mut link, 10_000);
    let late = arrived.iter().filter(|(at, f)| *at != number(f) as u64 * 1000 + 20_000).count();
    assert!((400..600).contains(&late), "{late}");
    assert!((400..600).contains(&link.counters().reordered));
    assert!(!numbers(&arrived).is_sorted());
    assert!(arrived.iter().all(|(at, f)| *at <= number(f) as u64 * 1000 + 60_000));
}

#[test]
fn corruption_flips_one_bit_after_ethernet_header() {
    for (spare_headers, first) in [(false, 14), (true, 54)] {
        let mut link = link(Faults { corrupt: 1.0, payload_only: spare_headers, ..Faults::NONE });
        let mut touched = [false; 100];
        for (index, (_, bytes)) in send_all(&mut link, 20_000).into_iter().enumerate() {
            let sent = frame(index, 100);
            let mut flipped = 0;
            for (at, (a, b)) in sent.iter().zip(&bytes).enumerate() {
                flipped += (a ^ b).count_ones();
                touched[at] |= a != b;
            }
            assert_eq!(flipped, 1);
        }
        assert!(touched[..first].iter().all(|touched| !touched));
        assert!(touched[first..].iter().all(|touched| *touched));
        assert_eq!(link.counters().corrupted, 20_000);
    }
}

#[test]
fn non_ip_frames_are_not_corrupted() {
    let mut link = link(Faults { corrupt: 1.0, ..Faults::NONE });
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    for odd in [arp, vec![], vec![0; 13]] {
        link.send(0, odd.clone(), |_| None);
        assert_eq!(link.receive(0).unwrap(), odd);
    }
    assert_eq!(link.counters().corrupted, 0);
}

#[test]
fn rate_includes_ethernet_overhead() {
    // 1 Gb/s: 1,538 bytes take 12,304 ns.
    let rate = Some(125_000_000);
    let mut link = link(Faults { rate, delay_ns: 1000, ..Faults::NONE });
    for index in 0..10 {
        link.send(0, frame(index, 1514), |_| None);
    }
    link.send(1_000_000, frame(10, 1514), |_| None);
    let times: Vec<u64> = drain(&mut link).into_iter().map(|(at, _)| at).collect();
    let mut expected: Vec<u64> = (1..=10).map(|nth| nth * 12_304 + 1000).collect();
    expected.push(1_000_000 + 12_304 + 1000);
    assert_eq!(times, expected);
}

#[test]
fn queue_drops_at_bound_and_marks_above_threshold() {
    let (rate, queue, mark) = (Some(125_000_000), Some(5 * 1538), Some(2 * 1538));
    let mut link = link(Faults { rate, queue, mark, ..Faults::NONE });
    for index in 0..20 {
        link.send(0, frame(index, 1514), |_| None);
    }
    let arrived = drain(&mut link);
    assert_eq!(numbers(&arrived), [0, 1, 2, 3, 4]);
    assert_eq!(link.counters().overflowed, 15);
    let marked: Vec<bool> = arrived.iter().map(|(_, frame)| frame[15] & 3 == 3).collect();
    assert_eq!(marked, [false, false, false, true, true]);
    assert_eq!(link.counters().marked, 2);
    // An idle link accepts even a frame above the queue limit.
    link.set_faults(Faults { queue: Some(10), ..*link.faults() });
    link.send(1_000_000_000, frame(1, 1514), |_| None);
    assert_eq!(link.len(), 1);
}

#[test]
fn packets_above_mtu_are_dropped() {
    let mut link = link(Faults { mtu: Some(1400), ..Faults::NONE });
    for (number, len) in [1414, 1415, 1414].into_iter().enumerate() {
        link.send(0, frame(number, len), |_| None);
    }
    assert_eq!(numbers(&drain(&mut link)), [0, 2]);
    assert_eq!(link.counters().too_long, 1);
}

#[test]
fn frames_in_flight_are_bounded() {
    let mut link = link(Faults::NONE).frames_max(3);
    for number in 0..5 {
        link.send(0, frame(number, 60), |_| None);
    }
    assert_eq!((link.len(), link.counters().no_buffer), (3, 2));
}

#[test]
fn without_losses_delivers_everything() {
    let bursts = Some(GilbertElliott { mean_len: 4.0, loss: 1.0 });
    let mut link = link(Faults { loss: 1.0, bursts, mtu: Some(70), ..Faults::NONE });
    assert!(send_all(&mut link, 10).is_empty());
    link.set_faults(link.faults().without_losses());
    assert_eq!(send_all(&mut link, 10).len(), 10);
}

#[test]
fn scaled_draws_cover_their_range() {
    assert_eq!((scale(0, 9), scale(u64::MAX, 9)), (0, 9));
    assert_eq!((scale(u64::MAX, 0), scale(u64::MAX, u64::MAX)), (0, u64::MAX));
    assert!(!occurs(0, 0.0) && occurs(0, 1e-9) && occurs(u64::MAX, 1.0));
}
