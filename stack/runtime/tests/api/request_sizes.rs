//! Requests up to the largest, and those that are too long or invalid.

use ferrowarp::{
    Access, ConnParam, CreateError, DriveMode, INLINE_LEN_MAX, Mr, PostError, QpOptions,
    RemoteAddr, SGE_COUNT_MAX, Sge, SrqOptions, WcStatus, WqePayload,
};

use crate::posting::{assert_no_more, connect_with_ord};
use crate::support::*;

/// Options of the largest requests.
fn largest(end: &Endpoint) -> QpOptions<'_> {
    QpOptions::new(&end.cq)
        .max_send_sge(SGE_COUNT_MAX)
        .max_recv_sge(SGE_COUNT_MAX)
        .max_inline_data(INLINE_LEN_MAX)
}

#[test]
fn options_beyond_the_largest_requests_are_refused() {
    let (left, _right) = endpoints(DriveMode::Inline);
    assert_eq!((SGE_COUNT_MAX, INLINE_LEN_MAX), (32, 256));
    assert!(left.pd.create_qp(&largest(&left)).is_ok());
    let options = QpOptions::new(&left.cq);
    for (options, option, wanted, limit) in [
        (options.max_send_sge(33), "max_send_sge", 33, 32),
        (options.max_recv_sge(33), "max_recv_sge", 33, 32),
        (options.max_inline_data(257), "max_inline_data", 257, 256),
        (options.max_inline_data(usize::MAX), "max_inline_data", usize::MAX, 256),
    ] {
        let error = CreateError::RequestTooLong { option, wanted, limit };
        assert_eq!(left.pd.create_qp(&options).err(), Some(error));
        assert!(error.to_string().contains(option), "{error}");
    }
    let options = SrqOptions::new(1);
    assert!(left.pd.create_srq_with(&options.max_sge(SGE_COUNT_MAX)).is_ok());
    for wanted in [SGE_COUNT_MAX + 1, usize::MAX] {
        let error = CreateError::RequestTooLong { option: "max_sge", wanted, limit: SGE_COUNT_MAX };
        assert_eq!(left.pd.create_srq_with(&options.max_sge(wanted)).err(), Some(error));
    }
}

/// A request that is too long is refused, and those after it; those before it are posted.
#[test]
fn requests_longer_than_the_options_are_refused() {
    let (left, right) = endpoints(DriveMode::Inline);
    let default = QpOptions::new(&left.cq);
    let small = default.max_send_sge(1).max_recv_sge(1).max_inline_data(1);
    let odd = default.max_send_sge(3).max_recv_sge(4).max_inline_data(101);
    for (options, sends, recvs, bytes) in
        [(default, 6, 6, 96), (small, 1, 1, 1), (odd, 3, 4, 101), (largest(&left), 32, 32, 256)]
    {
        let qp = left.pd.create_qp(&options).unwrap();
        let (list, text) = ([Sge::default(); 33], [0; 257]);
        let remote = RemoteAddr::default();
        for (len, expected) in [(sends, Ok(())), (sends + 1, Err(PostError::TooManySges))] {
            let list = &list[..len];
            assert_eq!(one(qp.post().send(list)), expected);
            assert_eq!(one(qp.post().write(list, remote)), expected);
            assert_eq!(one(qp.post().read(list, remote)), expected);
            assert_eq!(one(qp.post().write_immediate(list, remote, [0; 8])), expected);
        }
        for (len, expected) in [(bytes, Ok(())), (bytes + 1, Err(PostError::InlineTooLong))] {
            assert_eq!(one(qp.post().send_inline(&text[..len])), expected);
            assert_eq!(one(qp.post().write_inline(&text[..len], remote)), expected);
        }
        assert_eq!(qp.post_recv(0, &list[..recvs]), Ok(()));
        assert_eq!(qp.post_recv(0, &list[..=recvs]), Err(PostError::TooManySges));

        let mut post = qp.post();
        post.send(list[0]);
        post.send_inline(b"");
        post.send(&list[..=sends]);
        post.send(list[0]);
        let refused = post.ring().unwrap_err();
        assert_eq!((refused.error, refused.posted), (PostError::TooManySges, 2));
        let refused = qp.post_recvs([(0, &list[..1]), (0, &list[..=recvs]), (0, &[])]).unwrap_err();
        assert_eq!((refused.error, refused.posted), (PostError::TooManySges, 1));
        // What was accepted is in the queues, and nothing else.
        qp.to_error().unwrap();
        left.completions(&right, 6 + 1 + 2 + 1);
        assert_no_more(&left, &right);
    }
    let list = [Sge::default(); SGE_COUNT_MAX + 1];
    let default = SrqOptions::new(4);
    assert_eq!(default.max_sge, 6);
    for max_sge in [default.max_sge, 1, 3, 4, SGE_COUNT_MAX] {
        let srq = left.pd.create_srq_with(&default.max_sge(max_sge)).unwrap();
        assert_eq!(srq.post_recv(1, &list[..max_sge]), Ok(()));
        assert_eq!(srq.post_recv(1, &list[..=max_sge]), Err(PostError::TooManySges));
    }
}

#[test]
fn invalid_requests_are_refused() {
    let (left, _right) = endpoints(DriveMode::Inline);
    let qp = left.qp();
    let half = Sge { len: 1 << 31, ..Sge::default() };
    assert_eq!(one(qp.post().send(&[half, half])), Err(PostError::TooLong));
    let inline = WqePayload::Inline(b"x");
    assert_eq!(one(qp.post().read(inline, RemoteAddr::default())), Err(PostError::InlineSink));
}

/// Disjoint pieces of a region, of different lengths and in reverse order, of `len` bytes together.
fn pieces(region: &Mr, count: usize, len: usize) -> Vec<Sge> {
    let stride = region.len() / count;
    let end = |index: usize| len * index * index / (count * count);
    let piece = |index: usize| {
        let len = end(index + 1) - end(index);
        assert!(len <= stride);
        region.sge(stride * (count - 1 - index), u32::try_from(len).unwrap())
    };
    (0..count).map(piece).collect()
}

/// The bytes that the pieces of a list hold.
fn gathered(region: &Mr, list: &[Sge]) -> Vec<u8> {
    let all = contents(region);
    let piece = |sge: &Sge| {
        let offset = usize::try_from(sge.addr - region.addr()).unwrap();
        &all[offset..offset + sge.len as usize]
    };
    list.iter().flat_map(piece).copied().collect()
}

/// Requests of all sizes up to the largest, in short queues, whose ends they go around.
#[test]
fn requests_of_all_sizes_arrive() {
    const LEN: usize = 1 << 16;
    let (left, right) = endpoints(DriveMode::Inline);
    let create =
        |end: &Endpoint| end.pd.create_qp(&largest(end).max_send_wr(5).max_recv_wr(3)).unwrap();
    let (a, b) = connect_qps(&right, create(&left), create(&right)).0;
    let source = left.mr(LEN, Access::LOCAL_READ);
    source.write(0, &pattern(LEN, 5));
    let text = pattern(INLINE_LEN_MAX, 9);
    for count in (1..=SGE_COUNT_MAX).chain([SGE_COUNT_MAX; 8]) {
        let [received, received_inline, written] = [(); 3].map(|()| right.mr(LEN, Access::ALL));
        let list = pieces(&source, count, 100 * count);
        let inline = &text[..count * (INLINE_LEN_MAX / SGE_COUNT_MAX)];
        // The receiver's lists are divided in another way.
        let buffer = pieces(&received, SGE_COUNT_MAX + 1 - count, 100 * count);
        let buffer_inline = pieces(&received_inline, count, inline.len());
        b.post_recv(1, &buffer).unwrap();
        b.post_recv(2, &buffer_inline).unwrap();
        b.post_recv(3, []).unwrap();
        let place = |number: usize| written.remote().at((number * LEN / 4) as u64);
        let mut post = a.post();
        post.send(&list[..]).wr_id(1);
        post.send_inline(inline).wr_id(2);
        post.write(&list[..], place(0)).wr_id(3);
        post.write_inline(inline, place(1)).wr_id(4);
        post.write_immediate(&list[..], place(2), *b"notified").wr_id(5).signaled();
        post.ring().unwrap();
        assert_eq!(outcomes(&left.completions(&right, 1)), [(5, WcStatus::Success)]);
        let found = right.completions(&left, 3);
        assert_eq!(outcomes(&found), all(1..=3, WcStatus::Success));
        let lens = [100 * count, inline.len(), 100 * count];
        assert!(found.iter().map(|wc| wc.byte_len as usize).eq(lens));
        let sent = gathered(&source, &list);
        assert!(gathered(&received, &buffer) == sent, "{count} pieces");
        assert!(gathered(&received_inline, &buffer_inline) == inline, "{count} pieces");
        let written = contents(&written);
        for (number, bytes) in [&sent[..], inline, &sent[..]].into_iter().enumerate() {
            assert!(written[number * LEN / 4..].starts_with(bytes), "{count} pieces");
        }
    }
}

/// Buffers of all sizes up to the largest pass from a shared receive queue to its queue pairs.
#[test]
fn shared_buffers_of_all_sizes_are_filled() {
    const LEN: usize = 1 << 16;
    let (left, right) = endpoints(DriveMode::Inline);
    let source = left.mr(LEN, Access::LOCAL_READ);
    source.write(0, &pattern(LEN, 5));
    for max_sge in [1, 4, 6, SGE_COUNT_MAX] {
        let options = SrqOptions::new(3).max_sge(max_sge);
        let srq = right.pd.create_srq_with(&options).unwrap();
        // The sizes of its own receive queue do not matter.
        let sharing = QpOptions::new(&right.cq).max_recv_sge(0).srq(&srq);
        let create = || right.pd.create_qp(&sharing).unwrap();
        let pairs = [(); 2].map(|()| connect_qps(&right, left.qp(), create()).0);
        for count in 1..=max_sge {
            let (received, len) = (right.mr(LEN, Access::LOCAL_WRITE), 1000 * count);
            let buffer = pieces(&received, count, len);
            srq.post_recv(count as u64, &buffer).unwrap();
            let (a, _b) = &pairs[count % 2];
            a.post().send(source.sge(0, u32::try_from(len).unwrap())).ring().unwrap();
            let found = right.completions(&left, 1);
            assert_eq!(outcomes(&found), [(count as u64, WcStatus::Success)]);
            assert!(gathered(&received, &buffer) == pattern(LEN, 5)[..len], "{count} pieces");
        }
    }
}

/// Each piece takes an ORD credit of its own, however few there are.
#[test]
fn read_fills_a_sink_of_many_pieces() {
    const LEN: usize = 100_000;
    const READS: usize = 3;
    for ord in [1, 2, ConnParam::default().ord] {
        let (left, right) = endpoints(DriveMode::Inline);
        let (a, b) = (left.pd.create_qp(&largest(&left)).unwrap(), right.qp());
        connect_with_ord(&right, &a, &b, ord);
        let source = right.mr(LEN, Access::REMOTE_READ);
        source.write(0, &pattern(LEN, 3));
        let sinks = [(); READS].map(|()| left.mr(10 * LEN, Access::LOCAL_WRITE));
        let lists = sinks.each_ref().map(|sink| pieces(sink, SGE_COUNT_MAX, LEN));
        b.post_recv(0, []).unwrap();
        let mut post = a.post();
        for (wr_id, list) in lists.iter().enumerate() {
            post.read(&list[..], source.remote()).wr_id(wr_id as u64).signaled();
        }
        post.send_inline(b"").wr_id(READS as u64).fence().signaled();
        post.ring().unwrap();
        let found = left.completions(&right, READS + 1);
        assert_eq!(outcomes(&found), all(0..=READS as u64, WcStatus::Success));
        for (sink, list) in sinks.iter().zip(&lists) {
            assert!(gathered(sink, list) == pattern(LEN, 3), "ORD {ord}");
        }
        assert_eq!(outcomes(&right.completions(&left, 1)), [(0, WcStatus::Success)]);
        assert_no_more(&left, &right);
    }
}
