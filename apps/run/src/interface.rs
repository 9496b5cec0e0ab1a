//! Interface of the kernel with the addresses, for programs that look for them there.
//!
//! It is a TAP interface without a reader, so nothing that the kernel sends there arrives. Its
//! descriptor stays open in the program and its children: the interface exists until the last of
//! them has ended or closed it, and no process has to remove it.
//!
//! The addresses have prefixes of all bits. A shorter prefix would be a route: the kernel would
//! send its own packets to the peers to this interface, and they would be lost. With the whole
//! address it only knows that the address is local.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};

use crate::failure::Failure;
use crate::netlink::RoutingSocket;
use crate::options::Options;
use crate::system_calls::make_tap;

/// Least number of the descriptor: shells and programs use low numbers for their own.
const DESCRIPTOR_MIN: i32 = 100;

/// Longest name of an interface: the kernel's `IFNAMSIZ` without the NUL.
const NAME_BYTES_MAX: usize = 15;

/// Checks that the kernel will not get in the way of this device.
///
/// # Errors
/// If it would.
pub fn check_device(options: &Options, device: &str) -> Result<(), Failure> {
    let kind = device.split(':').next().unwrap_or_default();
    let shares = ["af_packet", "af_xdp"].contains(&kind);
    if options.netns && shares {
        return Err(Failure::own(format!(
            "--netns: {device} is not in the new network namespace: start iwarp-run with ip netns \
             exec instead"
        )));
    }
    if options.iface.is_some() && (shares || kind == "tap") {
        return Err(Failure::own(format!(
            "--iface: over {device} the kernel would see the peers' packets, and answer them for \
             an address of its own: give a device that the kernel does not share"
        )));
    }
    Ok(())
}

/// Moves this process to a new network namespace, and sets up its loopback interface.
///
/// # Errors
/// Without CAP_SYS_ADMIN.
pub fn enter_namespace() -> Result<(), Failure> {
    let of = |error: io::Error| {
        Failure::own(format!(
            "--netns: {error}: this needs CAP_SYS_ADMIN, as root has it, also inside unshare \
             --map-root-user"
        ))
    };
    unshare(CloneFlags::CLONE_NEWNET).map_err(|error| of(error.into()))?;
    let index = if_nametoindex("lo").map_err(|error| of(error.into()))?;
    let socket = RoutingSocket::open().map_err(of)?;
    socket.set_flags(index, libc::IFF_UP).map_err(of)
}

/// Creates the interface, with these addresses, up. It stays as long as this process and those that
/// inherit its descriptors.
///
/// # Errors
/// Without CAP_NET_ADMIN or `/dev/net/tun`, or if an interface has the name.
pub fn create(name: &str, addresses: impl Iterator<Item = IpAddr>) -> Result<(), Failure> {
    let failed = |about: String| Failure::own(format!("--iface {name}: {about}"));
    check_name(name).map_err(|reason| failed(reason.to_owned()))?;
    if if_nametoindex(name).is_ok() {
        return Err(failed("an interface of this name exists: give another one".to_owned()));
    }
    create_tap(name).map_err(|error| failed(remedy(&error)))?;
    // Best effort: without IPv6 there is no such file, and a link-local address does no harm.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1");
    let index = if_nametoindex(name).map_err(|error| failed(error.to_string()))?;
    let socket = RoutingSocket::open().map_err(|error| failed(error.to_string()))?;
    for ip in addresses {
        let added = socket.add_host_address(index, ip);
        added.map_err(|error| failed(format!("{ip}: {error}")))?;
    }
    // Nobody would answer ARP.
    let flags = libc::IFF_UP | libc::IFF_NOARP;
    socket.set_flags(index, flags).map_err(|error| failed(error.to_string()))
}

fn check_name(name: &str) -> Result<(), &'static str> {
    // The kernel replaces %d by a number.
    let is_wrong = |c: char| c.is_whitespace() || c.is_control() || "/:%".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        Err("a name has 1 to 15 bytes")
    } else if [".", ".."].contains(&name) || name.contains(is_wrong) {
        Err("a name has no blank, slash, colon or percent sign")
    } else {
        Ok(())
    }
}

fn create_tap(name: &str) -> io::Result<()> {
    let tun = File::options().read(true).write(true).open("/dev/net/tun")?;
    make_tap(&tun, name)?;
    // The copy is not closed when the program starts, unlike the original.
    fcntl(&tun, FcntlArg::F_DUPFD(DESCRIPTOR_MIN))?;
    Ok(())
}

fn remedy(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!(
            "{error}: this needs CAP_NET_ADMIN, as root has it; a namespace of your own has it \
             too: unshare --map-root-user --net iwarp-run ..."
        ),
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            format!("no /dev/net/tun: {error} (modprobe tun)")
        }
        Some(libc::EINVAL | libc::EMFILE) => {
            format!("{error}: it needs descriptor {DESCRIPTOR_MIN} (raise ulimit -n)")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_would_change_are_refused() {
        for wrong in ["", "abcdefghijklmnop", "iw%d", "a/b", "a b", ".", "..", "a:1", "a\n"] {
            assert!(check_name(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(check_name("iw0"), Ok(()));
    }

    #[test]
    fn devices_that_the_kernel_shares_are_refused() {
        let iface = Options { iface: Some("iw0".to_owned()), ..Options::default() };
        let netns = Options { netns: true, ..Options::default() };
        for (options, device, is_good) in [
            (&iface, "memif:/tmp/fw.sock", true),
            (&iface, "pci:0000:01:00.0", true),
            (&iface, "tap:iw1", false),
            (&iface, "af_packet:eth0", false),
            (&netns, "af_xdp:eth0", false),
            (&netns, "tap:iw1", true),
            (&Options::default(), "af_packet:eth0", true),
        ] {
            assert_eq!(check_device(options, device).is_ok(), is_good, "{device}");
        }
    }
}
