//! The device list: one device, if one is configured.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::AtomicPtr;

use ferrowarp_settings::Settings;

use crate::abi::{IBV_NODE_RNIC, IBV_TRANSPORT_IWARP, ibv_context, ibv_device};
use crate::errno::Pointer;
use crate::object::context::Context;
use crate::object::exposed::{Exposed, Handle, Registry, expose};
use crate::object::query::guid;
use crate::object::users::Users;
use crate::report::report;

/// The device. There is one, for ever.
#[derive(Debug)]
pub(crate) struct Device {
    users: Users,
}

impl Exposed for Device {
    type Public = ibv_device;
    type Pointee = ibv_device;

    fn registry() -> &'static Registry<Self> {
        static DEVICES: Registry<Device> = Registry::new();
        &DEVICES
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

/// The device as programs see it. Its paths do not exist: nothing of it is in the kernel.
static DEVICE: LazyLock<Handle<Device>> = LazyLock::new(|| {
    let mut public = ibv_device {
        node_type: IBV_NODE_RNIC,
        transport_type: IBV_TRANSPORT_IWARP,
        ..ibv_device::default()
    };
    put(&mut public.name, b"ferrowarp0");
    put(&mut public.dev_name, b"uverbs0");
    put(&mut public.dev_path, b"/sys/class/infiniband_verbs/uverbs0");
    put(&mut public.ibdev_path, b"/sys/class/infiniband/ferrowarp0");
    expose(Device { users: Users::default() }, public)
});

/// List of the device, and list of none, each with a null pointer at its end.
static LIST: LazyLock<[AtomicPtr<ibv_device>; 2]> =
    LazyLock::new(|| [AtomicPtr::new(DEVICE.as_ptr()), AtomicPtr::default()]);
static EMPTY: [AtomicPtr<ibv_device>; 1] = [AtomicPtr::new(ptr::null_mut())];

/// Returns the device.
pub(crate) fn device() -> Handle<Device> {
    *DEVICE
}

/// Copies a text, and what is left stays zero.
fn put(field: &mut [c_char], text: &[u8]) {
    for (to, from) in field.iter_mut().zip(text) {
        *to = from.cast_signed();
    }
}

/// Opens nothing: programs that only look for devices need not start the stack.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(count: Option<&mut c_int>) -> Pointer<*mut ibv_device> {
    Pointer::of(|| {
        let (list, len) = match Settings::from_environment() {
            Ok(_) => (LIST.as_ptr(), 1),
            Err(error) => {
                report(&error.to_string());
                (EMPTY.as_ptr(), 0)
            }
        };
        if let Some(count) = count {
            *count = len;
        }
        Ok(list.cast_mut().cast())
    })
}

/// The lists are never freed.
#[unsafe(no_mangle)]
extern "C" fn ibv_free_device_list(_list: *mut *mut ibv_device) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: Handle<Device>) -> Pointer<c_char> {
    Pointer::of(|| {
        let mut name = ptr::null_mut();
        device.get()?;
        device.change(|public| name = public.name.as_mut_ptr());
        Ok(name)
    })
}

/// In network byte order, as the header says.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(_device: Handle<Device>) -> u64 {
    Settings::from_environment().map_or(0, |settings| guid(&settings))
}

/// The kernel has no number for the device.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(_device: Handle<Device>) -> c_int {
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: Handle<Device>) -> Pointer<ibv_context> {
    Pointer::of(|| {
        device.get()?;
        Ok(Context::open()?.as_ptr())
    })
}
