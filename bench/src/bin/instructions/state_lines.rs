//! Counts the cache lines of state that a poll touches, from a memory trace of valgrind's tool
//! lackey with the marks of [`ferrowarp_bench::memory_marks`].
//!
//! State is every byte but those that the program announces: frames, payload, harness, the stack
//! and read-only mappings. A line counts once per train, however often it is read or written.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::BufRead;

use anyhow::{Context, Result, ensure};

use ferrowarp_bench::memory_marks::Mark;

const LINE_BYTES: u64 = 64;

/// A line that at most one train in so many touches belongs to one queue pair of many.
const FEW_ONE_IN: u64 = 8;

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
    /// Addresses of the instructions that accessed it, relative to the program's image.
    pub(crate) code: BTreeSet<u64>,
}

impl EndLines {
    /// Returns the mean number of lines that a train touches; where queue pairs take so many turns,
    /// of lines of a single one in a turn, which few trains touch.
    pub(crate) fn touched(&self, turns: Option<u64>) -> f64 {
        let counts = |trains: &u64| turns.is_none() || trains * FEW_ONE_IN <= self.trains;
        let sum: u64 = self.lines.values().map(|line| line.trains).filter(counts).sum();
        sum as f64 / turns.unwrap_or(self.trains) as f64
    }
}

/// Reads a trace to its end; returns the lines of the source and of the sink.
pub(crate) fn read(mut trace: impl BufRead) -> Result<[EndLines; 2]> {
    let mut reader = Reader::default();
    let mut line = String::new();
    while trace.read_line(&mut line)? > 0 {
        reader.line(&line).with_context(|| line.clone())?;
        line.clear();
    }
    let has_trains = reader.ends.iter().all(|end| end.trains > 0);
    ensure!(has_trains, "the trace has no trains: {}", reader.messages.trim());
    Ok(reader.ends)
}

#[derive(Default)]
struct Reader {
    /// Addresses of the marks, in the order of [`Mark::ALL`].
    marks: Vec<u64>,
    /// Ends of the address ranges that are no state, by their starts.
    ignored: BTreeMap<u64, u64>,
    image: u64,
    /// Address of the last instruction.
    code: u64,
    /// End whose poll this is, by index.
    poll: Option<usize>,
    /// Instructions that accessed a line within the current poll.
    accesses: HashMap<u64, BTreeSet<u64>>,
    ends: [EndLines; 2],
    /// Lines that are no trace, such as an error of the program.
    messages: String,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<()> {
        // Lines as ` S 1fff0006e8,8`, `I  0401ab70,3`: hexadecimal address, length.
        let Some((kind @ ("I " | " L" | " S" | " M"), access)) = line.split_at_checked(2) else {
            return self.message(line);
        };
        if self.poll.is_none() && kind != " S" {
            return Ok(());
        }
        let (address, len) = access.trim().split_once(',').context("no length")?;
        let address = u64::from_str_radix(address, 16)?;
        if kind == "I " {
            self.code = address;
        } else if let Some(mark) = self.marks.iter().position(|&mark| mark == address) {
            return self.on_mark(Mark::ALL[mark]);
        } else if self.poll.is_some() && !self.is_ignored(address) {
            let last = address + len.parse::<u64>()?.max(1) - 1;
            for number in address / LINE_BYTES..=last / LINE_BYTES {
                self.accesses.entry(number).or_default().insert(self.code.wrapping_sub(self.image));
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
                for (number, code) in self.accesses.drain() {
                    let line = end.lines.entry(number).or_default();
                    line.trains += 1;
                    line.code.extend(code);
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
        self.ignored.range(..=address).next_back().is_some_and(|(_, &end)| address < end)
    }

    /// A line that is no trace: an announcement, or a message of the program or of valgrind.
    fn message(&mut self, line: &str) -> Result<()> {
        let number = |hex: &str| u64::from_str_radix(hex, 16).context("an address");
        let range = |text: &str| -> Result<_> {
            let (start, end) = text.split_once('-').context("a range")?;
            Ok((number(start)?, number(end)?))
        };
        match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            ["mark", at] => self.marks.push(number(at)?),
            ["ignore", at] => self.ignored.extend([range(at)?]),
            ["image", at] => self.image = range(at)?.0,
            [first, ..] if first.starts_with("==") => {}
            _ => self.messages += line,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks at 0x1000, 0x1040, 0x1080 and 0x10c0.
    const ANNOUNCED: &str = "mark 1000\nmark 1040\nmark 1080\nmark 10c0\n\
                             ignore 5000-6000\nignore 1000-1100\nimage 100000-110000\n";

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
        assert_eq!((source.trains, source.touched(None)), (2, 1.5));
        assert_eq!(source.lines[&(0x2000 / 64)].code, BTreeSet::from([0x20]));
        assert_eq!(source.lines[&(0x2040 / 64)].code, BTreeSet::from([0x30, 0x40]));
        assert_eq!((sink.trains, sink.touched(None)), (1, 1.0));
    }

    #[test]
    fn lines_of_few_trains_are_told_apart_and_idle_polls_ignored() {
        let train = |line: u64| format!(" S 1000,8\n L 5ff8,8\n L {:x},8\n S 1080,8\n", line * 64);
        let trace: String = (0x180..0x187).chain([0x180]).map(train).collect();
        let idle = " S 1000,8\n L 7000,8\n S 10c0,8\n";
        let [source, _] = parse(&format!("{idle}{trace} S 1040,8\n S 1080,8\n")).unwrap();
        // Two of eight trains touch one line, and one each six others.
        assert_eq!((source.trains, source.touched(None), source.touched(Some(4))), (8, 1.0, 1.5));
    }

    #[test]
    fn failure_of_the_program_is_reported() {
        let error = parse("Error: no frames\n").unwrap_err();
        assert!(error.to_string().contains("Error: no frames"), "{error}");
        assert!(parse(" S 10zz,8\n").is_err());
    }
}
