//! Parses callgrind's output, and sums instructions by layer of the stack and by end.
//!
//! The optimizer inlines the layers into few functions, so the sums are by source line, not by
//! function: a line of the protocol crate counts for the layer of its folder. A line of an inlined
//! library function counts for the layer of the preceding instruction, which is approximate at the
//! boundaries. Copies, fills and comparisons of the C library count for their caller, also where a
//! stub of the dynamic linker, which has no name, calls them; and so do the routines that access
//! registered memory.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Context, Result, ensure};

/// Layer of payload copies: the accesses to the harness's registered memory.
pub(crate) const COPY: &str = "copy";
/// Layer of the CRC.
pub(crate) const CRC: &str = "crc";
/// Layer of the Internet checksum: the sum over the bytes, without its pseudo-header and folding.
pub(crate) const CHECKSUM: &str = "checksum";
/// Layer of the heap ports and the workload, which replace device and application.
pub(crate) const HARNESS: &str = "harness";

/// Structures of the protocol crate through which the harness posts and sends too: their lines
/// count for the layer of the preceding instruction, as those of a library do.
const SHARED: [&str; 3] = ["bounded_vec", "device", "work_queue"];

/// Layers by a part of the path of their files; the first match wins. Any other file of the stack
/// counts for the folder, or the file, that follows `src/` in its path.
const LAYERS: [(&str, &str); 9] = [
    ("stack/crc32c/", CRC),
    ("/crc32c-", CRC),
    ("/smoltcp-", CHECKSUM),
    ("/siphasher", "hash"),
    ("/hashbrown", "hash"),
    ("/siphash_keys.rs", "hash"),
    ("/opaque", COPY),
    ("bindings/src/", "dpdk"),
    ("bench/src/", HARNESS),
];

/// Options of callgrind for a file that [`Profile::parse`] reads.
pub(crate) const OPTIONS: [&str; 3] = ["--tool=callgrind", "--dump-instr=yes", "--compress-pos=no"];

/// Functions of the two ends, which call all that is counted, and the names of their sums.
const ENDS: [(&str, &str); 2] =
    [("::poll_source", "source with its application"), ("::poll_sink", "sink")];

/// Prefixes of functions that count for their caller: those of the C library, and the routines
/// that access registered memory.
const MEMORY_FUNCTIONS: [&str; 7] =
    ["mem", "__mem", "bcmp", "__bcmp", "_mem", "ferrowarp_copy_", "ferrowarp_place"];

/// Instruction counts of a run, or their means per message.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Profile {
    pub(crate) total: f64,
    /// By layer, `other` for instructions without one; and by end, with all that it calls.
    pub(crate) sums: BTreeMap<String, f64>,
}

impl Profile {
    /// Parses a callgrind file made with [`OPTIONS`].
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut reader = Reader::default();
        for (number, line) in text.lines().enumerate() {
            reader.line(line).with_context(|| format!("line {}: {line}", number + 1))?;
        }
        ensure!(reader.profile.total > 0.0, "no costs: is this a callgrind file of instructions?");
        Ok(reader.profile())
    }

    /// Returns the mean cost of a message: the difference of `self` and `fewer`, over `count`.
    pub(crate) fn per_message(&self, fewer: &Self, count: u64) -> Self {
        let mean = |more: f64, less: f64| (more - less) / count as f64;
        let mean_sum = |(name, sum): (&String, &f64)| (name.clone(), mean(*sum, fewer.sum(name)));
        Self {
            total: mean(self.total, fewer.total),
            sums: self.sums.iter().map(mean_sum).collect(),
        }
    }

    /// Returns the cost of a layer or an end; 0 if it has none.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.sums.get(name).copied().unwrap_or(0.0)
    }

    fn add(&mut self, name: &str, cost: f64) {
        *self.sums.entry(name.to_owned()).or_default() += cost;
    }

    /// Returns the cost of the stack itself: without copies, CRC, checksum and harness.
    pub(crate) fn stack(&self) -> f64 {
        [COPY, CRC, CHECKSUM, HARNESS].iter().fold(self.total, |rest, name| rest - self.sum(name))
    }
}

/// Cost of an instruction, or of the calls at it.
struct InstructionCost<'a> {
    address: u64,
    /// Layer of its source line, if it has one.
    layer: Option<&'a str>,
    cost: f64,
    callee: Option<&'a str>,
}

#[derive(Default)]
struct Reader<'a> {
    profile: Profile,
    /// By kind and number.
    names: HashMap<(char, &'a str), &'a str>,
    /// By function, in the order of the file.
    instructions: BTreeMap<&'a str, Vec<InstructionCost<'a>>>,
    /// Functions without a name that call a copy function.
    stubs: HashSet<&'a str>,
    /// Function and file of the following cost lines.
    function: &'a str,
    file: &'a str,
    /// Function called at the next cost line, whose cost is then inclusive.
    callee: Option<&'a str>,
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: &'a str) -> Result<()> {
        if line.starts_with("0x") {
            return self.cost(line);
        }
        let Some((key, value)) = line.split_once('=') else { return Ok(()) };
        match key {
            "fn" => self.function = self.name('n', value)?,
            "fl" | "fi" | "fe" => self.file = self.name('l', value)?,
            "cfn" => self.callee = Some(self.name('n', value)?),
            // The file of the callee: read only to define its number.
            "cfi" | "cfl" => drop(self.name('l', value)?),
            _ => {}
        }
        Ok(())
    }

    /// Resolves a name, which is defined once as `(number) name`, then referenced by number.
    fn name(&mut self, kind: char, value: &'a str) -> Result<&'a str> {
        let (number, name) = value.split_once(')').context("no number of a name")?;
        if !name.is_empty() {
            self.names.insert((kind, number), name.trim_start());
        }
        self.names.get(&(kind, number)).copied().context("an undefined name")
    }

    /// Reads a line of address, source line and cost.
    fn cost(&mut self, line: &str) -> Result<()> {
        let mut fields = line.split_whitespace();
        let address = fields.next().and_then(|field| field.strip_prefix("0x"));
        let address = u64::from_str_radix(address.context("no address")?, 16)?;
        let cost: f64 = fields.nth(1).context("no cost")?.parse()?;
        let callee = self.callee.take();
        if let Some(callee) = callee {
            if let Some((_, end)) = ENDS.iter().find(|(name, _)| callee.contains(name)) {
                self.profile.add(end, cost);
            }
            if self.function.starts_with("0x") && is_memory_function(callee) {
                self.stubs.insert(self.function);
            }
        } else {
            self.profile.total += cost;
        }
        let instruction = InstructionCost { address, layer: layer_of(self.file), cost, callee };
        self.instructions.entry(self.function).or_default().push(instruction);
        Ok(())
    }

    /// True if a function counts for its callers.
    fn counts_for_callers(&self, function: &str) -> bool {
        is_memory_function(function) || self.stubs.contains(function)
    }

    /// Sums by layer. A line without one counts for that of the instruction at the next lower
    /// address: callgrind does not write the lines of a function in the same order in every run.
    fn profile(mut self) -> Profile {
        for (function, mut instructions) in std::mem::take(&mut self.instructions) {
            if self.counts_for_callers(function) {
                continue;
            }
            instructions.retain(|instruction| {
                instruction.callee.is_none_or(|f| self.counts_for_callers(f))
            });
            instructions.sort_by_key(|instruction| instruction.address);
            // All of the harness's memory accesses count as copies, bounds checks included.
            // Functions that are generic over it may have it in their names too.
            let only = function.contains("::ProfiledMemory as ").then_some(COPY);
            let mut preceding = function.contains("crc32c").then_some(CRC);
            for InstructionCost { layer, cost, .. } in instructions {
                preceding = layer.or(preceding);
                let layer = only.or(preceding).unwrap_or("other");
                self.profile.add(layer, cost);
            }
        }
        self.profile
    }
}

/// Returns the layer of a source file, if it is one of the stack, of the harness, or of a library
/// with a layer of its own.
pub(crate) fn layer_of(file: &str) -> Option<&str> {
    if let Some((_, name)) = LAYERS.iter().find(|(part, _)| file.contains(part)) {
        return Some(name);
    }
    let (_, in_stack) = file.split_once("/stack/")?;
    let (_, path) = in_stack.split_once("/src/")?;
    path.split(['/', '.']).next().filter(|name| !SHARED.contains(name))
}

fn is_memory_function(function: &str) -> bool {
    MEMORY_FUNCTIONS.iter().any(|prefix| function.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "events: Ir

fl=(1) /x/stack/proto/src/engine/mod.rs
fn=(1) <engine::Engine<ferrowarp_bench::engine_pair::ProfiledMemory>>::drive
0x110 10 5
fi=(3) /rustc/library/core/src/cmp.rs
0x130 11 2
fi=(2) /x/stack/proto/src/tcp/rx/input.rs
0x120 13 7
fe=(1)
0x140 11 1
cfi=(4) /x/memmove.S
cfn=(2) __memcpy_avx
calls=3 0x500 0
0x150 11 10
cfi=(8) ???
cfn=(7) 0x0000000000000900
calls=2 0x900 0
0x154 11 21
cfi=(5) /x/stack/crc32c/src/sse42.rs
cfn=(3) ferrowarp_crc32c::sse42::crc32c
calls=1 0x300 20
0x160 12 100

fl=(5)
fn=(3)
0x300 20 40
fl=(3)
0x310 30 60

fl=(4)
fn=(2)
0x500 5 30

fl=(8)
fn=(7)
0x900 0 1
cfi=(4)
cfn=(2)
calls=2 0x500 0
0x900 0 20

fl=(7) /x/stack/proto/src/ddp/vec_memory.rs
fn=(6) <ferrowarp_bench::engine_pair::ProfiledMemory as Memory>::place
0x600 70 3

fl=(6) /x/bench/src/engine_pair.rs
fn=(4) ferrowarp_bench::engine_pair::EnginePair::poll_source
0x700 40 9
cfi=(1)
cfn=(1)
calls=1 0x110 10
0x710 41 146

fl=(6)
fn=(5) main
0x800 50 1
cfn=(4)
calls=1 0x700 40
0x810 51 155
";

    #[test]
    fn costs_are_attributed_by_address_and_libc_copies_to_caller() {
        let profile = Profile::parse(TEXT).unwrap();
        let sums = [(COPY, 3.0), (CRC, 100.0), ("engine", 37.0), (HARNESS, 10.0), ("tcp", 9.0)];
        let expected = sums.into_iter().chain([("source with its application", 155.0)]);
        let expected: BTreeMap<_, _> = expected.map(|(name, sum)| (name.to_owned(), sum)).collect();
        assert_eq!((profile.total, profile.sums), (159.0, expected));
    }

    #[test]
    fn per_message_cost_is_difference_of_two_runs() {
        let fewer = Profile::parse(TEXT).unwrap();
        let mut more = fewer.clone();
        more.total += 50.0;
        more.add(CRC, 30.0);
        let cost = more.per_message(&fewer, 10);
        assert_eq!((cost.total, cost.sum(CRC), cost.stack()), (5.0, 3.0, 2.0));
        assert!(Profile::parse("hello\n").is_err(), "no callgrind output");
    }
}
