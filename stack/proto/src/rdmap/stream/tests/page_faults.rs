//! Registered memory that cannot be accessed any more.

use super::*;
use crate::ddp::memory::PageFault;

const PAGE: MemoryFault = MemoryFault::Page(PageFault);

/// Posts a request, and unmaps what it needs at its own end before it is built.
fn fail_at_requester(post: impl FnOnce(&mut Fixture, &Fixture)) -> Fixture {
    let (mut left, right) = (fixture(), fixture());
    post(&mut left, &right);
    left.arena.unmap(0..4096);
    let failed = left.try_build(&mut [0; 256]);
    assert!(matches!(failed, Err(BuildError::Request)), "{failed:?}");
    assert_eq!(left.completions(), [(1, RequestOutcome::LocalProtection)]);
    left
}

// req-test: RDMAP-096, RDMAP-128
#[test]
fn source_fails_its_request_however_it_is_built() {
    fail_at_requester(|left, right| left.post(1, left.write(right, 0, 0, 100)));
    fail_at_requester(|left, right| left.post(1, left.write(right, 0, 0, 1000)));
    let send = |left: &mut Fixture, len| {
        let payload = gather(left.stag, 0, len);
        left.post(1, Operation::Send { payload, solicited: false, invalidate: None });
    };
    fail_at_requester(|left, _| send(left, 100));
    let mut left = fail_at_requester(|left, _| send(left, 1000));
    // Then the Terminate.
    let mut out = [0; 256];
    let len = left.try_build(&mut out).unwrap();
    let terminate = Terminate::parse(&out[UNTAGGED_LEN..len]).unwrap();
    assert_eq!(terminate.cause(), (0, 0, 0));
}

#[test]
fn trains_and_last_segments_end_before_the_page() {
    // Segments of a train are read one by one; the second is on the page.
    let (mut left, right) = (fixture(), fixture());
    left.post(1, left.write(&right, 0, 0, 1000));
    let mut train = left.stream.segment_train(&left.arena, 200, 4).expect("a train");
    left.arena.unmap(200..300);
    let mut ulpdu = [0; 200];
    assert_eq!(train.emit_next(&left.arena, &mut ulpdu), Ok(()));
    assert_eq!(train.emit_next(&left.arena, &mut ulpdu), Err(PageFault));
    left.stream.end_train(&train);
    let failed = left.try_build(&mut [0; 256]);
    assert!(matches!(failed, Err(BuildError::Request)), "{failed:?}");
    // Of three short messages the second.
    for kind in [LastOf::Writes, LastOf::Sends] {
        let (mut left, right) = (fixture(), fixture());
        for number in 1..=3 {
            let at = number * 100;
            let payload = gather(left.stag, at, 10);
            let operation = match kind {
                LastOf::Writes => left.write(&right, at, 0, 10),
                LastOf::Sends => Operation::Send { payload, solicited: false, invalidate: None },
            };
            left.post(number, operation);
        }
        left.arena.unmap(200..300);
        let mut space = [0; 1000];
        let mut rest = &mut space[..];
        let built = left.stream.build_last_segments(kind, &left.arena, |len| {
            let (ulpdu, behind) = std::mem::take(&mut rest).split_at_mut_checked(len)?;
            rest = behind;
            Some(ulpdu)
        });
        assert_eq!((built.count, built.page_fault), (1, true));
        let failed = left.try_build(&mut [0; 256]);
        assert!(matches!(failed, Err(BuildError::Request)), "{failed:?}");
        let outcomes = [(1, RequestOutcome::Success), (2, RequestOutcome::LocalProtection)];
        assert_eq!(left.completions(), outcomes);
    }
}

// req-test: DDP-169
#[test]
fn sink_ends_the_stream_of_a_valid_message() {
    let (mut left, mut right) = (fixture(), fixture());
    right.post_receive(4, 2000, 100);
    left.post(1, left.write(&right, 0, 1000, 50));
    let payload = gather(left.stag, 0, 50);
    left.post(2, Operation::Send { payload, solicited: false, invalidate: None });
    right.arena.unmap(1040..2010);
    let write = left.build(1000);
    assert_eq!(right.on_ulpdu(&write), Err(Fault::Tagged(PAGE)));
    assert!(!right.stream.place_ooo_write(&right.arena, &write));
    let local = UntaggedFault::Local { wr_id: 4, fault: PAGE };
    assert_eq!(right.on_ulpdu(&left.build(1000)), Err(Fault::Untagged(local)));
    // In runs the segment is refused, and nothing is counted.
    let mut sinks = LastSinks::NONE;
    let (header, payload) = write.split_first_chunk().unwrap();
    assert!(!right.stream.place_write_in_run(&right.arena, header, payload, &mut sinks));
    right.arena.unmap(0..0);
    assert!(right.stream.place_write_in_run(&right.arena, header, payload, &mut sinks));
}

#[test]
fn sink_of_a_read_fails_the_read() {
    let (mut left, mut right) = (fixture(), fixture());
    left.post(1, left.read(&right, 0, 2000, 600));
    right.on_ulpdu(&left.build(1000)).unwrap();
    assert_eq!(left.on_ulpdu(&right.build(400)), Ok(Indication::Placed));
    left.arena.unmap(2500..2501);
    assert_eq!(left.on_ulpdu(&right.build(400)), Err(Fault::LocalCatastrophic));
    assert_eq!(left.completions(), [(1, RequestOutcome::LocalProtection)]);
}

#[test]
fn source_of_a_read_ends_the_stream() {
    let (mut left, mut right) = (fixture(), fixture());
    left.post(1, left.read(&right, 0, 2000, 600));
    right.on_ulpdu(&left.build(1000)).unwrap();
    assert_eq!(left.on_ulpdu(&right.build(400)), Ok(Indication::Placed));
    right.arena.unmap(500..600);
    let Err(BuildError::Response(terminate)) = right.try_build(&mut [0; 400]) else {
        panic!("built from a page that is not there");
    };
    assert_eq!(terminate.cause(), (0, 0, 0));
}
