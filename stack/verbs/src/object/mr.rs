//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use ferrowarp::{Access, MrOptions, ReregOptions};

use crate::abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED,
    IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION,
    IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_INPUT, ibv_mr,
};
use crate::errno::{Code, Errno, Outcome, Pointer, run};
use crate::object::exposed::{Exposed, Handle, Registry, expose};
use crate::object::pd::Pd;
use crate::object::users::{Users, Using};
use crate::program;

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    registered: Mutex<Registered>,
    users: Users,
}

#[derive(Debug)]
struct Registered {
    region: ferrowarp::Mr,
    /// Its address in requests is its offset.
    is_zero_based: bool,
    pd: Using<Pd>,
}

impl Exposed for Mr {
    type Public = ibv_mr;
    type Pointee = ibv_mr;

    fn registry() -> &'static Registry<Self> {
        static MRS: Registry<Mr> = Registry::new();
        &MRS
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

/// Access rights that the stack has, and those without an effect here: pages of any size serve.
const KNOWN: c_uint = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_HUGETLB;

/// Rights that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`): bits 20 to 29.
const OPTIONAL: c_uint = 0x3ff0_0000;

/// The access rights of verbs.
fn access_of(flags: c_uint) -> Outcome<Access> {
    let flags = flags & !OPTIONAL;
    if flags & !KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let has = |flag| flags & flag != 0;
    let writes_remotely = has(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    if writes_remotely && !has(IBV_ACCESS_LOCAL_WRITE) {
        return Err(Errno::EINVAL);
    }
    let rights = [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (IBV_ACCESS_MW_BIND, Access::WINDOW_BIND),
    ];
    let granted = rights.into_iter().filter(|(flag, _)| has(*flag));
    Ok(granted.fold(Access::LOCAL_READ, |access, (_, right)| access | right))
}

/// Registers `len` bytes at `addr`; `iova` is their address in requests, unless they have that.
fn register(
    pd: Handle<Pd>,
    addr: *mut c_void,
    len: usize,
    iova: Option<u64>,
    flags: c_uint,
) -> Outcome<*mut ibv_mr> {
    let domain = Using::new(pd.get()?);
    let access = access_of(flags)?;
    let is_zero_based = flags & IBV_ACCESS_ZERO_BASED != 0;
    let mut options = MrOptions::new(access);
    options.iova = if is_zero_based { Some(0) } else { iova };
    let region = program::register(&domain.inner, addr, len, options)?;
    let public = ibv_mr {
        context: domain.context.as_ptr(),
        pd: pd.as_ptr(),
        addr,
        length: len,
        handle: 0,
        lkey: region.lkey(),
        rkey: region.rkey(),
    };
    let registered = Mutex::new(Registered { region, is_zero_based, pd: domain });
    Ok(expose(Mr { registered, users: Users::default() }, public).as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    pd: Handle<Pd>,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> Pointer<ibv_mr> {
    Pointer::of(|| register(pd, addr, len, None, access.cast_unsigned()))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova(
    pd: Handle<Pd>,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> Pointer<ibv_mr> {
    Pointer::of(|| register(pd, addr, len, Some(iova), access.cast_unsigned()))
}

/// What the header's `ibv_reg_mr` calls for rights that are not constant.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    pd: Handle<Pd>,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> Pointer<ibv_mr> {
    Pointer::of(|| register(pd, addr, len, Some(iova), access))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: Handle<Mr>) -> Code {
    Code::of(|| mr.destroy())
}

/// Returns a number of `ibv_rereg_mr_err_code`, and sets `errno`.
#[unsafe(no_mangle)]
extern "C" fn ibv_rereg_mr(
    mr: Handle<Mr>,
    flags: c_int,
    pd: Handle<Pd>,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> c_int {
    let mut refused = IBV_REREG_MR_ERR_INPUT;
    let done = run(|| {
        let (object, flags) = (mr.get()?, flags.cast_unsigned());
        let known =
            IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
        if flags == 0 || flags & !known != 0 {
            return Err(Errno::EINVAL);
        }
        let has = |flag| flags & flag != 0;
        let mut registered = object.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut options, mut is_zero_based) = (ReregOptions::new(), registered.is_zero_based);
        if has(IBV_REREG_MR_CHANGE_ACCESS) {
            options.access = Some(access_of(access.cast_unsigned())?);
            is_zero_based = access.cast_unsigned() & IBV_ACCESS_ZERO_BASED != 0;
        }
        let domain = has(IBV_REREG_MR_CHANGE_PD).then(|| pd.get().map(Using::new)).transpose()?;
        options.pd = domain.as_ref().map(|domain| &domain.inner);
        let moved = has(IBV_REREG_MR_CHANGE_TRANSLATION).then_some((addr, len));
        options.iova = is_zero_based.then_some(0);
        refused = IBV_REREG_MR_ERR_CMD;
        program::reregister(&mut registered.region, moved, &options)?;
        registered.is_zero_based = is_zero_based;
        if let Some(domain) = domain {
            registered.pd = domain;
        }
        mr.change(|public| {
            if let Some((addr, length)) = moved {
                (public.addr, public.length) = (addr, length);
            }
            if has(IBV_REREG_MR_CHANGE_PD) {
                public.pd = pd.as_ptr();
            }
            (public.lkey, public.rkey) = (registered.region.lkey(), registered.region.rkey());
        });
        Ok(())
    });
    if done.is_ok() { 0 } else { refused }
}
