//! Counts the cache lines of state that a poll touches, from a memory trace of valgrind's tool
//! lackey with the marks of [`ferrowarp_bench::memory_marks`].
//!
//! State is every byte but those that the program announces: frames, payload, harness, the stack
//! and read-only mappings. A line counts once per train, however often it is read or written.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::BufRead;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};

use ferrowarp_bench::memory_marks::Mark;

const LINE_BYTES: u64 = 64;

/// Lines touched by the trains of one end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EndLines {
    pub(crate) trains: u64,
    /// By number of the line: its address divided by 64.
    pub(crate) lines: BTreeMap<u64, LineUse>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LineUse {
    pub(crate) trains: u64,
    pub(crate) written: u64,
    /// Addresses of the instructions that accessed it, relative to the program's image.
    pub(crate) code: BTreeSet<u64>,
}

impl EndLines {
    /// Returns the mean number of lines that a train touches.
    pub(crate) fn touched(&self) -> f64 {
        let sum: u64 = self.lines.values().map(|line| line.trains).sum();
        sum as f64 / self.trains.max(1) as f64
    }

    /// Returns how often trains touched lines that few of them touch, no more than one in so many:
    /// where queue pairs take turns, the lines of a single one.
    pub(crate) fn touched_by_few(&self, one_in: u64) -> u64 {
        let few = |line: &&LineUse| line.trains * one_in <= self.trains;
        self.lines.values().filter(few).map(|line| line.trains).sum()
    }
}

/// Reads a trace to its end; returns the lines of the source and of the sink.
pub(crate) fn read(mut trace: impl BufRead) -> Result<[EndLines; 2]> {
    let mut reader = Reader::default();
    let mut line = Vec::new();
    while trace.read_until(b'\n', &mut line)? > 0 {
        reader.line(&line).with_context(|| String::from_utf8_lossy(&line).into_owned())?;
        line.clear();
    }
    if reader.ends.iter().any(|end| end.trains == 0) {
        bail!("the trace has no trains: {}", reader.messages.join(" "));
    }
    Ok(reader.ends)
}

/// An access to a line within the current poll.
#[derive(Default)]
struct Access {
    written: bool,
    code: BTreeSet<u64>,
}

#[derive(Default)]
struct Reader {
    marks: Vec<u64>,
    ignored: Vec<Range<u64>>,
    image: u64,
    /// Address of the last instruction.
    code: u64,
    /// End whose poll this is, by index.
    poll: Option<usize>,
    accesses: HashMap<u64, Access>,
    ends: [EndLines; 2],
    /// Last lines that are no trace, such as an error of the program.
    messages: Vec<String>,
}

impl Reader {
    fn line(&mut self, line: &[u8]) -> Result<()> {
        // Lines as ` S 1fff0006e8,8`, `I  0401ab70,3`.
        let (kind, rest) = match line {
            [b'I', b' ', b' ', rest @ ..] => (b'I', rest),
            [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => (*kind, rest),
            _ => return self.message(line),
        };
        if kind == b'I' {
            if self.poll.is_some() {
                self.code = parse_access(rest)?.0;
            }
            return Ok(());
        }
        if self.poll.is_none() && kind != b'S' {
            return Ok(());
        }
        let (address, len) = parse_access(rest)?;
        if let Some(mark) = self.marks.iter().position(|&mark| mark == address) {
            return self.on_mark(Mark::ALL[mark]);
        }
        if self.poll.is_some() && !self.is_ignored(address) {
            for number in address / LINE_BYTES..=(address + len.max(1) - 1) / LINE_BYTES {
                let access = self.accesses.entry(number).or_default();
                access.written |= kind != b'L';
                access.code.insert(self.code.wrapping_sub(self.image));
            }
        }
        Ok(())
    }

    fn on_mark(&mut self, mark: Mark) -> Result<()> {
        match mark {
            Mark::Source | Mark::Sink => {
                ensure!(self.poll.is_none(), "a poll begins within another");
                self.poll = Some(usize::from(mark == Mark::Sink));
            }
            Mark::Train => {
                let end = self.poll.take().context("a poll ends without a beginning")?;
                let end = &mut self.ends[end];
                end.trains += 1;
                for (number, access) in self.accesses.drain() {
                    let line = end.lines.entry(number).or_default();
                    line.trains += 1;
                    line.written += u64::from(access.written);
                    line.code.extend(access.code);
                }
            }
            Mark::Idle => {
                self.poll = None;
                self.accesses.clear();
            }
        }
        Ok(())
    }

    fn is_ignored(&self, address: u64) -> bool {
        let index = self.ignored.partition_point(|range| range.end <= address);
        self.ignored.get(index).is_some_and(|range| range.contains(&address))
    }

    /// A line that is no trace: an announcement, or a message of the program or of valgrind.
    fn message(&mut self, line: &[u8]) -> Result<()> {
        const MESSAGE_COUNT_MAX: usize = 5;
        let line = String::from_utf8_lossy(line);
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let hex = |text: &str| u64::from_str_radix(text, 16).context("an address");
        match *words {
            ["mark", address] => self.marks.push(hex(address)?),
            ["ignore", start, end] => {
                self.ignored.push(hex(start)?..hex(end)?);
                self.ignored.sort_by_key(|range| range.start);
            }
            ["image", address] => self.image = hex(address)?,
            [] => {}
            [first, ..] if first.starts_with("==") => {}
            _ => {
                self.messages.push(line.trim().to_owned());
                let spare = self.messages.len().saturating_sub(MESSAGE_COUNT_MAX);
                self.messages.drain(..spare);
            }
        }
        Ok(())
    }
}

/// Parses `1fff0006e8,8`: address and length in bytes.
fn parse_access(text: &[u8]) -> Result<(u64, u64)> {
    let mut numbers = text.trim_ascii().splitn(2, |&byte| byte == b',');
    let mut number = |radix: u32| {
        let digits = numbers.next().context("address,length expected")?;
        digits.iter().try_fold(0_u64, |sum, &digit| {
            let digit = char::from(digit).to_digit(radix).context("a number expected")?;
            sum.checked_mul(radix.into())
                .and_then(|sum| sum.checked_add(digit.into()))
                .context("too long")
        })
    };
    Ok((number(16)?, number(10)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks at 0x1000, 0x1040, 0x1080 and 0x10c0.
    const ANNOUNCED: &str = "mark 1000\nmark 1040\nmark 1080\nmark 10c0\n\
                             ignore 5000 6000\nignore 1000 1100\nimage 100000\n";

    fn parse(trace: &str) -> Result<[EndLines; 2]> {
        read(format!("==7== Lackey\n S 2000,8\n{ANNOUNCED} L 2000,8\n{trace}").as_bytes())
    }

    #[test]
    fn lines_are_counted_once_per_train_and_end() {
        let [source, sink] = parse(
            "I  100010,3\n S 1000,8\nI  100020,3\n L 2000,8\n S 2008,8\nI  100030,4\n M 2040,4\n \
             S 1080,8\n S 9000,8\n \
             S 1040,8\n L 3000,8\n S 1080,8\n \
             S 1000,8\nI  100040,2\n L 2040,8\n S 1080,8\n",
        )
        .unwrap();
        assert_eq!((source.trains, source.touched()), (2, 1.5));
        assert_eq!(source.lines[&(0x2000 / 64)].code, BTreeSet::from([0x20]));
        assert_eq!(source.lines[&(0x2040 / 64)].code, BTreeSet::from([0x30, 0x40]));
        assert_eq!((sink.trains, sink.touched()), (1, 1.0));
    }

    #[test]
    fn lines_of_few_trains_are_told_apart() {
        let train = |line: u64| format!(" S 1000,8\n L 2000,8\n L {:x},8\n S 1080,8\n", line * 64);
        let trace: String = (0x100..0x104).chain([0x100]).map(train).collect();
        let [source, _] = parse(&format!("{trace} S 1040,8\n S 1080,8\n")).unwrap();
        assert_eq!(source.trains, 5);
        // One line is touched by all, one by two, three by one each.
        assert_eq!([1, 2, 5, 6].map(|one_in| source.touched_by_few(one_in)), [10, 5, 3, 0]);
    }

    #[test]
    fn ignored_addresses_and_idle_polls_do_not_count() {
        let train = " S 1000,8\n L 5ff8,8\n L 5fc0,4\n L 6000,8\n S 1080,8\n";
        let idle = " S 1000,8\n L 7000,8\n S 10c0,8\n";
        let [source, _] = parse(&format!("{idle}{train} S 1040,8\n S 1080,8\n")).unwrap();
        assert_eq!(source.lines.keys().copied().collect::<Vec<_>>(), [0x6000 / 64]);
    }

    #[test]
    fn failure_of_the_program_is_reported() {
        let error = parse("Error: no frames\n").unwrap_err();
        assert!(error.to_string().contains("Error: no frames"), "{error}");
        assert!(parse(" S 10zz,8\n").is_err());
    }
}
