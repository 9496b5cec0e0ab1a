//! Generates the bindings, compiles the shim and passes DPDK's libraries to the linker.
//!
//! Each problem is reported as one line with its remedy.
//!
//! For docs.rs, which has no DPDK, recorded bindings serve (`RECORDED`).

use std::cell::Cell;
use std::env;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

/// A release of DPDK: year and month.
type Release = (u32, u32);

/// Releases between which the tests have run.
const OLDEST: Release = (22, 11);
const NEWEST: Release = (25, 11);

/// Libraries that the shared build links to; every other PMD is a plug-in that EAL loads.
const SHARED: [&str; 7] = [
    "rte_ethdev",
    "rte_net_ring",
    "rte_bus_vdev",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
    "rte_eal",
];

/// Libraries that were parts of EAL in older releases.
const SPLIT_OFF: [&str; 3] = ["rte_log", "rte_argparse", "rte_pmu"];

/// Libraries that the static build links whole: constructors register buses, mempool handlers and
/// PMDs, and no symbol refers to them.
const STATIC_WHOLE: [&str; 21] = [
    "rte_bus_vdev",
    "rte_bus_pci",
    "rte_mempool_ring",
    "rte_net_ring",
    "rte_net_memif",
    "rte_net_tap",
    "rte_net_af_packet",
    "rte_net_null",
    "rte_net_vhost",
    "rte_net_virtio",
    "rte_gso",
    "rte_hash",
    "rte_rcu",
    "rte_pci",
    "rte_ethdev",
    "rte_meter",
    "rte_net",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
    "rte_eal",
];

/// PMDs of cards that the static build links whole as far as DPDK was built with them: those of
/// Intel and of virtual machines, which need no library but DPDK's.
const STATIC_CARDS: [&str; 9] = [
    "rte_net_e1000",
    "rte_net_ena",
    "rte_net_gve",
    "rte_net_i40e",
    "rte_net_iavf",
    "rte_net_ice",
    "rte_net_igc",
    "rte_net_ixgbe",
    "rte_net_vmxnet3",
];

/// Archives that the ones above need, linked on demand: of drivers, and of all.
const STATIC_OF_DRIVERS: [&str; 6] =
    ["rte_vhost", "rte_common_iavf", "rte_security", "rte_cryptodev", "rte_dmadev", "rte_timer"];
const STATIC_PLAIN: [&str; 2] = ["rte_telemetry", "rte_kvargs"];

/// System libraries of the static build.
const STATIC_SYSTEM: [&str; 4] = ["numa", "bsd", "m", "dl"];

/// The bindings as bindgen generates them with DPDK 22.11. A test of this package records them and
/// compares them with the generated ones.
const RECORDED: &str = "recorded-bindings.txt";

fn main() {
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    if env::var_os("DOCS_RS").is_some() {
        println!("cargo::rerun-if-changed={RECORDED}");
        // No linker finds it, and names it: programs cannot be built so.
        println!("cargo::rustc-link-lib=dylib=dpdk-is-not-linked-while-DOCS_RS-is-set");
        fs::copy(RECORDED, bindings_file()).expect("OUT_DIR is writable");
        return;
    }
    for file in ["wrapper.h", "shim.c"] {
        println!("cargo::rerun-if-changed={file}");
    }
    for variable in ["", "_PATH", "_LIBDIR", "_SYSROOT_DIR"] {
        println!("cargo::rerun-if-env-changed=PKG_CONFIG{variable}");
    }
    if let Err(reason) = build() {
        println!("cargo::error={reason}");
    }
}

fn build() -> Result<(), String> {
    let (version, release) = find_libdpdk()?;
    link()?;
    let flags = pkg_config(&["--cflags"])?;
    let of_headers = generate(&flags)?;
    if release != of_headers {
        let (year, month) = of_headers;
        return Err(format!(
            "the headers found are those of DPDK {year}.{month:02}, and pkg-config names DPDK \
             {version} (of two installed, PKG_CONFIG_PATH chooses one)"
        ));
    }
    if release > NEWEST {
        let (year, month) = NEWEST;
        println!(
            "cargo::warning=DPDK {version} is newer than {year}.{month:02}, the newest that is \
             tested"
        );
    }
    compile_shim(&flags)
}

/// Returns the version of DPDK that pkg-config finds, and its release if that is new enough.
fn find_libdpdk() -> Result<(String, Release), String> {
    let version = pkg_config(&["--modversion"])?.concat();
    let (year, month) = OLDEST;
    match release(&version) {
        Some(found) if found >= OLDEST => Ok((version, found)),
        Some(_) => Err(format!(
            "DPDK {version} is too old: {year}.{month} or later is needed (Debian 12 and later \
             have it; of two installed, PKG_CONFIG_PATH chooses one)"
        )),
        None => Err(format!(
            "libdpdk.pc has no version of DPDK but {version:?} (set PKG_CONFIG_PATH to the folder \
             of another)"
        )),
    }
}

/// Returns the release of a version such as `24.11.8` or `26.03.0-rc1`.
fn release(version: &str) -> Option<Release> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Runs pkg-config itself: the crate drops `-include rte_config.h` and `-march`.
fn pkg_config(arguments: &[&str]) -> Result<Vec<String>, String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
    let output =
        Command::new(&program).args(arguments).arg("libdpdk").output().map_err(|error| {
            format!(
                "{program} does not run: {error} (Debian, Ubuntu: apt-get install pkg-config; or \
                 set PKG_CONFIG to it)"
            )
        })?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "libdpdk is absent or incomplete (Debian, Ubuntu: apt-get install libdpdk-dev; \
             elsewhere: set PKG_CONFIG_PATH to the folder of libdpdk.pc): {}",
            complaint.lines().last().unwrap_or_default()
        ));
    }
    // Blanks in names of folders are escaped.
    shlex::split(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| format!("{program} {} libdpdk prints no list of words", arguments.join(" ")))
}

fn compile_shim(flags: &[String]) -> Result<(), String> {
    let mut build = cc::Build::new();
    build.file("shim.c").opt_level(3).flag_if_supported("-Wno-address-of-packed-member");
    // DPDK's headers cause warnings: treat them as system headers.
    for flag in flags {
        match flag.strip_prefix("-I") {
            Some(path) => build.flag("-isystem").flag(path),
            None => build.flag(flag),
        };
    }
    build.try_compile("ferrowarp_dpdk_shim").map_err(|error| {
        format!("a C compiler is needed (Debian, Ubuntu: apt-get install gcc libc6-dev): {error}")
    })
}

/// Reads the release from the headers.
#[derive(Debug, Default)]
struct HeaderRelease(Rc<Cell<Release>>);

impl bindgen::callbacks::ParseCallbacks for HeaderRelease {
    fn int_macro(&self, name: &str, value: i64) -> Option<bindgen::callbacks::IntKind> {
        let (year, month) = self.0.get();
        let value = u32::try_from(value).unwrap_or(0);
        match name {
            "RTE_VER_YEAR" => self.0.set((value, month)),
            "RTE_VER_MONTH" => self.0.set((year, value)),
            _ => {}
        }
        None
    }
}

/// Generates the bindings. Returns the release of the headers.
fn generate(flags: &[String]) -> Result<Release, String> {
    let release = Rc::default();
    let builder = bindgen::Builder::default()
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .parse_callbacks(Box::new(HeaderRelease(Rc::clone(&release))))
        .header("wrapper.h")
        .clang_args(flags)
        .use_core()
        .generate_cstr(true)
        .allowlist_function("fw_.*")
        .allowlist_function(
            "rte_eal_(init|get_runtime_dir|has_hugepages|hotplug_add|hotplug_remove)",
        )
        .allowlist_function("rte_(dev_remove|dev_name|dev_devargs|devargs_parse|devargs_reset)")
        .allowlist_function("rte_vdev_init")
        .allowlist_function("rte_dev_event_callback_(register|unregister)")
        .allowlist_function(
            "rte_thread_(register|unregister)|rte_lcore_count|rte_version(_year|_month)?",
        )
        .allowlist_function("rte_log_(register|[gs]et_level|[gs]et_global_level)")
        .allowlist_function("rte_eal_alarm_set|rte_thread_is_intr")
        .allowlist_function("rte_intr_(instance_(alloc|free)|fd_(get|set))")
        .allowlist_function("rte_intr_callback_(register|unregister|unregister_pending)")
        .allowlist_function("rte_pktmbuf_pool_create")
        .allowlist_function("rte_mempool_(avail_count|lookup)")
        .allowlist_function("rte_ring_(create|free)")
        .allowlist_function("rte_eth_from_rings")
        .allowlist_function("rte_eth_dev_(get_port_by_name|info_get|configure)")
        .allowlist_function("rte_eth_dev_(start|stop|close|adjust_nb_rx_tx_desc)")
        .allowlist_function("rte_eth_dev_(socket_id|rss_hash_conf_get|rss_reta_query)")
        .allowlist_function("rte_eth_dev_rx_intr_(enable|disable|ctl_q_get_fd)")
        .allowlist_function("rte_eth_(rx_queue_setup|tx_queue_setup|macaddr_get)")
        .allowlist_function("rte_eth_(promiscuous_enable|find_next|stats_get)")
        .allowlist_function("rte_eth_dev_(is_valid_port|conf_get|get_mtu)")
        .allowlist_function("rte_eth_dev_callback_(register|unregister)")
        .allowlist_type(
            "fw_mbuf_offset|rte_(mempool|ring|eth_conf|eth_dev_info|devargs|ether_addr)",
        )
        .allowlist_var("FW_.*|RTE_VER_(YEAR|MONTH)|RTE_EAL_PMD_PATH")
        .allowlist_var("RTE_LOG_DEBUG|RTE_ETH_EVENT_(INTR_LSC|QUEUE_STATE)")
        .allowlist_var("RTE_MBUF_F_((RX|TX)_.*|INDIRECT|EXTERNAL)")
        .allowlist_var("RTE_PKTMBUF_HEADROOM|RTE_MAX_ETHPORTS|RTE_MAX_LCORE|LCORE_ID_ANY")
        .allowlist_var("RTE_MEMPOOL_CACHE_MAX_SIZE|RING_F_.*|SOCKET_ID_ANY")
        // Packed and aligned at once, which Rust cannot express (rust-bindgen issue 2179).
        .opaque_type("rte_l2tpv2_.*")
        .opaque_type("rte_gtp_psc_.*")
        .opaque_type("rte_arp_.*")
        // Its fields lie in unions without a stable name: see src/mbuf_field.rs.
        .opaque_type("rte_mbuf")
        // Internal types whose size is not needed here.
        .opaque_type("rte_mempool_.*|rte_mempool|rte_ring|rte_ring_.*|rte_memzone")
        .blocklist_type("max_align_t|FILE|rte_(mbuf|mempool|ring)__bindgen_.*")
        .derive_default(true)
        .derive_debug(false)
        .layout_tests(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .formatter(bindgen::Formatter::None);
    // Without libclang it panics, with what it looked for.
    panic::set_hook(Box::new(|_| {}));
    let bindings = panic::catch_unwind(AssertUnwindSafe(|| builder.generate()));
    let _ = panic::take_hook();
    let bindings = bindings.map_err(|_| {
        "libclang is absent (Debian, Ubuntu: apt-get install libclang-dev; elsewhere: set \
         LIBCLANG_PATH to its folder)"
    })?;
    let bindings = bindings.map_err(|error| {
        let error = error.to_string();
        format!(
            "the headers of DPDK cannot be read (Debian, Ubuntu: apt-get install libdpdk-dev \
             libclang-dev libc6-dev): {}",
            error.lines().next().unwrap_or_default()
        )
    })?;
    bindings.write_to_file(bindings_file()).expect("OUT_DIR is writable");
    Ok(release.get())
}

/// The file that `src/sys.rs` includes.
fn bindings_file() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bindings.rs")
}

/// Passes the libraries to the linker, if they are there.
fn link() -> Result<(), String> {
    let folder = PathBuf::from(pkg_config(&["--variable=libdir"])?.concat());
    println!("cargo::rustc-link-search=native={}", folder.display());
    let is_static = env::var_os("CARGO_FEATURE_STATIC").is_some();
    let file =
        |library: &str| folder.join(format!("lib{library}.{}", if is_static { "a" } else { "so" }));
    let exists = |library: &&str| file(library).exists();
    let split_off = SPLIT_OFF.into_iter().filter(exists);
    if !is_static {
        for library in SHARED.into_iter().chain(split_off) {
            require(&file(library))?;
            println!("cargo::rustc-link-lib=dylib={library}");
        }
        return Ok(());
    }
    for library in STATIC_WHOLE {
        require(&file(library))?;
    }
    for library in STATIC_CARDS.into_iter().filter(exists).chain(STATIC_WHOLE) {
        println!("cargo::rustc-link-lib=static:+whole-archive,-bundle={library}");
    }
    for library in STATIC_PLAIN {
        require(&file(library))?;
    }
    let plain = STATIC_OF_DRIVERS.into_iter().filter(exists).chain(STATIC_PLAIN);
    for library in plain.chain(split_off) {
        println!("cargo::rustc-link-lib=static:-bundle={library}");
    }
    for library in STATIC_SYSTEM {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    Ok(())
}

fn require(library: &Path) -> Result<(), String> {
    if library.exists() {
        return Ok(());
    }
    Err(format!(
        "{} is absent: this DPDK was built without it (install the whole libdpdk-dev, or build \
         DPDK with all its libraries, for the feature `static` with -Ddefault_library=both)",
        library.display()
    ))
}
