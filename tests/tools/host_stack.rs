//! The stack as a host program in C uses it: the functions of `tests/host_program/host_stack.h`, in
//! a static library.

use core::ffi::{CStr, c_char, c_int};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use clap::Parser as _;
use ferrowarp::device::{DpdkDevice, OpenConfig, Opened, PoolNeeds};
use ferrowarp::{
    Access, Config, ConnParam, Context, Cq, DriveMode, Mr, Pd, QpOptions, QpState, Wc, WcStatus,
};
use ferrowarp_apps::perf::iwperf_options::IwperfOptions;
use ferrowarp_apps::perf::iwperf_program::program;

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const PORT: u16 = 4791;

/// A context on queues of the program's port.
#[derive(Debug)]
pub struct HostStack {
    context: Context,
    pd: Pd,
    cq: Cq,
}

/// Returns a string of the program.
///
/// # Safety
/// `text` is a string that lives through the call of the library's function.
unsafe fn string<'a>(text: *const c_char) -> &'a str {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().expect("the program's strings are ASCII")
}

fn open(device: &str, address: &str, is_polled: bool) -> Result<HostStack, String> {
    let device = device.parse().map_err(|error| format!("{error}"))?;
    let address: IpAddr = address.parse().map_err(|error| format!("{address}: {error}"))?;
    let config = Config::new(device, address, 24)
        .pools(PoolNeeds::new())
        .drive(if is_polled { DriveMode::Inline } else { DriveMode::Helper })
        .linger(Duration::from_millis(500));
    let context = Context::open(config).map_err(|error| error.to_string())?;
    let cq = context.create_cq(1024).map_err(|error| error.to_string())?;
    Ok(HostStack { pd: context.alloc_pd(), cq, context })
}

/// See the header.
///
/// # Safety
/// Two strings that live through the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn host_stack_open(
    device: *const c_char,
    address: *const c_char,
    is_polled: c_int,
) -> *mut HostStack {
    // SAFETY: the caller's promise.
    let device = unsafe { string(device) };
    // SAFETY: as above.
    let address = unsafe { string(address) };
    match open(device, address, is_polled != 0) {
        Ok(stack) => Box::into_raw(Box::new(stack)),
        Err(error) => {
            println!("refused: {error}");
            core::ptr::null_mut()
        }
    }
}

/// See the header.
///
/// # Safety
/// A context that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn host_stack_poll(stack: *const HostStack) -> c_int {
    // SAFETY: the caller's promise.
    c_int::from(unsafe { &*stack }.context.drive())
}

/// See the header.
///
/// # Safety
/// A string that lives through the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn host_stack_print_steering(device: *const c_char) {
    // SAFETY: the caller's promise.
    let device = unsafe { string(device) };
    let device: ferrowarp::device::DeviceSpec = device.parse().expect("a device");
    match ferrowarp::device::open(&device, &OpenConfig::new().queues(2)) {
        Ok(Opened::One(queues)) => {
            let first = queues.first().map(DpdkDevice::steering);
            println!("steering: {first:?}");
        }
        other => println!("refused: {other:?}"),
    }
}

/// Polls both contexts until `done` returns a value.
fn drive<T>(ends: [&HostStack; 2], mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        ends.iter().for_each(|end| _ = end.context.drive());
        assert!(start.elapsed() < TIMEOUT, "no progress: {:?}", ends[0].context.counters());
    }
}

/// Polls both contexts until a request of the first one has succeeded.
fn await_success(ends: [&HostStack; 2]) {
    let wc = drive(ends, || ends[0].cq.poll(&mut [Wc::default()]).first().copied());
    assert_eq!(wc.status, WcStatus::Success);
}

fn transfer(ends: [&HostStack; 2], address: IpAddr, len: usize) {
    let qp = |end: &HostStack| {
        end.pd.create_qp(&QpOptions::new(&end.cq).max_send_wr(4)).expect("within the limits")
    };
    let region = |end: &HostStack, access| -> Mr {
        end.pd.register(end.context.allocate(len).expect("memory"), access).expect("a region")
    };
    let [from, to] = ends;
    let (a, b) = (qp(from), qp(to));
    let listener = to.context.listen(PORT, 4).expect("a free port");
    a.connect(SocketAddr::new(address, PORT), ConnParam::new()).expect("it is idle");
    let request = drive(ends, || listener.next_request());
    request.accept(&b, ConnParam::new()).expect("it is idle");
    let is_connected = || [&a, &b].iter().all(|qp| qp.state() == QpState::Rts);
    drive(ends, || is_connected().then_some(()));

    let bytes = ferrowarp_tests::pattern(len as u64, len);
    let mine = region(from, Access::LOCAL_WRITE);
    let theirs = region(to, Access::ALL);
    mine.write(0, &bytes);
    let all = mine.sge(0, u32::try_from(len).expect("the header's type"));
    a.post().write(all, theirs.remote()).signaled().ring().expect("there is room");
    await_success(ends);
    mine.fill(0, len, 0);
    a.post().read(all, theirs.remote()).signaled().ring().expect("there is room");
    await_success(ends);
    let mut found = vec![0; len];
    for region in [&mine, &theirs] {
        region.read(0, &mut found);
        assert!(found == bytes, "what was written is there, and comes back");
    }
}

/// See the header.
///
/// # Safety
/// Two contexts that are open, and a string, which live through the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn host_stack_transfer(
    from: *const HostStack,
    to: *const HostStack,
    address: *const c_char,
    len: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let from = unsafe { &*from };
    // SAFETY: as above.
    let to = unsafe { &*to };
    // SAFETY: as above.
    let address = unsafe { string(address) }.parse().expect("an address");
    transfer([from, to], address, len as usize);
    0
}

/// See the header.
///
/// # Safety
/// A context that is open, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn host_stack_close(stack: *mut HostStack) {
    // SAFETY: made by `host_stack_open`, and passed here once.
    let HostStack { context, pd, cq } = *unsafe { Box::from_raw(stack) };
    drop((pd, cq));
    context.close();
}

/// See the header.
///
/// # Safety
/// As many strings, which live through the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn host_stack_iwperf(count: c_int, arguments: *const *const c_char) -> c_int {
    let count = usize::try_from(count).expect("a count");
    // SAFETY: the caller's promise.
    let arguments = unsafe { core::slice::from_raw_parts(arguments, count) };
    // SAFETY: as above.
    let arguments = arguments.iter().map(|text| unsafe { string(*text) });
    let options = match IwperfOptions::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => {
            println!("refused: {error}");
            return 2;
        }
    };
    match program(&options) {
        Ok(()) => 0,
        Err(error) => {
            println!("refused: {error:#}");
            1
        }
    }
}
