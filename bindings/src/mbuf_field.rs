//! Fields of an mbuf, at the offsets that DPDK's headers give them. Some lie in anonymous unions
//! from DPDK 24.11 on, for which Rust has no stable name.

use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::sys;

/// A live mbuf. Whoever has this pointer holds a reference to the mbuf.
pub(crate) type Raw = NonNull<sys::rte_mbuf>;

/// A field of an mbuf with a value of type `T`; shim.c compares the sizes of field and type.
///
/// No reference to a whole mbuf is made, because C may change the reference count concurrently.
pub(crate) struct Field<T>(u32, PhantomData<T>);

pub(crate) const BUF_ADDR: Field<*mut u8> = Field::at(sys::FW_MBUF_BUF_ADDR);
pub(crate) const PORT: Field<u16> = Field::at(sys::FW_MBUF_PORT);
pub(crate) const DATA_OFF: Field<u16> = Field::at(sys::FW_MBUF_DATA_OFF);
pub(crate) const REFCNT: Field<u16> = Field::at(sys::FW_MBUF_REFCNT);
pub(crate) const NB_SEGS: Field<u16> = Field::at(sys::FW_MBUF_NB_SEGS);
pub(crate) const OL_FLAGS: Field<u64> = Field::at(sys::FW_MBUF_OL_FLAGS);
pub(crate) const PKT_LEN: Field<u32> = Field::at(sys::FW_MBUF_PKT_LEN);
pub(crate) const DATA_LEN: Field<u16> = Field::at(sys::FW_MBUF_DATA_LEN);
pub(crate) const BUF_LEN: Field<u16> = Field::at(sys::FW_MBUF_BUF_LEN);
pub(crate) const HASH_RSS: Field<u32> = Field::at(sys::FW_MBUF_HASH_RSS);
pub(crate) const NEXT: Field<*mut sys::rte_mbuf> = Field::at(sys::FW_MBUF_NEXT);
pub(crate) const TX_OFFLOAD: Field<u64> = Field::at(sys::FW_MBUF_TX_OFFLOAD);

impl<T: Copy> Field<T> {
    const fn at(offset: u32) -> Self {
        Self(offset, PhantomData)
    }

    /// Returns where the field of this mbuf lies.
    #[inline]
    pub(crate) const fn pointer(&self, raw: Raw) -> *mut T {
        // SAFETY: the field lies in the mbuf, at an offset that C computed.
        unsafe { raw.as_ptr().byte_add(self.0 as usize).cast() }
    }

    /// Reads the field.
    #[inline]
    pub(crate) const fn get(&self, raw: Raw) -> T {
        // SAFETY: the mbuf is live, because its caller's value holds a reference to it, and its
        // metadata is not written while anyone but the builder of the frame can see it.
        unsafe { self.pointer(raw).read() }
    }

    /// Writes the field. For the builder of a frame, who alone reads it.
    #[inline]
    pub(crate) const fn set(&self, raw: Raw, value: T) {
        // SAFETY: as above; nobody else reads the field meanwhile.
        unsafe { self.pointer(raw).write(value) };
    }
}
