//! What the device can do, and its port (`ibv_query_device`, `ibv_query_port` and the like).

use std::ffi::{c_int, c_uint};
use std::net::IpAddr;

use ferrowarp::{MESSAGE_LEN_MAX, SGE_COUNT_MAX};
use ferrowarp_settings::Settings;

use crate::abi::{
    IBV_ATOMIC_GLOB, IBV_ATOMIC_NONE, IBV_DEVICE_MEM_MGT_EXTENSIONS, IBV_GID_TYPE_IB,
    IBV_LINK_LAYER_ETHERNET, IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096,
    IBV_PORT_ACTIVE, IBV_PORT_CM_SUP, IBV_PORT_DOWN, PORT_ATTR_LEN_LEGACY, ibv_context,
    ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_mtu, ibv_port_attr,
    ibv_query_device_ex_input,
};
use crate::config::is_peer_local;
use crate::engine::Engine;
use crate::errno::{Code, Errno, MinusOne, Outcome, run};
use crate::object::context::Context;
use crate::object::exposed::Handle;
use crate::program;

/// Requests that a queue can have.
pub(super) const MAX_QP_WR: u32 = 1 << 16;
/// Completions that a queue can have.
const MAX_CQE: c_int = 1 << 22;
/// RDMA Reads at a time, in each direction.
pub(crate) const MAX_RD_ATOM: u8 = 128;
/// The only partition: programs ask for it, and iWARP has none.
const PKEY: u16 = 0xffff;
/// `IBV_LINK_LAYER_ETHERNET` in a byte.
const LINK_LAYER: u8 = IBV_LINK_LAYER_ETHERNET.to_le_bytes()[0];
/// As the kernel reports a port whose speed it does not know: one lane of 2.5 Gb/s.
const UNKNOWN_SPEED: (u8, u8) = (1, 1);
/// States of the link (InfiniBand Architecture, PortPhysicalState).
const PHYS_LINK_UP: u8 = 5;
const PHYS_DISABLED: u8 = 3;

/// A number of the API in a field of the ABI.
fn int(number: impl TryInto<c_int>) -> c_int {
    number.try_into().unwrap_or(c_int::MAX)
}

/// GUID of the device in network byte order, from its first address: what an interface with that
/// address has for an identifier (IPv4: RFC 5214 section 6.1).
pub(super) fn guid(settings: &Settings) -> u64 {
    let guid = match settings.addresses.first().map(|address| address.ip) {
        Some(IpAddr::V4(address)) => {
            let [a, b, c, d] = address.octets();
            [2, 0, 0x5e, 0xfe, a, b, c, d]
        }
        Some(IpAddr::V6(address)) => {
            address.to_bits().to_be_bytes()[8..].try_into().unwrap_or_default()
        }
        None => [0; 8],
    };
    u64::from_ne_bytes(guid)
}

fn device_attr(engine: &Engine) -> ibv_device_attr {
    let config = engine.context.config();
    let sges = int(SGE_COUNT_MAX);
    let mut attr = ibv_device_attr {
        node_guid: guid(&engine.settings),
        sys_image_guid: guid(&engine.settings),
        max_mr_size: config.limits.registered_bytes_max,
        // Pages of any size from 4 KiB.
        page_size_cap: !0xfff,
        vendor_id: engine.settings.vendor_id,
        vendor_part_id: engine.settings.vendor_part_id,
        max_qp: int(config.qps_max),
        max_qp_wr: int(MAX_QP_WR),
        device_cap_flags: IBV_DEVICE_MEM_MGT_EXTENSIONS,
        max_sge: sges,
        max_sge_rd: sges,
        max_cq: int(config.limits.cq_entries_max),
        max_cqe: MAX_CQE,
        max_mr: int(config.regions_max),
        max_pd: c_int::MAX,
        max_qp_rd_atom: MAX_RD_ATOM.into(),
        max_res_rd_atom: int(config.qps_max.saturating_mul(MAX_RD_ATOM.into())),
        max_qp_init_rd_atom: MAX_RD_ATOM.into(),
        atomic_cap: if config.extensions { IBV_ATOMIC_GLOB } else { IBV_ATOMIC_NONE },
        max_srq: int(config.qps_max),
        max_srq_wr: int(MAX_QP_WR),
        max_srq_sge: sges,
        max_pkeys: 1,
        phys_port_cnt: 1,
        ..ibv_device_attr::default()
    };
    for (to, from) in attr.fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from.cast_signed();
    }
    attr
}

/// True if the port is usable. The link to another process counts as up while it waits for its
/// first peer: servers look at the port when they start, before there is a client.
fn is_active(context: &ferrowarp::Context) -> bool {
    let is_awaiting = is_peer_local(&context.config().device) && !context.peer_is_gone();
    context.link_is_up() || is_awaiting
}

fn port_attr(engine: &Engine) -> ibv_port_attr {
    let is_up = is_active(&engine.context);
    let (active_width, active_speed) = UNKNOWN_SPEED;
    ibv_port_attr {
        state: if is_up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: IBV_MTU_4096,
        active_mtu: mtu(engine.context.capabilities().mtu),
        gid_tbl_len: int(engine.context.config().addresses.len()),
        port_cap_flags: IBV_PORT_CM_SUP,
        max_msg_sz: MESSAGE_LEN_MAX,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width,
        active_speed,
        phys_state: if is_up { PHYS_LINK_UP } else { PHYS_DISABLED },
        link_layer: LINK_LAYER,
        ..ibv_port_attr::default()
    }
}

/// The largest MTU of verbs that fits.
fn mtu(bytes: u16) -> ibv_mtu {
    match bytes {
        0..512 => IBV_MTU_256,
        512..1024 => IBV_MTU_512,
        1024..2048 => IBV_MTU_1024,
        2048..4096 => IBV_MTU_2048,
        4096.. => IBV_MTU_4096,
    }
}

/// GIDs are the addresses, those of IPv4 as IPv4-mapped IPv6 addresses.
fn gid(engine: &Engine, port: u32, index: u32) -> Outcome<ibv_gid> {
    let addresses = &engine.context.config().addresses;
    let address = addresses.get(index as usize).filter(|_| port == 1).ok_or(Errno::EINVAL)?;
    let address = match address.ip {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    Ok(ibv_gid { raw: address.octets() })
}

fn gid_entry(engine: &Engine, index: u32) -> Outcome<ibv_gid_entry> {
    Ok(ibv_gid_entry {
        gid: gid(engine, 1, index)?,
        gid_index: index,
        port_num: 1,
        gid_type: IBV_GID_TYPE_IB,
        ndev_ifindex: 0,
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_device(context: Handle<Context>, attr: *mut ibv_device_attr) -> Code {
    Code::of(|| program::write(attr, device_attr(context.get()?.engine)))
}

/// `ibv_query_device_ex` calls it; `len`: bytes of the struct that the program knows.
pub(super) extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    len: usize,
) -> c_int {
    let done = run(|| {
        let engine = Handle::<Context>::of(context).get()?.engine;
        if program::comp_mask_of(input) != 0 {
            return Err(Errno::EINVAL);
        }
        let orig_attr = device_attr(engine);
        let found = ibv_device_attr_ex { orig_attr, phys_port_cnt_ex: 1, ..Default::default() };
        program::write_prefix(attr, &found, len)
    });
    done.map_or_else(|errno| errno.0, |()| 0)
}

/// `ibv_query_port` calls it; `len`: bytes of the struct that the program knows.
pub(super) extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    let done = run(|| {
        let engine = Handle::<Context>::of(context).get()?.engine;
        if port != 1 {
            return Err(Errno::EINVAL);
        }
        program::write_prefix(attr, &port_attr(engine), len)
    });
    done.map_or_else(|errno| errno.0, |()| 0)
}

/// For programs that were built when the struct was shorter.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_port(
    context: Handle<Context>,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    query_port(context.as_ptr(), port, attr, PORT_ATTR_LEN_LEGACY)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_gid(
    context: Handle<Context>,
    port: u8,
    index: c_int,
    out: *mut ibv_gid,
) -> MinusOne {
    MinusOne::of(|| {
        let index = index.try_into().map_err(|_| Errno::EINVAL)?;
        program::write(out, gid(context.get()?.engine, port.into(), index)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn _ibv_query_gid_ex(
    context: Handle<Context>,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    len: usize,
) -> Code {
    Code::of(|| {
        if flags != 0 || port != 1 {
            return Err(Errno::EINVAL);
        }
        let entry = gid_entry(context.get()?.engine, index).map_err(|_| Errno(libc::ENODATA))?;
        program::write_prefix(out, &entry, len)
    })
}

/// Returns the number of entries, or a negative error number.
#[unsafe(no_mangle)]
extern "C" fn _ibv_query_gid_table(
    context: Handle<Context>,
    out: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    len: usize,
) -> isize {
    let found = run(|| {
        let engine = context.get()?.engine;
        let count = engine.context.config().addresses.len();
        if flags != 0 || max_entries < count {
            return Err(Errno::EINVAL);
        }
        for index in 0..count {
            let place = out.wrapping_byte_add(index * len);
            program::write_prefix(place, &gid_entry(engine, narrow(index))?, len)?;
        }
        Ok(count.cast_signed())
    });
    found.unwrap_or_else(|errno| -isize::try_from(errno.0).unwrap_or(1))
}

fn narrow(index: usize) -> u32 {
    index.try_into().unwrap_or(u32::MAX)
}

/// Type of a GID, for `ibv_devinfo`, which asks by a private function.
#[unsafe(no_mangle)]
extern "C" fn ferrowarp_query_gid_type(
    context: Handle<Context>,
    port: u8,
    index: c_uint,
    out: *mut u32,
) -> MinusOne {
    MinusOne::of(|| {
        gid(context.get()?.engine, port.into(), index)?;
        program::write(out, IBV_GID_TYPE_IB)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_pkey(
    context: Handle<Context>,
    port: u8,
    index: c_int,
    out: *mut u16,
) -> MinusOne {
    MinusOne::of(|| {
        context.get()?;
        if port != 1 || index != 0 {
            return Err(Errno::EINVAL);
        }
        program::write(out, PKEY.to_be())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(context: Handle<Context>, port: u8, pkey: u16) -> MinusOne {
    MinusOne::of(|| {
        context.get()?;
        let is_it = port == 1 && pkey == PKEY.to_be();
        if is_it { Ok(()) } else { Err(Errno::EINVAL) }
    })
}
