use proptest::prelude::*;

use super::*;

/// Passes `stream` to a receiver, segmented at `cuts`, and returns all ULPDUs.
fn receive(stream: &[u8], cuts: &[usize], pool: &mut FpduPool) -> Vec<Vec<u8>> {
    let mut deframer = Deframer::new(None);
    let mut ulpdus = Vec::new();
    let mut start = 0;
    for &cut in cuts.iter().chain([&stream.len()]) {
        let mut bytes = StreamBytes::from(&stream[start..cut.max(start)]);
        start = cut.max(start);
        let mut next = || {
            let memory = PartialMemory::Forced;
            let ulpdu = deframer.next(Instant::ZERO, &mut bytes, true, pool, memory, || 0).unwrap();
            ulpdu.map(|ulpdu| ulpdu.bytes.to_vec())
        };
        ulpdus.extend(std::iter::from_fn(&mut next));
    }
    assert!(!deframer.has_partial());
    ulpdus
}

proptest! {
    // req-test: MPA-130, MPA-131
    #[test]
    fn any_segmentation_yields_same_ulpdus(
        lens in proptest::collection::vec(1usize..3000, 1..12),
        mut cuts in proptest::collection::vec(0usize..20_000, 0..40),
    ) {
        let mut stream = Vec::new();
        let mut sent = Vec::new();
        for (index, &len) in lens.iter().enumerate() {
            let ulpdu: Vec<u8> = (0..len).map(|at| ((at * 7) ^ (index * 31)) as u8).collect();
            let mut fpdu = vec![0; fpdu_len(len)];
            fpdu[2..2 + len].copy_from_slice(&ulpdu);
            fpdu::finalize(&mut fpdu, len, true);
            stream.extend_from_slice(&fpdu);
            sent.push(ulpdu);
        }
        cuts.iter_mut().for_each(|cut| *cut %= stream.len());
        cuts.sort_unstable();
        let mut pool = FpduPool::new(1);
        prop_assert_eq!(&receive(&stream, &cuts, &mut pool), &sent);
        let every: Vec<usize> = (1..stream.len().min(400)).collect();
        prop_assert_eq!(&receive(&stream, &every, &mut pool), &sent);
        prop_assert_eq!((pool.buffers_in_use(), pool.bytes_in_use()), (0, 0));
    }
}

#[test]
fn bytes_are_refused_without_memory_and_accepted_later() {
    let mut fpdu = vec![0; fpdu_len(20_000)];
    fpdu::finalize(&mut fpdu, 20_000, true);
    let (head, tail) = fpdu.split_at(15_000);
    let mut pool = FpduPool::new(1);
    let other = pool.alloc(0, 20_000);
    let mut deframer = Deframer::new(None);
    let mut next = |bytes: &[u8], memory| {
        let mut bytes = StreamBytes::from(bytes);
        let found = deframer.next(Instant::ZERO, &mut bytes, true, &mut pool, memory, || 0);
        let ulpdu_len = found.map(|ulpdu| ulpdu.map(|ulpdu| ulpdu.bytes.len()));
        (ulpdu_len, bytes.len(), deframer.large_partial_since())
    };
    let none = Ok(None);
    assert_eq!(next(&head[..2], PartialMemory::Bounded), (none, 0, None));
    let refused = (Err(DeframeError::NoMemory), head.len() - 2, None);
    assert_eq!(next(&head[2..], PartialMemory::Bounded), refused);
    let accepted = (none, 0, Some(Instant::ZERO));
    assert_eq!(next(&head[2..], PartialMemory::Forced), accepted);
    // The last bytes of the FPDU need no memory that outlasts its processing.
    assert_eq!(next(tail, PartialMemory::Bounded), (Ok(Some(20_000)), 0, None));
    assert_eq!(next(&[], PartialMemory::Bounded), (none, 0, None));
    pool.release(0, other);
    assert_eq!(pool.bytes_in_use(), 0);
}

#[test]
fn no_partial_fpdu_is_started_under_pressure_where_memory_is_scarce() {
    let mut pool = FpduPool::new(1);
    let buffer = pool.alloc(0, 20_000);
    assert!(pool.is_under_pressure());
    let mut deframer = Deframer::new(None);
    let mut next = |memory| {
        let mut bytes = StreamBytes::from(&[0, 100, 1, 2][..]);
        deframer.next(Instant::ZERO, &mut bytes, true, &mut pool, memory, || 0).is_ok()
    };
    assert!(!next(PartialMemory::Scarce));
    assert!(next(PartialMemory::Bounded), "the smallest buffers are never refused");
    assert!(deframer.has_partial());
    pool.release(0, buffer);
}
