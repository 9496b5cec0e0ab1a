//! Regions of memory that a value of the application owns.

use std::fmt;
use std::ops::Deref;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::regions::Stag;

use super::{Mr, MrOptions, Region, ReregOptions};
use crate::error::{MemoryError, RegisterRefused};
use crate::handle::pd::Pd;
use crate::memory::{Exclusive, Shared};

/// Rights that write nothing.
const READ_ONLY: Access = Access::from_bits(
    Access::LOCAL_READ.bits() | Access::REMOTE_READ.bits() | Access::WINDOW_BIND.bits(),
);

/// Memory region of bytes that a value of the application owns: a `Vec<u8>`, an array, a mapping.
///
/// It is an [`Mr`] in every other respect. The region keeps the value until it is deregistered or
/// dropped: [`OwnedMr::deregister`] returns it, with the bytes as the peers have left them.
///
/// ```
/// # use ferrowarp::*;
/// # fn example(pd: &Pd) -> Result<(), MemoryError> {
/// let region = pd.register_owned(vec![0; 4096], Access::REMOTE_WRITE)?;
/// region.write(0, b"hello");
/// let bytes: Vec<u8> = region.deregister();
/// assert_eq!(&bytes[..5], b"hello");
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_mr")]
pub struct OwnedMr<T> {
    /// Dropped before the owner.
    mr: Mr,
    owner: Exclusive<T>,
}

/// Memory region of bytes that nobody writes: an `Arc<[u8]>`, a `&'static [u8]`, a file that is
/// mapped read-only. Peers and local requests read it, and so may the application, by shared
/// reference.
///
/// It has the methods of [`Region`], none of which writes. No right to write can be granted, by a
/// memory window neither.
///
/// ```
/// # use std::sync::Arc;
/// # use ferrowarp::*;
/// # fn example(pd: &Pd) -> Result<(), MemoryError> {
/// let table: Arc<[u8]> = Arc::from(vec![7; 4096]);
/// let region = pd.register_shared(Arc::clone(&table), Access::REMOTE_READ)?;
/// assert_eq!((region.owner()[0], table[0]), (7, 7));
/// # Ok(())
/// # }
/// ```
///
/// A method that writes does not exist:
///
/// ```compile_fail
/// # use ferrowarp::*;
/// # fn example(region: SharedMr<&'static [u8]>) {
/// region.write(0, b"hello");
/// # }
/// ```
#[doc(alias = "ibv_mr")]
pub struct SharedMr<T> {
    /// Dropped before the owner.
    region: Region,
    owner: Shared<T>,
}

impl Pd {
    /// Registers the bytes that `owner` owns, for all queue pairs of the domain. The region keeps
    /// the owner until it is deregistered. [`AsMut::as_mut`] is called once; later the bytes stay
    /// where they are.
    ///
    /// # Errors
    /// As [`Pd::register`]; they return the owner.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_owned<T: AsMut<[u8]> + Send + 'static>(
        &self,
        owner: T,
        options: impl Into<MrOptions>,
    ) -> Result<OwnedMr<T>, RegisterRefused<T>> {
        let (owner, span) = Exclusive::new(owner);
        match Region::register(self, self.id().into(), span, options.into()) {
            Ok(region) => Ok(OwnedMr { mr: Mr { region, buffer: None }, owner }),
            Err(error) => Err(RegisterRefused { error, buffer: owner.into_inner() }),
        }
    }

    /// Registers bytes that nobody writes, for all queue pairs of the domain: peers may read them
    /// with [`Access::REMOTE_READ`]. The region keeps the owner until it is deregistered.
    /// [`AsRef::as_ref`] is called once.
    ///
    /// # Errors
    /// [`MemoryError::ReadOnly`] if the options grant a right to write; otherwise as
    /// [`Pd::register`]. They return the owner.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_shared<T: AsRef<[u8]> + Send + Sync + 'static>(
        &self,
        owner: T,
        options: impl Into<MrOptions>,
    ) -> Result<SharedMr<T>, RegisterRefused<T>> {
        let options = options.into();
        let (owner, span) = Shared::new(owner);
        let registered = check_read_only(options.access)
            .and_then(|()| Region::register(self, self.id().into(), span, options));
        match registered {
            Ok(region) => Ok(SharedMr { region, owner }),
            Err(error) => Err(RegisterRefused { error, buffer: owner.into_inner() }),
        }
    }
}

impl<T> OwnedMr<T> {
    /// [`Mr::enable`].
    pub fn enable(&mut self, access: Access) -> Stag {
        self.mr.enable(access)
    }

    /// [`Mr::reregister`].
    ///
    /// # Errors
    /// As [`Mr::reregister`].
    #[doc(alias = "ibv_rereg_mr")]
    pub fn reregister(&mut self, options: &ReregOptions<'_>) -> Result<Stag, MemoryError> {
        self.mr.reregister(options)
    }

    /// As [`OwnedMr::reregister`], with the bytes of another owner. Returns the previous one.
    ///
    /// # Errors
    /// As [`Mr::reregister`]; they return the new owner.
    pub fn reregister_owner(
        &mut self,
        owner: T,
        options: &ReregOptions<'_>,
    ) -> Result<T, RegisterRefused<T>>
    where
        T: AsMut<[u8]> + Send + 'static,
    {
        let (owner, span) = Exclusive::new(owner);
        match self.mr.region.reregister(Some(span), options) {
            Ok(_) => Ok(std::mem::replace(&mut self.owner, owner).into_inner()),
            Err(error) => Err(RegisterRefused { error, buffer: owner.into_inner() }),
        }
    }

    /// Deregisters and returns the owner.
    #[doc(alias = "ibv_dereg_mr")]
    #[must_use]
    pub fn deregister(self) -> T {
        let Self { mr, owner } = self;
        drop(mr);
        owner.into_inner()
    }
}

impl<T> SharedMr<T> {
    /// Returns the owner.
    #[must_use]
    pub const fn owner(&self) -> &T {
        self.owner.get()
    }

    /// [`Mr::enable`].
    ///
    /// # Errors
    /// [`MemoryError::ReadOnly`] if `access` has a right to write. The region stays as it is.
    pub fn enable(&mut self, access: Access) -> Result<Stag, MemoryError> {
        check_read_only(access)?;
        Ok(self.region.enable(access))
    }

    /// [`Mr::reregister`].
    ///
    /// # Errors
    /// As [`Mr::reregister`], and as [`SharedMr::enable`].
    #[doc(alias = "ibv_rereg_mr")]
    pub fn reregister(&mut self, options: &ReregOptions<'_>) -> Result<Stag, MemoryError> {
        check_read_only(options.access.unwrap_or_default())?;
        self.region.reregister(None, options)
    }

    /// Deregisters and returns the owner.
    #[doc(alias = "ibv_dereg_mr")]
    #[must_use]
    pub fn deregister(self) -> T {
        let Self { region, owner } = self;
        drop(region);
        owner.into_inner()
    }
}

/// Fails if any of the rights writes. A window that writes needs a region with
/// [`Access::LOCAL_WRITE`].
fn check_read_only(access: Access) -> Result<(), MemoryError> {
    if READ_ONLY.allows(access) { Ok(()) } else { Err(MemoryError::ReadOnly) }
}

impl<T> Deref for OwnedMr<T> {
    type Target = Mr;

    fn deref(&self) -> &Mr {
        &self.mr
    }
}

impl<T> Deref for SharedMr<T> {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl<T> fmt::Debug for OwnedMr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedMr").field(&self.mr.region).finish()
    }
}

impl<T> fmt::Debug for SharedMr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedMr").field(&self.region).finish()
    }
}
