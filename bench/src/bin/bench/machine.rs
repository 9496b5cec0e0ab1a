//! The machine that a report is from.

use std::fs::read_to_string;
use std::process::Command;

/// Returns hardware and software, name and value.
pub(crate) fn properties() -> Vec<(String, String)> {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split(' ').any(|found| found == flag);
    let release = read_to_string("/etc/os-release").unwrap_or_default();
    let system = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let file = |path: &str| read_to_string(path).unwrap_or_default().trim().to_owned();
    let load = file("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ");
    let hugepages = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let properties = [
        ("Processor", processor.unwrap_or_default()),
        ("AVX-512, VPCLMULQDQ", format!("{}, {}", has("avx512f"), has("vpclmulqdq"))),
        ("Virtual machine", has("hypervisor").to_string()),
        ("Cores", std::thread::available_parallelism().map_or(0, Into::into).to_string()),
        ("System", system.unwrap_or_default().trim_matches('"').to_owned()),
        ("Kernel", file("/proc/sys/kernel/osrelease")),
        ("Hugepages of 2 MiB", file(hugepages)),
        (LOAD, load),
        ("Scheduling", scheduling().to_owned()),
        ("DPDK", ferrowarp::device::dpdk_version().to_owned()),
        ("Rust", output("rustc", &["--version"])),
        ("Stack", format!("ferrowarp {}", env!("CARGO_PKG_VERSION"))),
    ];
    properties.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Name of the property that says how busy the machine was.
pub(crate) const LOAD: &str = "Load average at the start";

/// Returns a name for files, made of the processor and what decides its figures: `amd-epyc-avx512`.
pub(crate) fn slug(properties: &[(String, String)]) -> String {
    const NOISE: [&str; 5] = ["r", "tm", "cpu", "processor", "core"];
    let value = |name: &str| {
        let found = properties.iter().find(|(found, _)| found == name);
        found.map_or_else(String::new, |(_, value)| value.to_lowercase())
    };
    let processor = value("Processor");
    let words = processor.split(|c: char| !c.is_ascii_alphanumeric());
    let mut words: Vec<&str> =
        words.filter(|word| !word.is_empty() && !NOISE.contains(word)).collect();
    if value("AVX-512, VPCLMULQDQ").starts_with("true") {
        words.push("avx512");
    }
    words.join("-")
}

/// Returns the date of today, UTC.
pub(crate) fn today() -> String {
    output("date", &["-u", "+%F"])
}

/// Returns the scheduling policy of this program, which its children inherit (`man 5 proc`, field
/// 41 of `stat`): on a busy machine, `chrt -f 10` gives the runs priority.
fn scheduling() -> &'static str {
    let stat = read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is a name in parentheses, which may contain any character.
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    match rest.split(' ').nth(38) {
        Some("0") => "ordinary",
        Some("1") => "real time, first in first out",
        Some("2") => "real time, round robin",
        _ => "unknown",
    }
}

fn output(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output();
    out.map_or_else(
        |_| "absent".to_owned(),
        |out| String::from_utf8_lossy(&out.stdout).trim().to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_is_named_by_its_processor() {
        assert_ne!(scheduling(), "unknown");
        let named = |processor: &str, avx512: &str| {
            let properties = [("Processor", processor), ("AVX-512, VPCLMULQDQ", avx512)];
            slug(&properties.map(|(name, value)| (name.to_owned(), value.to_owned())))
        };
        assert_eq!(named("Intel(R) Xeon(R) Processor", "true, true"), "intel-xeon-avx512");
        assert_eq!(named("AMD EPYC", "false, false"), "amd-epyc");
    }
}
