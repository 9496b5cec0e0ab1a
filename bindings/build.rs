//! Generates the bindings, compiles the shim and passes DPDK's libraries to the linker.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Libraries that the shared build links to; every other PMD is a plug-in that EAL loads.
const SHARED: [&str; 6] =
    ["rte_ethdev", "rte_net_ring", "rte_mbuf", "rte_mempool", "rte_ring", "rte_eal"];

/// Libraries that the static build links whole: constructors register buses, mempool handlers and
/// PMDs, and no symbol refers to them.
const STATIC_WHOLE: [&str; 19] = [
    "rte_bus_vdev",
    "rte_bus_pci",
    "rte_mempool_ring",
    "rte_net_ring",
    "rte_net_memif",
    "rte_net_tap",
    "rte_net_af_packet",
    "rte_net_null",
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

/// Archives that the ones above need, linked on demand.
const STATIC_PLAIN: [&str; 2] = ["rte_telemetry", "rte_kvargs"];

/// System libraries of the static build.
const STATIC_SYSTEM: [&str; 4] = ["numa", "bsd", "m", "dl"];

fn main() {
    println!("cargo:rerun-if-changed=wrapper.h");
    println!("cargo:rerun-if-changed=shim.c");
    let probe = pkg_config::Config::new()
        .cargo_metadata(false)
        .range_version("22.11".."23")
        .probe("libdpdk");
    if let Err(error) = probe {
        panic!("libdpdk 22.11 is needed (Debian: apt install libdpdk-dev pkg-config): {error}");
    }
    let flags = pkg_config(&["--cflags"]);
    compile_shim(&flags);
    generate(&flags);
    link();
}

/// Runs pkg-config itself: the crate drops `-include rte_config.h` and `-march`.
fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
    let output = Command::new(&program)
        .args(arguments)
        .arg("libdpdk")
        .output()
        .unwrap_or_else(|error| panic!("{program} does not run: {error}"));
    assert!(output.status.success(), "{program} {arguments:?} libdpdk failed");
    let text = String::from_utf8(output.stdout).expect("pkg-config prints ASCII flags");
    text.split_whitespace().map(str::to_owned).collect()
}

fn compile_shim(flags: &[String]) {
    let mut build = cc::Build::new();
    build.file("shim.c").opt_level(3).flag_if_supported("-Wno-address-of-packed-member");
    // DPDK's headers cause warnings: treat them as system headers.
    for flag in flags {
        match flag.strip_prefix("-I") {
            Some(path) => build.flag("-isystem").flag(path),
            None => build.flag(flag),
        };
    }
    build.compile("ferrowarp_dpdk_shim");
}

fn generate(flags: &[String]) {
    let bindings = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(flags)
        .use_core()
        .allowlist_function("fw_.*")
        .allowlist_function(
            "rte_eal_(init|get_runtime_dir|has_hugepages|hotplug_add|hotplug_remove)",
        )
        .allowlist_function("rte_(dev_remove|dev_name|dev_devargs|devargs_parse|devargs_reset)")
        .allowlist_function("rte_dev_event_callback_(register|unregister)")
        .allowlist_function("rte_thread_(register|unregister)|rte_lcore_count")
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
        .allowlist_function("rte_eth_(rx_queue_setup|tx_queue_setup|macaddr_get)")
        .allowlist_function("rte_eth_(promiscuous_enable|link_get_nowait)")
        .allowlist_function("rte_eth_(find_next|stats_get)")
        .allowlist_function("rte_eth_dev_(is_valid_port|conf_get|get_mtu)")
        .allowlist_function("rte_eth_dev_callback_(register|unregister)")
        .allowlist_type("rte_(mbuf|mempool|ring|eth_conf|eth_dev_info|devargs|ether_addr)")
        .allowlist_var("FW_.*|RTE_LOG_DEBUG|RTE_ETH_EVENT_(INTR_LSC|QUEUE_STATE)")
        .allowlist_var("RTE_MBUF_F_((RX|TX)_.*|INDIRECT|EXTERNAL)")
        .allowlist_var("RTE_PKTMBUF_HEADROOM|RTE_MAX_ETHPORTS|RTE_MAX_LCORE|LCORE_ID_ANY")
        .allowlist_var("RTE_MEMPOOL_CACHE_MAX_SIZE|RING_F_.*|SOCKET_ID_ANY")
        // Packed and aligned at once, which Rust cannot express (rust-bindgen issue 2179).
        .opaque_type("rte_l2tpv2_.*")
        .opaque_type("rte_gtp_psc_.*")
        .opaque_type("rte_arp_.*")
        // Internal types whose size is not needed here.
        .opaque_type("rte_mempool_.*|rte_mempool|rte_ring|rte_ring_.*|rte_memzone")
        .blocklist_type("max_align_t|FILE")
        .derive_default(true)
        .derive_debug(false)
        .layout_tests(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .formatter(bindgen::Formatter::None)
        .generate()
        .expect("bindgen reads DPDK's headers (is libclang installed?)");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    bindings.write_to_file(out.join("bindings.rs")).expect("OUT_DIR is writable");
}

fn link() {
    let folders = pkg_config(&["--variable=libdir"]);
    for folder in &folders {
        println!("cargo:rustc-link-search=native={folder}");
    }
    if env::var_os("CARGO_FEATURE_STATIC").is_none() {
        for library in SHARED {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
        return;
    }
    for library in STATIC_WHOLE {
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle={library}");
    }
    for library in STATIC_PLAIN {
        println!("cargo:rustc-link-lib=static:-bundle={library}");
    }
    for library in STATIC_SYSTEM {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}
