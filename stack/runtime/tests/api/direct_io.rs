//! Files read straight into registered memory, and written from it.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek};

use ferrowarp::{Access, DriveMode, WcStatus};

use crate::support::*;

#[test]
fn file_travels_from_region_to_region() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let bytes = pattern(5000, 1);
    let source = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(source.path(), &bytes).unwrap();
    let mr = left.mr(8192, Access::LOCAL_READ);
    mr.fill(0, 8192, 9);
    assert_eq!(mr.pread(source.as_file(), 100, 4000, 1000).unwrap(), 4000);
    assert_eq!(mr.pread(source.as_file(), 4100, 4000, 4900).unwrap(), 100, "its end");
    assert_eq!(mr.pread(source.as_file(), 0, 100, 5000).unwrap(), 0, "behind its end");
    let expected = [&[9; 100][..], &bytes[1000..], &bytes[4900..], &[9; 8192 - 4200][..]].concat();
    assert_eq!(contents(&mr), expected);
    // To the peer, and from its memory to another file.
    let sink = right.pd.register_owned(vec![0; 8192], Access::REMOTE_WRITE).unwrap();
    write(&a, 1, mr.sge(100, 4100), &sink, 0).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    drive_until(&left.context, &right.context, || sink.load_last(4099) == bytes[4999]);
    let mut copy = tempfile::tempfile().unwrap();
    assert_eq!(sink.pwrite(&copy, 0, 4100, 10).unwrap(), 4100);
    let shared = right.pd.register_shared("shared", Access::REMOTE_READ).unwrap();
    assert_eq!(shared.pwrite(&copy, 0, 6, 4110).unwrap(), 6);
    let mut found = Vec::new();
    copy.rewind().unwrap();
    copy.read_to_end(&mut found).unwrap();
    assert_eq!(found, [&[0; 10], &expected[100..4200], b"shared"].concat());
}

#[test]
fn failed_calls_report_the_error_of_the_system() {
    let (left, _right) = endpoints(DriveMode::Inline);
    let mr = left.mr(64, Access::LOCAL_READ);
    let file = tempfile::NamedTempFile::new().unwrap();
    let only_reads = File::open(file.path()).unwrap();
    assert!(mr.pwrite(&only_reads, 0, 64, 0).is_err());
    for position in [1 << 63, u64::MAX] {
        let too_far = mr.pread(&only_reads, 0, 64, position).unwrap_err();
        assert_eq!(too_far.raw_os_error(), Some(nix::errno::Errno::EOVERFLOW as i32));
    }
    assert_eq!(mr.pread(&only_reads, 64, 0, 0).unwrap(), 0);
    let (pipe, _writer) = std::io::pipe().unwrap();
    assert_eq!(mr.pread(&pipe, 0, 64, 0).unwrap_err().kind(), ErrorKind::NotSeekable);
}

#[test]
#[should_panic(expected = "leave a region of 64")]
fn range_outside_the_region_panics() {
    let (left, _right) = endpoints(DriveMode::Inline);
    let _ = left.mr(64, Access::LOCAL_READ).pread(tempfile::tempfile().unwrap(), 1, 64, 0);
}

#[test]
fn pointers_are_those_of_the_memory() {
    let (left, _right) = endpoints(DriveMode::Inline);
    let bytes = vec![0; 64];
    let start = bytes.as_ptr();
    let mr = left.pd.register_owned(bytes, Access::ALL).unwrap();
    assert!(mr.as_ptr() == start && mr.as_mut_ptr().cast_const() == start);
    assert_eq!(mr.addr(), start.addr() as u64);
    let buffer = left.mr(64, Access::ALL);
    assert_eq!(buffer.as_mut_ptr().addr() % 4096, 0, "for O_DIRECT");
}
