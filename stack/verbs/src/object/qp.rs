//! Queue pairs: reliable connections, which librdmacm makes.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ferrowarp::{ConnEvent, INLINE_LEN_MAX, QpOptions, QpState, SGE_COUNT_MAX};

use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS, IBV_QP_CUR_STATE, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_PD, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT,
    IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPT_RC, ibv_context, ibv_pd, ibv_qp,
    ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_state,
};
use crate::cm::Connection;
use crate::engine::Engine;
use crate::errno::{Code, Errno, Outcome, Pointer, run};
use crate::object::acks::Acks;
use crate::object::async_event::AsyncEvent;
use crate::object::context::Context;
use crate::object::cq::Cq;
use crate::object::exposed::{Exposed, Handle, Registry, expose};
use crate::object::pd::Pd;
use crate::object::qp_cell::QpCell;
use crate::object::query::MAX_QP_WR;
use crate::object::srq::Srq;
use crate::object::users::{Users, Using};
use crate::out::{Out, fill};
use crate::program;
use crate::report::report;

/// Rights of the peer: those of the regions, whatever a program sets for the queue pair.
const ACCESS_FLAGS: c_uint =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) cell: QpCell,
    /// Each request has a completion.
    pub(crate) sq_sig_all: bool,
    pub(crate) engine: &'static Engine,
    context: Handle<Context>,
    _needs: (Using<Pd>, [Using<Cq>; 2], Option<Using<Srq>>),
    number: u32,
    /// What the program asked for, with the granted capacities.
    init: Init,
    /// State before it is connected: `IBV_QPS_INIT`, or `IBV_QPS_RESET` if the program chose that.
    unconnected: AtomicU32,
    /// The connection that it is, or will be, of.
    pub(crate) connection: Mutex<Weak<Connection>>,
    pub(crate) acks: Acks,
    users: Users,
}

/// What a queue pair was created with.
#[derive(Clone, Copy, Debug)]
struct Init {
    user_context: usize,
    send_cq: Handle<Cq>,
    recv_cq: Handle<Cq>,
    srq: Handle<Srq>,
    cap: Cap,
}

/// As `ibv_qp_cap`.
#[derive(Clone, Copy, Debug)]
struct Cap {
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
}

impl Exposed for Qp {
    type Public = ibv_qp;
    type Pointee = ibv_qp;

    fn registry() -> &'static Registry<Self> {
        static QPS: Registry<Qp> = Registry::new();
        &QPS
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Qp {
    /// Creates a queue pair as `attr` asks, and sets the granted capacities there.
    pub(crate) fn create(
        pd_handle: Handle<Pd>,
        attr: &mut ibv_qp_init_attr,
    ) -> Outcome<Handle<Self>> {
        let pd = Using::new(pd_handle.get()?);
        if attr.qp_type != IBV_QPT_RC {
            report("iWARP has reliable connections only: qp_type has to be IBV_QPT_RC");
            return Err(Errno::EOPNOTSUPP);
        }
        let cap = &mut attr.cap;
        let sges = cap.max_send_sge.max(cap.max_recv_sge) as usize;
        let wrs = cap.max_send_wr.max(cap.max_recv_wr);
        if sges > SGE_COUNT_MAX || cap.max_inline_data as usize > INLINE_LEN_MAX || wrs > MAX_QP_WR
        {
            return Err(Errno::EINVAL);
        }
        let init = Init {
            user_context: attr.qp_context.expose_provenance(),
            send_cq: Handle::of(attr.send_cq),
            recv_cq: Handle::of(attr.recv_cq),
            srq: Handle::of(attr.srq),
            cap: Cap::of(cap),
        };
        let send_cq = Using::new(init.send_cq.get()?);
        let recv_cq = Using::new(init.recv_cq.get()?);
        let srq = init.srq.get_optional()?.map(Using::new);
        let options = QpOptions::new(&send_cq.inner);
        // Programs send inline although they asked for none: rdma_xclient does.
        let max_inline_data = (cap.max_inline_data as usize).max(options.max_inline_data);
        let options = options
            .recv_cq(&recv_cq.inner)
            .max_send_wr(cap.max_send_wr.max(1) as usize)
            .max_recv_wr(cap.max_recv_wr.max(1) as usize)
            .max_send_sge(cap.max_send_sge.max(1) as usize)
            .max_recv_sge(cap.max_recv_sge.max(1) as usize)
            .max_inline_data(max_inline_data);
        let options = match &srq {
            Some(srq) => options.srq(&srq.inner),
            None => options,
        };
        let inner = pd.inner.create_qp(&options)?;
        let granted = inner.attrs().map(|attrs| Cap {
            max_send_wr: narrow(attrs.max_send_wr),
            max_recv_wr: narrow(attrs.max_recv_wr),
            max_send_sge: narrow(attrs.max_send_sge),
            max_recv_sge: narrow(attrs.max_recv_sge),
            max_inline_data: narrow(attrs.max_inline_data),
        });
        let granted = granted.unwrap_or(init.cap);
        granted.fill(cap);
        let (context, id) = (pd.context, inner.id());
        let engine = context.get()?.engine;
        let number = engine.objects.free_number();
        let public = ibv_qp {
            context: context.as_ptr(),
            qp_context: attr.qp_context,
            pd: pd_handle.as_ptr(),
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            qp_num: number,
            state: IBV_QPS_INIT,
            qp_type: IBV_QPT_RC,
            ..ibv_qp::default()
        };
        engine.set_qp_number(id, number);
        let qp = Self {
            cell: QpCell::new(inner),
            sq_sig_all: attr.sq_sig_all != 0,
            engine,
            context,
            _needs: (pd, [send_cq, recv_cq], srq),
            number,
            init: Init { cap: granted, ..init },
            unconnected: AtomicU32::new(IBV_QPS_INIT),
            connection: Mutex::new(Weak::new()),
            acks: Acks::default(),
            users: Users::default(),
        };
        let handle = expose(qp, public);
        engine.objects.qps.add(id, handle);
        engine.objects.numbered_qps.add(number, handle);
        Ok(handle)
    }

    /// State as verbs has it.
    fn state(&self) -> ibv_qp_state {
        match self.cell.with(ferrowarp::Qp::state) {
            QpState::Idle => self.unconnected.load(Ordering::Relaxed),
            QpState::Connecting => IBV_QPS_RTR,
            QpState::Rts => IBV_QPS_RTS,
            QpState::Closing => IBV_QPS_SQD,
            QpState::Error => IBV_QPS_ERR,
        }
    }

    /// The connection that it is of.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// Takes an event that the stack has for it. Returns it with the connection that it is for.
    fn take_event(&self, handle: Handle<Self>) -> Option<(ConnEvent, Option<Arc<Connection>>)> {
        let event = self.cell.with(ferrowarp::Qp::next_event)?;
        self.show_state(handle);
        if is_fatal(&event) {
            AsyncEvent::QpFatal(handle).report(self.context);
        }
        Some((event, self.connection()))
    }

    /// Passes on the events that the stack has for a queue pair. Meanwhile it may be destroyed.
    pub(crate) fn on_events(handle: Handle<Self>) {
        let next = || handle.get().ok()?.take_event(handle);
        while let Some((event, connection)) = next() {
            if let Some(connection) = connection {
                connection.on_event(event);
            }
        }
    }

    /// Shows the program the state.
    fn show_state(&self, handle: Handle<Self>) {
        let state = self.state();
        handle.change(|public| public.state = state);
    }

    /// Goes to another state.
    fn modify(&self, handle: Handle<Self>, attr: &ibv_qp_attr, mask: c_uint) -> Outcome {
        if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != self.state() {
            return Err(Errno::EINVAL);
        }
        if mask & IBV_QP_PORT != 0 && attr.port_num != 1
            || mask & IBV_QP_PKEY_INDEX != 0 && attr.pkey_index != 0
            || mask & IBV_QP_ACCESS_FLAGS != 0
                && attr.qp_access_flags & !(ACCESS_FLAGS | IBV_ACCESS_LOCAL_WRITE) != 0
        {
            return Err(Errno::EINVAL);
        }
        if mask & IBV_QP_STATE == 0 {
            let of_init = IBV_QP_CUR_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
            return if mask & !of_init == 0 { Ok(()) } else { Err(Errno::EOPNOTSUPP) };
        }
        match attr.qp_state {
            IBV_QPS_RESET => {
                if let Some(connection) = self.connection() {
                    connection.on_destroy_qp();
                }
                self.forget();
                let reset = self.cell.reset();
                self.learn(handle);
                reset?;
                self.unconnected.store(IBV_QPS_RESET, Ordering::Relaxed);
            }
            IBV_QPS_INIT if self.cell.with(ferrowarp::Qp::state) == QpState::Idle => {
                self.unconnected.store(IBV_QPS_INIT, Ordering::Relaxed);
            }
            IBV_QPS_INIT => return Err(Errno::EINVAL),
            IBV_QPS_ERR => self.cell.with(ferrowarp::Qp::to_error)?,
            // rdma_cm connects: the attributes that `rdma_init_qp_attr` returns say so.
            IBV_QPS_RTR | IBV_QPS_RTS if self.connection().is_some() => {}
            _ => return Err(Errno::EOPNOTSUPP),
        }
        self.show_state(handle);
        Ok(())
    }

    /// Makes it known to those who look for the stack's queue pair.
    fn learn(&self, handle: Handle<Self>) {
        let id = self.cell.with(ferrowarp::Qp::id);
        self.engine.set_qp_number(id, self.number);
        self.engine.objects.qps.add(id, handle);
    }

    fn forget(&self) {
        self.engine.objects.qps.remove(self.cell.with(ferrowarp::Qp::id));
    }

    /// Destroys it, once the program has acknowledged its events.
    pub(crate) fn destroy(handle: Handle<Self>) -> Outcome {
        let qp = handle.get()?;
        if qp.users.any() {
            return Err(Errno::EBUSY);
        }
        if let Some(connection) = qp.connection() {
            connection.on_destroy_qp();
        }
        qp.forget();
        qp.engine.objects.numbered_qps.remove(qp.number);
        AsyncEvent::QpFatal(handle).forget(qp.context);
        qp.acks.wait();
        let context = qp.context;
        drop(qp);
        handle.destroy()?;
        // One may have been on its way.
        AsyncEvent::QpFatal(handle).forget(context);
        Ok(())
    }
}

impl Cap {
    fn of(cap: &ibv_qp_cap) -> Self {
        let ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } =
            *cap;
        Self { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }

    fn fill(self, cap: &mut ibv_qp_cap) {
        let Self { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = self;
        *cap = ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
    }
}

fn narrow(count: usize) -> u32 {
    count.try_into().unwrap_or(u32::MAX)
}

/// True if the event ends the connection, and not as one of the peers wished.
fn is_fatal(event: &ConnEvent) -> bool {
    matches!(event, ConnEvent::Disconnected { reason, .. } if reason.error().is_some())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_qp(
    pd: Handle<Pd>,
    attr: Option<&mut ibv_qp_init_attr>,
) -> Pointer<ibv_qp> {
    Pointer::of(|| Ok(Qp::create(pd, attr.ok_or(Errno::EINVAL)?)?.as_ptr()))
}

/// Returns the domain that extended attributes name, if they do.
///
/// # Errors
/// `EOPNOTSUPP`: they ask for more than plain ones can.
pub(crate) fn named_pd(ex: &ibv_qp_init_attr_ex) -> Outcome<Option<*mut ibv_pd>> {
    let has = |bit| ex.comp_mask & bit != 0;
    if has(!(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS))
        || has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && ex.create_flags != 0
    {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(has(IBV_QP_INIT_ATTR_PD).then_some(ex.pd))
}

/// `ibv_create_qp_ex` calls it. The extended struct begins as the plain one.
pub(super) extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let created = run(|| {
        let pd = named_pd(program::at(attr)?)?.ok_or(Errno::EINVAL)?;
        Ok(Qp::create(Handle::of(pd), program::at(attr.cast())?)?.as_ptr())
    });
    created.unwrap_or(std::ptr::null_mut())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp(
    qp: Handle<Qp>,
    attr: Out<'_, ibv_qp_attr>,
    _mask: c_int,
    init: Out<'_, ibv_qp_init_attr>,
) -> Code {
    Code::of(|| {
        let qp = qp.get()?;
        let state = qp.state();
        let mut found = ibv_qp_attr {
            qp_state: state,
            cur_qp_state: state,
            port_num: 1,
            qp_access_flags: ACCESS_FLAGS,
            ..ibv_qp_attr::default()
        };
        qp.init.cap.fill(&mut found.cap);
        if let Some(attrs) = qp.cell.with(ferrowarp::Qp::attrs) {
            found.max_rd_atomic = attrs.ord.try_into().unwrap_or(u8::MAX);
            found.max_dest_rd_atomic = attrs.ird.try_into().unwrap_or(u8::MAX);
        }
        fill(attr, found)?;
        let mut created = ibv_qp_init_attr {
            qp_context: std::ptr::with_exposed_provenance_mut::<c_void>(qp.init.user_context),
            send_cq: qp.init.send_cq.as_ptr(),
            recv_cq: qp.init.recv_cq.as_ptr(),
            srq: qp.init.srq.as_ptr(),
            qp_type: IBV_QPT_RC,
            sq_sig_all: qp.sq_sig_all.into(),
            ..ibv_qp_init_attr::default()
        };
        qp.init.cap.fill(&mut created.cap);
        fill(init, created)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_modify_qp(qp: Handle<Qp>, attr: Option<&ibv_qp_attr>, mask: c_int) -> Code {
    Code::of(|| qp.get()?.modify(qp, attr.ok_or(Errno::EINVAL)?, mask.cast_unsigned()))
}

/// There is no `ibv_qp_ex`.
#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(_qp: Handle<Qp>) -> Pointer<ibv_qp_ex> {
    Pointer::of(|| Err(Errno::EOPNOTSUPP))
}

/// 0: a program that polls memory may see a byte before one in front of it.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_qp: Handle<Qp>, _opcode: c_uint, _flags: u32) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_qp(qp: Handle<Qp>) -> Code {
    Code::of(|| Qp::destroy(qp))
}
