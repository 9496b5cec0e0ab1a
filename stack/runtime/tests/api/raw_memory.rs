//! Memory of the program that it registers by address.

use ferrowarp::{Access, DriveMode, MemoryError, Mr, MrOptions, Pd, ReregOptions, WcStatus};

use crate::support::*;

/// Registers a part of memory that the test keeps as long as the region.
fn register(
    pd: &Pd,
    start: *mut u8,
    len: usize,
    options: impl Into<MrOptions>,
) -> Result<Mr, MemoryError> {
    // SAFETY: the tests keep the memory, and access it only through its regions. If it is not
    // mapped, this is refused.
    unsafe { pd.register_raw(start, len, options) }
}

#[test]
fn overlapping_regions_are_independent() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let source = left.mr(64, Access::ALL);
    source.write(0, b"both");
    let memory = Box::into_raw(Box::new([0_u8; 8192]));
    let start = memory.cast::<u8>();
    let whole = register(&right.pd, start, 8192, Access::ALL).unwrap();
    let part = register(&right.pd, start.wrapping_add(100), 50, Access::REMOTE_WRITE).unwrap();
    let same = register(&right.pd, start, 8192, Access::REMOTE_READ).unwrap();
    assert!(whole.rkey() != part.rkey() && whole.rkey() != same.rkey());
    write(&a, 1, source.sge(0, 4), &part, 46).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    drive_until(&left.context, &right.context, || whole.load_last(149) == b'h');
    // One of them ends, and the others do not.
    drop(part);
    write(&a, 2, source.sge(0, 4), &whole, 8188).unwrap();
    read(&a, 3, source.sge(4, 4), &same, 8188).unwrap();
    assert!(left.completions(&right, 2).iter().all(|wc| wc.status == WcStatus::Success));
    let mut bytes = [0; 4];
    source.read(4, &mut bytes);
    assert_eq!(&bytes, b"both");
    assert_eq!(whole.addr(), start.addr() as u64);
    drop((whole, same));
    // SAFETY: the pointer is that of the box, and no region has the bytes any more.
    drop(unsafe { Box::from_raw(memory) });
}

#[test]
fn memory_that_is_not_mapped_is_refused() {
    let mut large = config(1, DriveMode::Inline);
    large.limits.registered_bytes_max = u64::MAX;
    let (left, _right) = ring_pair(large, config(2, DriveMode::Inline)).unwrap();
    let pd = left.alloc_pd();
    let mut byte = 0_u8;
    let here = std::ptr::from_mut(&mut byte);
    let top = std::ptr::without_provenance_mut(usize::MAX - 4095);
    for (start, len) in [
        (std::ptr::null_mut(), 1),
        (here, 1 << 62),
        (here, usize::MAX),
        (top, 4095),
        (top, 4096),
        (top, 4097),
    ] {
        for options in [MrOptions::new(Access::ALL), MrOptions::new(Access::ALL).zero_based()] {
            let refused = register(&pd, start, len, options).unwrap_err();
            assert!(matches!(refused, MemoryError::NotMapped { .. }), "{refused}");
            assert!(refused.to_string().contains("not all mapped"), "{refused}");
        }
    }
    assert_eq!(register(&pd, here, 1, Access::ALL).unwrap().len(), 1);
}

#[test]
fn empty_region_is_registered_and_grants_nothing() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let source = left.mr(64, Access::ALL);
    let empty = register(&right.pd, std::ptr::null_mut(), 0, Access::ALL).unwrap();
    assert!(empty.is_empty() && empty.remote().len == 0);
    empty.write(0, b"");
    write(&a, 1, source.sge(0, 0), &empty, 0).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    write(&a, 2, source.sge(0, 1), &empty, 0).unwrap();
    expect_event(&b);
    left.completions(&right, 1);
    let top = MrOptions::new(Access::ALL).iova(u64::MAX);
    let at_top = register(&right.pd, std::ptr::null_mut(), 0, top).unwrap();
    assert_eq!((at_top.iova(), at_top.sge(0, 0).addr), (u64::MAX, u64::MAX));
}

#[test]
fn region_moves_to_other_memory_and_back() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let sink = left.mr(64, Access::ALL);
    let mut region = right.mr(64, Access::REMOTE_READ);
    let memory = Box::into_raw(Box::new([5_u8; 100]));
    let old = region.remote();
    let options = ReregOptions::new();
    // SAFETY: as in `register`.
    let none = unsafe { region.reregister_raw(std::ptr::null_mut(), 1, &options) };
    assert!(matches!(none, Err(MemoryError::NotMapped { .. })));
    assert_eq!(region.remote(), old, "nothing has changed");
    // SAFETY: as in `register`.
    let buffer = unsafe { region.reregister_raw(memory.cast(), 100, &options) }.unwrap().unwrap();
    assert_eq!((buffer.len(), region.len(), region.iova()), (64, 100, memory.addr() as u64));
    read(&a, 1, sink.sge(0, 8), &region, 92).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    assert_eq!(&contents(&sink)[..8], &[5; 8]);
    assert!(region.reregister_buffer(buffer, &options).unwrap().is_none());
    // SAFETY: the pointer is that of the box, and no region has the bytes any more.
    drop(unsafe { Box::from_raw(memory) });
    read(&a, 1, sink.sge(0, 8), &region, 56).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    assert_eq!(&contents(&sink)[..8], &[0; 8]);
}
