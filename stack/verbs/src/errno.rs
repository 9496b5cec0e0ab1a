//! Error numbers: what a failing call leaves in `errno`, and the three ways in which calls of verbs
//! and librdmacm return a failure.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use ferrowarp::RegisterError;
use ferrowarp::{
    CmError, CreateError, Ended, MemoryError, PostError, ReqNotifyError, ResizeError, SrqError,
};

use crate::engine::check_process;
use crate::report::report_panic;
use crate::wait::{ferrowarp_disable_cancel, ferrowarp_restore_cancel};

/// An error number of the operating system, such as `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const EAGAIN: Self = Self(libc::EAGAIN);
    pub(crate) const EBUSY: Self = Self(libc::EBUSY);
    pub(crate) const EINVAL: Self = Self(libc::EINVAL);
    pub(crate) const EIO: Self = Self(libc::EIO);
    pub(crate) const ENODEV: Self = Self(libc::ENODEV);
    pub(crate) const ENOMEM: Self = Self(libc::ENOMEM);
    pub(crate) const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);

    /// The error of the last system call.
    pub(crate) fn last() -> Self {
        Self(nix::errno::Errno::last_raw())
    }

    /// Sets `errno` of the calling thread.
    pub(crate) fn set(self) {
        nix::errno::Errno::set_raw(self.0);
    }
}

/// Result of a call.
pub(crate) type Outcome<T = ()> = Result<T, Errno>;

/// Returned by calls whose failure is an error number: most of verbs. They set `errno` as well.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Code(c_int);

/// Returned by calls that fail with -1 and `errno`: most of librdmacm.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct MinusOne(c_int);

/// Returned by calls that fail with a null pointer and `errno`.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Pointer<T>(*mut T);

impl Code {
    /// Runs the body of a call.
    pub(crate) fn of(body: impl FnOnce() -> Outcome) -> Self {
        Self(run(body).map_or_else(|errno| errno.0, |()| 0))
    }
}

impl MinusOne {
    /// Runs the body of a call.
    pub(crate) fn of(body: impl FnOnce() -> Outcome) -> Self {
        Self::of_count(|| body().map(|()| 0))
    }

    /// Runs the body of a call that returns a number of its own.
    pub(crate) fn of_count(body: impl FnOnce() -> Outcome<c_int>) -> Self {
        Self(run(body).unwrap_or(-1))
    }
}

impl<T> Pointer<T> {
    /// Runs the body of a call.
    pub(crate) fn of(body: impl FnOnce() -> Outcome<*mut T>) -> Self {
        Self(run(body).unwrap_or(ptr::null_mut()))
    }
}

/// Runs the body of a call of the program. A panic does not cross: it becomes `EIO`. `errno` is
/// that of the failure; after success it is what it was. The thread is not cancelled meanwhile:
/// that would unwind the stack as well.
pub(crate) fn run<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let (before, cancel) = (Errno::last(), ferrowarp_disable_cancel());
    let body = || check_process().and_then(|()| body());
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        report_panic();
        Err(Errno::EIO)
    });
    ferrowarp_restore_cancel(cancel);
    outcome.as_ref().map_or_else(|errno| *errno, |_| before).set();
    outcome
}

impl From<nix::errno::Errno> for Errno {
    fn from(error: nix::errno::Errno) -> Self {
        Self(error as c_int)
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        // Without a number: in a child made by `fork`.
        error.raw_os_error().map_or(Self::ENODEV, Self)
    }
}

impl From<Ended> for Errno {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Failed => Self::EIO,
            _ => Self::ENODEV,
        }
    }
}

impl From<CreateError> for Errno {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Limit(_) | CreateError::TooManyCqs(_) => Self::ENOMEM,
            CreateError::Ended(ended) => ended.into(),
            _ => Self::EINVAL,
        }
    }
}

impl From<ResizeError> for Errno {
    fn from(error: ResizeError) -> Self {
        match error {
            ResizeError::Limit(_) => Self::ENOMEM,
            ResizeError::Ended(ended) => ended.into(),
            _ => Self::EINVAL,
        }
    }
}

impl From<ReqNotifyError> for Errno {
    fn from(error: ReqNotifyError) -> Self {
        match error {
            ReqNotifyError::Ended(ended) => ended.into(),
            _ => Self::EINVAL,
        }
    }
}

impl From<SrqError> for Errno {
    fn from(_: SrqError) -> Self {
        Self::EINVAL
    }
}

impl From<MemoryError> for Errno {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::NotMapped { .. } | MemoryError::ReadOnly => Self(libc::EFAULT),
            MemoryError::WindowsBound => Self::EBUSY,
            MemoryError::Limit(_) => Self::ENOMEM,
            MemoryError::Register(RegisterError::TableFull) => Self::ENOMEM,
            _ => Self::EINVAL,
        }
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        match error {
            PostError::QueueFull => Self::ENOMEM,
            PostError::Unsupported => Self::EOPNOTSUPP,
            _ => Self::EINVAL,
        }
    }
}

impl From<CmError> for Errno {
    fn from(error: CmError) -> Self {
        match error {
            CmError::NoResources | CmError::TooManyConnections => Self::ENOMEM,
            CmError::Unreachable => Self(libc::ENETUNREACH),
            CmError::NotLocal | CmError::NoAddressOfFamily => Self(libc::EADDRNOTAVAIL),
            CmError::PortInUse(_) | CmError::ConnectionExists(_) => Self(libc::EADDRINUSE),
            CmError::Ended(ended) => ended.into(),
            _ => Self::EINVAL,
        }
    }
}

/// Runs the body of a call that posts or polls. A panic does not cross: it becomes `EIO`. `errno`
/// stays what it was: these calls return their errors. The system calls of the stack on these paths
/// are no cancellation points.
#[inline(always)]
pub(crate) fn hot(body: impl FnOnce() -> c_int) -> c_int {
    let before = Errno::last();
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Errno::EIO.0);
    before.set();
    result
}
