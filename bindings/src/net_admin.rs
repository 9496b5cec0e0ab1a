//! `CAP_NET_ADMIN` of a thread.

/// Version of the structures (`linux/capability.h`, `_LINUX_CAPABILITY_VERSION_3`).
const VERSION: u32 = 0x2008_0522;
/// Number of the capability.
const NET_ADMIN: u32 = 12;

/// `struct __user_cap_header_struct`: thread 0 is the calling one.
#[repr(C)]
struct Header {
    version: u32,
    thread: i32,
}

/// `struct __user_cap_data_struct`: 32 capabilities.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Runs `act` in this thread without the right to change network interfaces. If that cannot be
/// given up, `act` has it.
pub(crate) fn without_net_admin(act: impl FnOnce()) {
    let mut header = Header { version: VERSION, thread: 0 };
    let mut before = [Sets::default(); 2];
    let header = &raw mut header;
    // SAFETY: the kernel reads the header and writes two structures, as this version has them.
    let got = unsafe { libc::syscall(libc::SYS_capget, header, before.as_mut_ptr()) } == 0;
    let mut without = before;
    without[0].effective &= !(1 << NET_ADMIN);
    let set = |sets: &[Sets; 2]| {
        // SAFETY: the kernel reads the header and two structures. It changes this thread alone.
        unsafe { libc::syscall(libc::SYS_capset, header, sets.as_ptr()) }
    };
    let is_changed = got && set(&without) == 0;
    act();
    if is_changed {
        // The right is still a permitted one.
        set(&before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Effective capabilities of this thread.
    fn effective() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find(|line| line.starts_with("CapEff:")).unwrap().to_owned()
    }

    #[test]
    fn right_is_given_up_for_the_call_alone() {
        let before = effective();
        let has = |text: &str| {
            let set = u64::from_str_radix(text.trim_start_matches("CapEff:").trim(), 16).unwrap();
            set & (1 << NET_ADMIN) != 0
        };
        without_net_admin(|| assert!(!has(&effective())));
        assert_eq!(effective(), before);
    }
}
