//! Grouping of a burst by flow. A train is a run of frames: flows that alternate on the wire would
//! break each other's trains.

use arrayvec::ArrayVec;

use crate::connection::schedule::BURST_LEN;
use crate::device::RxFrame;
use crate::wire::tcp::plain_ports;

/// True if the next frame of a burst, of which the first is the last here, belongs to another flow
/// than the frame with these `ports`, and more follow: they may be of this flow.
#[inline(always)]
pub(super) fn may_alternate<R: RxFrame>(ports: Option<u32>, burst: &[R]) -> bool {
    burst.len() > 1 && burst.last().is_some_and(|next| plain_ports(next.head()) != ports)
}

/// True if the frames of a burst are of several flows, as far as its first and its last one show.
/// A single busy connection has whole bursts, however many idle ones there are.
#[inline(always)]
pub(super) fn is_of_several<R: RxFrame>(burst: &[R]) -> bool {
    matches!(burst, [first, .., last] if plain_ports(first.head()) != plain_ports(last.head()))
}

/// Moves the frames of each flow together, to the place of its first one; each flow keeps its
/// order. The first frame of the burst is the last here. Ports tell flows apart. Two flows with
/// equal ports are one group, and end each other's trains. A segment with IP options or extension
/// headers has its ports elsewhere: it may overtake others of its connection, or be overtaken.
///
/// Cost: a comparison for each pair of flow and later frame, at most.
#[inline(never)]
pub(super) fn group_by_flow<R: RxFrame>(burst: &mut Vec<R>) {
    if burst.len() > BURST_LEN {
        return;
    }
    let mut frames: ArrayVec<(Option<u32>, Option<R>), BURST_LEN> =
        burst.drain(..).rev().map(|frame| (plain_ports(frame.head()), Some(frame))).collect();
    for first in 0..frames.len() {
        let (ports, Some(_)) = frames[first] else { continue };
        let flow = frames[first..].iter_mut().filter(|(of, _)| *of == ports);
        burst.extend(flow.filter_map(|(_, frame)| frame.take()));
    }
    burst.reverse();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::test_device::HeapFrame;

    /// A frame of the flow with this local port, with a number at its end.
    fn frame(port: u8, number: u8) -> HeapFrame {
        let mut bytes = vec![0; 60];
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[37] = port;
        bytes[59] = number;
        HeapFrame::new(&bytes)
    }

    /// Returns flow and number of the frames, in the order of the wire.
    fn order(burst: &[HeapFrame]) -> Vec<(u8, u8)> {
        burst.iter().rev().map(|frame| (frame.bytes[37], frame.bytes[59])).collect()
    }

    fn burst(ports: &[u8]) -> Vec<HeapFrame> {
        let numbered = ports.iter().zip(0..);
        let mut burst: Vec<_> = numbered.map(|(&port, number)| frame(port, number)).collect();
        burst.reverse();
        burst
    }

    #[test]
    fn frames_are_grouped_by_flow_in_their_order() {
        let mut frames = burst(&[1, 2, 1, 3, 2, 1]);
        group_by_flow(&mut frames);
        assert_eq!(order(&frames), [(1, 0), (1, 2), (1, 5), (2, 1), (2, 4), (3, 3)]);
        let ports: Vec<u8> = (0..32).map(|at| at % 5).collect();
        let mut frames = burst(&ports);
        group_by_flow(&mut frames);
        let found = order(&frames);
        let mut expected: Vec<_> = ports.into_iter().zip(0..).collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }

    #[test]
    fn only_alternating_flows_are_grouped() {
        for (ports, expected) in
            [(&[1, 2, 1][..], true), (&[1, 2], false), (&[1, 1, 2], false), (&[1], false)]
        {
            let mut frames = burst(ports);
            let first = frames.pop().unwrap();
            assert_eq!(may_alternate(plain_ports(first.head()), &frames), expected, "{ports:?}");
        }
    }

    #[test]
    fn burst_is_of_several_flows_if_its_ends_are() {
        for (ports, expected) in [
            (&[1, 1, 2][..], true),
            (&[1, 2], true),
            (&[1, 1, 1], false),
            (&[1], false),
            (&[], false),
        ] {
            assert_eq!(is_of_several(&burst(ports)), expected, "{ports:?}");
        }
    }
}
