//! Scatter/gather lists: copies message bytes from and to several ranges of registered memory.

use crate::bounded_vec::BoundedVec;
use crate::ddp::memory::{Access, Memory, MemoryFault, MemoryRange};
use crate::ddp::regions::{AccessScope, Stag};

/// Scatter/gather elements per request, at most; a queue may have a lower maximum.
pub const SGE_COUNT_MAX: usize = 32;
/// Inline bytes per request, at most; a queue may have a lower maximum.
pub const INLINE_LEN_MAX: usize = 256;

/// Scatter/gather element (verbs: `ibv_sge`): `len` bytes at `addr` of the region `lkey`.
#[doc(alias = "ibv_sge")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address (tagged offset) of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// STag of the region.
    pub lkey: Stag,
}

// A list of `ibv_sge` is passed on as it is.
const _: () = assert!(
    size_of::<Sge>() == 16
        && core::mem::offset_of!(Sge, addr) == 0
        && core::mem::offset_of!(Sge, len) == 8
        && core::mem::offset_of!(Sge, lkey) == 12,
    "the layout of `ibv_sge`"
);

/// A list of one.
impl AsRef<[Self]> for Sge {
    #[inline(always)]
    fn as_ref(&self) -> &[Self] {
        std::slice::from_ref(self)
    }
}

/// Scatter/gather list.
pub type SgList = BoundedVec<Sge, SGE_COUNT_MAX>;

/// Returns the total length of the list in bytes.
#[inline]
#[must_use]
pub fn len(list: &[Sge]) -> u64 {
    // Most lists have one.
    if let [sge] = list {
        return u64::from(sge.len);
    }
    list.iter().map(|sge| u64::from(sge.len)).sum()
}

/// Fills `out` with the bytes of the list from `offset` on. Each byte is read once.
///
/// # Errors
/// The first [`MemoryFault`]; `out` is then filled in part.
pub fn gather(
    memory: &impl Memory,
    scope: AccessScope,
    list: impl IntoIterator<Item = Sge>,
    offset: u64,
    out: &mut [u8],
) -> Result<(), MemoryFault> {
    let mut done = 0;
    for (sge, at, len) in slices(list, offset, out.len()) {
        let range = memory.regions().resolve(sge.lkey, scope, Access::LOCAL_READ, at, len)?;
        memory.fetch(range, &mut out[done..done + len])?;
        done += len;
    }
    Ok(())
}

/// Resolves the bytes of the list from `offset` on that lie in one element, at most `len_max`.
///
/// # Errors
/// The [`MemoryFault`] of that element.
pub fn resolve_source(
    memory: &impl Memory,
    scope: AccessScope,
    list: impl IntoIterator<Item = Sge>,
    offset: u64,
    len_max: usize,
) -> Result<Option<MemoryRange>, MemoryFault> {
    let Some((sge, at, len)) = slices(list, offset, len_max).next() else { return Ok(None) };
    memory.regions().resolve(sge.lkey, scope, Access::LOCAL_READ, at, len).map(Some)
}

/// Places `bytes` into the list from `offset` on, front to back.
///
/// # Errors
/// The first [`MemoryFault`]; the elements before it were placed.
pub fn scatter(
    memory: &impl Memory,
    scope: AccessScope,
    list: impl IntoIterator<Item = Sge>,
    offset: u64,
    bytes: &[u8],
) -> Result<(), MemoryFault> {
    let mut done = 0;
    for (sge, at, len) in slices(list, offset, bytes.len()) {
        // req: DDP-161
        let range = memory.regions().resolve(sge.lkey, scope, Access::LOCAL_WRITE, at, len)?;
        memory.place(range, &bytes[done..done + len])?;
        done += len;
    }
    Ok(())
}

/// Returns the ranges `(element, address, length)` that cover `len` bytes from `offset` on. An
/// address that would wrap is saturated, so that `resolve` refuses it.
fn slices(
    list: impl IntoIterator<Item = Sge>,
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (Sge, u64, usize)> {
    let mut skip = offset;
    let mut left = len as u64;
    list.into_iter().filter_map(move |sge| {
        let size = u64::from(sge.len);
        let start = skip.min(size);
        skip -= start;
        let take = (size - start).min(left);
        left -= take;
        let take = usize::try_from(take).expect("at most the length of a slice");
        (take > 0).then(|| (sge, sge.addr.saturating_add(start), take))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::vec_memory::VecMemory;

    #[test]
    fn gather_reads_what_scatter_placed() {
        let arena = VecMemory::new(64);
        let stag = arena.register(0, 64, Access::ALL, 1);
        let sge = |addr, len| Sge { addr, len, lkey: stag };
        let list = [sge(40, 3), sge(0, 0), sge(10, 5), sge(20, 4)];
        assert_eq!(len(&list), 12);
        for offset in 0..12u64 {
            for count in 0..=(12 - offset as usize) {
                arena.write(0, &[0; 64]);
                let bytes: Vec<u8> = (1..=count as u8).collect();
                scatter(&arena, 1.into(), list, offset, &bytes).unwrap();
                let mut gathered = vec![0; count];
                gather(&arena, 1.into(), list, offset, &mut gathered).unwrap();
                assert_eq!(gathered, bytes, "offset {offset}");
                assert_eq!(arena.read(0, 64).iter().filter(|&&o| o != 0).count(), count);
            }
        }
    }

    #[test]
    fn sge_that_wraps_is_refused() {
        let arena = VecMemory::new(64);
        let stag = arena.register(0, 64, Access::ALL, 1);
        let list = [Sge { addr: u64::MAX, len: 8, lkey: stag }];
        assert_eq!(gather(&arena, 1.into(), list, 4, &mut [0; 2]), Err(MemoryFault::Wrap));
        assert_eq!(gather(&arena, 2.into(), list, 0, &mut [0; 2]), Err(MemoryFault::NotAssociated));
    }
}
