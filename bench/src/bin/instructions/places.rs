//! Source lines of instruction addresses, by the program `addr2line` of binutils.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::callgrind::{HARNESS, layer_of};

/// Source line of the stack that an address belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) layer: String,
    /// Path from the folder of the crate's sources, and number of the line.
    pub(crate) line: String,
}

/// Returns the places of addresses in the image of `program`. Code without a line of the stack,
/// such as the C library's, has none.
pub(crate) fn resolve(program: &Path, addresses: &BTreeSet<u64>) -> Result<BTreeMap<u64, Place>> {
    let mut child = Command::new("addr2line")
        .args(["--addresses", "--inlines", "--exe"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start addr2line: apt-get install binutils")?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    let list: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    // Written beside reading: either pipe may fill.
    let writer = std::thread::spawn(move || stdin.write_all(list.as_bytes()));
    let out = child.wait_with_output()?;
    ensure!(out.status.success(), "addr2line failed: {}", out.status);
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    Ok(parse(&String::from_utf8_lossy(&out.stdout)))
}

/// Parses an address per line, each followed by its source lines from the innermost inlined
/// function outwards.
fn parse(output: &str) -> BTreeMap<u64, Place> {
    let mut places = BTreeMap::new();
    let mut address = None;
    for line in output.lines() {
        if let Some(hex) = line.strip_prefix("0x") {
            address = u64::from_str_radix(hex, 16).ok();
        } else if let Some(address) = address
            && let Some(layer) = layer_of(line).filter(|&layer| layer != HARNESS)
        {
            let end = line.split(" (discriminator").next().unwrap_or(line);
            let line = end.rsplit_once("/src/").map_or(end, |(_, file)| file).to_owned();
            let layer = layer.to_owned();
            places.entry(address).or_insert(Place { layer, line });
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_line_of_the_stack_is_the_place() {
        let places = parse(
            "0x0000000000000010\n/rustc/1/library/core/src/cmp.rs:5\n\
             /x/stack/proto/src/tcp/rx/input.rs:77 (discriminator 3)\n\
             /x/stack/proto/src/engine/rx.rs:9\n\
             0x0000000000000020\n??:0\n0x0000000000000030\n/x/bench/src/loopback.rs:1\n",
        );
        let place = Place { layer: "tcp".to_owned(), line: "tcp/rx/input.rs:77".to_owned() };
        assert_eq!(places, BTreeMap::from([(0x10, place)]));
    }
}
