//! Posting (`ibv_post_send`, `ibv_post_recv`, `ibv_post_srq_recv`): from the program's lists
//! straight into the slots of the queues.

use std::ffi::c_int;
use std::slice;

use arrayvec::ArrayVec;
use ferrowarp::{
    AtomicOp, INLINE_LEN_MAX, Post, PostRefused, RemoteAddr, SGE_COUNT_MAX, SendFlags, SendRequest,
    Sge, WqePayload, immediate_u32,
};

use crate::abi::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_INV, ibv_qp,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq,
};
use crate::errno::{Errno, Outcome, hot};
use crate::object::exposed::Handle;
use crate::object::qp::Qp;
use crate::object::srq::Srq;

const _: () = assert!(
    size_of::<Sge>() == size_of::<ibv_sge>()
        && align_of::<Sge>() == align_of::<ibv_sge>()
        && std::mem::offset_of!(Sge, addr) == std::mem::offset_of!(ibv_sge, addr)
        && std::mem::offset_of!(Sge, len) == std::mem::offset_of!(ibv_sge, length)
        && std::mem::offset_of!(Sge, lkey) == std::mem::offset_of!(ibv_sge, lkey),
    "scatter/gather lists of the program are used as they are"
);

/// Stands for a list that is none: no queue takes so many elements.
static TOO_MANY: [Sge; SGE_COUNT_MAX + 1] = [Sge { addr: 0, len: 0, lkey: 0 }; SGE_COUNT_MAX + 1];

/// `ibv_post_send` calls it.
pub(crate) extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    hot(|| {
        // SAFETY: inline helpers have read its context, and verbs forbids to destroy it meanwhile.
        let Some(qp) = (unsafe { Handle::<Qp>::of(qp).hot() }) else {
            return refuse(bad_wr, wr, Errno::EINVAL);
        };
        // SAFETY: as above, for a return to its first state.
        let mut post = unsafe { qp.cell.hot() }.post();
        let always = if qp.sq_sig_all { SendFlags::SIGNALED } else { SendFlags::NONE };
        let (mut next, mut unknown) = (wr, None);
        // SAFETY: the program passes a list of requests that ends with a null pointer.
        while let Some(request) = unsafe { next.as_ref() } {
            if let Err(errno) = post_one(&mut post, request, always) {
                unknown = Some(errno);
                break;
            }
            next = request.next;
        }
        match (post.ring(), unknown) {
            (Ok(()), None) => 0,
            (Ok(()), Some(errno)) => refuse(bad_wr, next, errno),
            (Err(PostRefused { error, posted, .. }), _) => {
                // SAFETY: as above; so many requests of the list were posted.
                let refused = (0..posted).fold(wr, |at, _| unsafe { (*at).next });
                refuse(bad_wr, refused, error.into())
            }
        }
    })
}

/// Returns an error, and the request it is about.
#[cold]
fn refuse<T>(bad_wr: *mut *mut T, wr: *mut T, errno: Errno) -> c_int {
    if !bad_wr.is_null() {
        // SAFETY: the program passes a place for it.
        unsafe { bad_wr.write(wr) };
    }
    errno.0
}

/// Posts a request of the list; `always`: flags that all have. What the queue refuses is reported
/// by [`Post::ring`].
#[inline(always)]
fn post_one(post: &mut Post<'_>, wr: &ibv_send_wr, always: SendFlags) -> Outcome {
    let mut inline = ArrayVec::new();
    let payload = payload(wr, &mut inline)?;
    let request: SendRequest<'_, '_> = match wr.opcode {
        IBV_WR_SEND => post.send(payload),
        IBV_WR_RDMA_WRITE => post.write(payload, rdma(wr)),
        IBV_WR_RDMA_READ => post.read(payload, rdma(wr)),
        IBV_WR_SEND_WITH_INV => post.send(payload).with_invalidate(word(wr)),
        IBV_WR_RDMA_WRITE_WITH_IMM => {
            post.write_immediate(payload, rdma(wr), immediate_u32(u32::from_be(word(wr))))
        }
        IBV_WR_ATOMIC_FETCH_AND_ADD | IBV_WR_ATOMIC_CMP_AND_SWP => {
            let (remote, add, swap) = atomic(wr);
            let is_add = wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
            let op = if is_add { AtomicOp::fetch_add(add) } else { AtomicOp::cmp_swap(add, swap) };
            let WqePayload::Gather(&[sink]) = payload else {
                return Err(Errno::EINVAL);
            };
            post.atomic(op, sink, remote)
        }
        IBV_WR_LOCAL_INV => post.invalidate(word(wr)),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    let request = request.wr_id(wr.wr_id).with(always);
    if wr.send_flags & !IBV_SEND_INLINE != 0 {
        with_flags(request, wr.send_flags);
    }
    Ok(())
}

/// Sets the flags of a request but `IBV_SEND_INLINE`.
#[inline(always)]
fn with_flags(mut request: SendRequest<'_, '_>, flags: u32) {
    let known = [
        (IBV_SEND_FENCE, SendFlags::FENCE),
        (IBV_SEND_SIGNALED, SendFlags::SIGNALED),
        (IBV_SEND_SOLICITED, SendFlags::SOLICITED),
    ];
    for (flag, of_stack) in known {
        if flags & flag != 0 {
            request = request.with(of_stack);
        }
    }
}

/// The message of a request; inline data is gathered in `inline`.
#[inline(always)]
fn payload<'a>(
    wr: &'a ibv_send_wr,
    inline: &'a mut ArrayVec<u8, INLINE_LEN_MAX>,
) -> Outcome<WqePayload<'a>> {
    let list = sg_list(wr.sg_list, wr.num_sge)?;
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        return Ok(WqePayload::Gather(list));
    }
    let [sge] = list else {
        return gather(list, inline).map(|()| WqePayload::Inline(inline));
    };
    Ok(WqePayload::Inline(bytes(sge)))
}

/// Copies inline data that is in several pieces, or in none.
fn gather(list: &[Sge], inline: &mut ArrayVec<u8, INLINE_LEN_MAX>) -> Outcome {
    for sge in list {
        inline.try_extend_from_slice(bytes(sge)).map_err(|_| Errno::EINVAL)?;
    }
    Ok(())
}

/// Bytes that are copied while a request is posted.
#[inline(always)]
fn bytes(sge: &Sge) -> &[u8] {
    if sge.len == 0 {
        return &[];
    }
    let Ok(address) = usize::try_from(sge.addr) else { return &[] };
    let start = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the program passes readable memory, and leaves it alone meanwhile.
    unsafe { slice::from_raw_parts(start, sge.len as usize) }
}

/// A scatter/gather list of the program.
#[inline(always)]
fn sg_list<'a>(list: *mut ibv_sge, count: c_int) -> Outcome<&'a [Sge]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if !list.is_null() => {
            // SAFETY: the program passes so many elements, of the layout that is asserted above.
            Ok(unsafe { slice::from_raw_parts(list.cast::<Sge>(), count) })
        }
        _ => Err(Errno::EINVAL),
    }
}

/// The memory of the peer.
#[inline(always)]
fn rdma(wr: &ibv_send_wr) -> RemoteAddr {
    // SAFETY: integers at any value; that member is the one of the opcode.
    let rdma = unsafe { wr.wr.rdma };
    RemoteAddr { addr: rdma.remote_addr, rkey: rdma.rkey }
}

/// The word of the peer, and the operands of an atomic operation.
fn atomic(wr: &ibv_send_wr) -> (RemoteAddr, u64, u64) {
    // SAFETY: as in `rdma`.
    let atomic = unsafe { wr.wr.atomic };
    let remote = RemoteAddr { addr: atomic.remote_addr, rkey: atomic.rkey };
    (remote, atomic.compare_add, atomic.swap)
}

/// The STag to invalidate, or the immediate data as it lies in memory.
fn word(wr: &ibv_send_wr) -> u32 {
    // SAFETY: both members are such a number.
    unsafe { wr.__bindgen_anon_1.invalidate_rkey }
}

/// A receive request of the program's list.
struct RecvList(*mut ibv_recv_wr);

impl Iterator for RecvList {
    type Item = (u64, &'static [Sge]);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: the program passes a list of requests that ends with a null pointer.
        let wr = unsafe { self.0.as_ref() }?;
        self.0 = wr.next;
        // An invalid list is refused as one of too many elements.
        Some((wr.wr_id, sg_list(wr.sg_list, wr.num_sge).unwrap_or(&TOO_MANY)))
    }
}

/// `ibv_post_recv` calls it.
pub(crate) extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    hot(|| {
        // SAFETY: as in `post_send`.
        let Some(qp) = (unsafe { Handle::<Qp>::of(qp).hot() }) else {
            return refuse(bad_wr, wr, Errno::EINVAL);
        };
        // SAFETY: as in `post_send`.
        let posted = unsafe { qp.cell.hot() }.post_recvs(RecvList(wr));
        recv_result(posted, wr, bad_wr)
    })
}

/// `ibv_post_srq_recv` calls it.
pub(crate) extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    hot(|| {
        // SAFETY: as in `post_send`.
        let Some(srq) = (unsafe { Handle::<Srq>::of(srq).hot() }) else {
            return refuse(bad_wr, wr, Errno::EINVAL);
        };
        recv_result(srq.inner.post_recvs(RecvList(wr)), wr, bad_wr)
    })
}

#[inline(always)]
fn recv_result(
    posted: Result<(), PostRefused>,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let Err(PostRefused { error, posted, .. }) = posted else {
        return 0;
    };
    let mut rest = RecvList(wr);
    rest.by_ref().take(posted).for_each(drop);
    refuse(bad_wr, rest.0, error.into())
}
