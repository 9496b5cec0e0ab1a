//! Parser of traces; `tests/traces/README.md` describes the syntax.

use super::packet;

/// A parsed trace.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// The clauses tested, as `document section`.
    pub clauses: Vec<String>,
    /// Summary of the trace in a sentence.
    pub summary: String,
    /// Settings: line number, name and value.
    pub settings: Vec<(usize, String, String)>,
    /// Lines with actions.
    pub lines: Vec<Line>,
}

/// A line with an action.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its number, from 1.
    pub number: usize,
    /// Its text.
    pub text: String,
    /// Time of the action.
    pub time: Time,
    /// The action.
    pub action: Action,
}

/// Time of a line, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// Relative to the line before; else to the start.
    pub relative: bool,
    /// Earliest time.
    pub from: u64,
    /// Latest time.
    pub to: u64,
}

/// Action of a line.
#[derive(Clone, Debug)]
pub enum Action {
    /// `<`: incoming segments.
    In {
        /// The segments.
        spec: SegmentSpec,
        /// In one burst with the segments of the line before (`<&`).
        same_burst: bool,
    },
    /// `>`: outgoing segments.
    Out(SegmentSpec),
    /// `none until`: nothing is sent before the line's time.
    Silence,
    /// `!`: a call of the application.
    Call(Vec<String>),
    /// `=`: an expected state or counter.
    Expect(Vec<String>),
}

/// A number in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Num {
    /// Any value.
    Any,
    /// This value; sequence numbers are relative to the initial one.
    Is(i64),
}

/// A segment as given in a line. For `>`, fields not given are not compared.
#[derive(Clone, Debug)]
pub struct SegmentSpec {
    /// Control bits.
    pub flags: u8,
    /// PSH must not be set.
    pub no_push: bool,
    /// Sequence number.
    pub seq: Num,
    /// Sequence number after the last payload byte. `None`: no payload, or for `>` with any `seq`,
    /// not compared.
    pub end: Option<i64>,
    /// Acknowledgment number.
    pub ack: Option<Num>,
    /// Window field.
    pub win: Option<i64>,
    /// ECN field of the IP header.
    pub ecn: Option<u8>,
    /// `mss`; `Some(None)`: absent.
    pub mss: Option<Option<u16>>,
    /// `ws`; `Some(None)`: absent.
    pub wscale: Option<Option<u8>>,
    /// `sackok`; `Some(false)`: absent.
    pub sack_permitted: Option<bool>,
    /// `ts`; `None`: generated (`<`) or not compared (`>`); `Some(None)`: absent.
    pub ts: Option<Option<(Num, Num)>>,
    /// `sack`: blocks; `None`: not compared.
    pub sack: Option<Vec<(i64, i64)>>,
    /// Option bytes, sent unchanged.
    pub raw_options: Vec<u8>,
    /// The checksum is incorrect.
    pub bad_checksum: bool,
    /// Number of such segments in a row; each has an equal part of the bytes.
    pub repeat: u32,
    /// Port of the peer, if not the default.
    pub peer_port: Option<u16>,
    /// Local port, if not the default.
    pub our_port: Option<u16>,
}

/// Parses a trace.
///
/// # Errors
/// `LINE: error`.
pub fn parse(text: &str) -> Result<Script, String> {
    let mut script = Script::default();
    for (index, full) in text.lines().enumerate() {
        let number = index + 1;
        let fail = |what: String| format!("{number}: {what}\n  {}", full.trim());
        if let Some(comment) = full.strip_prefix('#') {
            if let Some(clause) = comment.trim().strip_prefix("clause:") {
                script.clauses.push(clause.trim().to_owned());
            } else if script.lines.is_empty() {
                script.summary = format!("{} {}", script.summary, comment.trim()).trim().to_owned();
            }
            continue;
        }
        let line = full.split(" #").next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        if let Some(settings) = line.strip_prefix("config:") {
            for setting in settings.split(',') {
                let (name, value) =
                    setting.trim().split_once(' ').unwrap_or((setting.trim(), "on"));
                script.settings.push((number, name.to_owned(), value.trim().to_owned()));
            }
            continue;
        }
        let (time, action) = action(line).map_err(fail)?;
        script.lines.push(Line { number, text: line.to_owned(), time, action });
    }
    if script.clauses.is_empty() || script.summary.is_empty() {
        return Err("1: a trace begins with `# clause: ...` and a sentence".to_owned());
    }
    Ok(script)
}

fn action(line: &str) -> Result<(Time, Action), String> {
    let mut words = line.split_whitespace().peekable();
    let mut when = Time { relative: true, from: 0, to: 0 };
    if let Some(word) = words.next_if(|word| word.starts_with(['@', '+'])) {
        when = time(word)?;
    }
    let kind = words.next().ok_or("nothing happens")?;
    let rest: Vec<&str> = words.collect();
    let owned = || rest.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let action = match kind {
        "<" => Action::In { spec: parse_segment(&rest)?, same_burst: false },
        "<&" => Action::In { spec: parse_segment(&rest)?, same_burst: true },
        ">" => Action::Out(parse_segment(&rest)?),
        "!" if !rest.is_empty() => Action::Call(owned()),
        "=" if !rest.is_empty() => Action::Expect(owned()),
        "none" => {
            let ["until", until] = rest[..] else { return Err("`none until TIME`".to_owned()) };
            when = time(until)?;
            Action::Silence
        }
        other => return Err(format!("`{other}` is none of < <& > ! = none")),
    };
    if when.from != when.to && !matches!(action, Action::Out(_)) {
        return Err("only what goes out may have a range of time".to_owned());
    }
    Ok((when, action))
}

/// Parses one segment in trace syntax.
///
/// # Errors
/// If it is malformed.
pub fn segment(text: &str) -> Result<SegmentSpec, String> {
    parse_segment(&text.split_whitespace().collect::<Vec<_>>())
}

fn time(word: &str) -> Result<Time, String> {
    let (relative, body) = match word.split_at_checked(1) {
        Some(("+", body)) => (true, body),
        Some(("@", body)) => (false, body),
        _ => return Err(format!("`{word}` is no time: @ABSOLUTE or +DELTA")),
    };
    let (from, to) = body.split_once("..").unwrap_or((body, body));
    Ok(Time { relative, from: duration(from)?, to: duration(to)? })
}

/// Parses a duration into nanoseconds: `20us`, `1.5ms`, `3s`, `7ns`, `0`.
///
/// # Errors
/// If it is malformed.
pub fn duration(word: &str) -> Result<u64, String> {
    let bad = || format!("`{word}` is no duration: a number and ns, us, ms or s");
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000_u64)];
    if word == "0" {
        return Ok(0);
    }
    let unit = units.into_iter().find_map(|(name, ns)| Some((word.strip_suffix(name)?, ns)));
    let (number, unit) = unit.ok_or_else(bad)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let mut ns = whole.parse::<u64>().map_err(|_| bad())? * unit;
    let mut scale = unit;
    for digit in part.chars() {
        scale /= 10;
        ns += u64::from(digit.to_digit(10).ok_or_else(bad)?) * scale;
    }
    Ok(ns)
}

/// Parses a number: decimal or hexadecimal, or a sum of such numbers.
///
/// # Errors
/// If it is malformed.
pub fn number(word: &str) -> Result<i64, String> {
    let part = |part: &str| {
        let parsed = match part.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16),
            None => part.parse(),
        };
        parsed.map_err(|_| format!("`{word}` is no number"))
    };
    word.split('+').map(part).sum()
}

fn num(word: &str) -> Result<Num, String> {
    if word == "*" { Ok(Num::Any) } else { number(word).map(Num::Is) }
}

fn parse_int<T: TryFrom<i64>>(word: &str) -> Result<T, String> {
    T::try_from(number(word)?).map_err(|_| format!("`{word}` does not fit"))
}

fn is_number(word: &str) -> bool {
    num(word).is_ok()
}

fn parse_segment(words: &[&str]) -> Result<SegmentSpec, String> {
    let [letters, range, rest @ ..] = words else {
        return Err("a segment is `FLAGS SEQ[:END] [ack N] [win N] ...`".to_owned());
    };
    let (seq, end) = range.split_once(':').map_or((*range, None), |(seq, end)| (seq, Some(end)));
    let mut spec = SegmentSpec {
        flags: packet::flags(letters).ok_or_else(|| format!("`{letters}` are no flags"))?,
        no_push: false,
        seq: num(seq)?,
        end: end.map(number).transpose()?,
        ack: None,
        win: None,
        ecn: None,
        mss: None,
        wscale: None,
        sack_permitted: None,
        ts: None,
        sack: Some(Vec::new()),
        raw_options: Vec::new(),
        bad_checksum: false,
        repeat: 1,
        peer_port: None,
        our_port: None,
    };
    let mut words = rest.iter().copied().peekable();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("`{word}` of what?"));
        match word {
            "ack" => spec.ack = Some(num(value()?)?),
            "win" => spec.win = Some(number(value()?)?),
            "damaged" => spec.bad_checksum = true,
            "no-push" => spec.no_push = true,
            "mss" => spec.mss = Some(Some(parse_int(value()?)?)),
            "ws" => spec.wscale = Some(Some(parse_int(value()?)?)),
            "no-mss" => spec.mss = Some(None),
            "no-ws" => spec.wscale = Some(None),
            "sackok" => spec.sack_permitted = Some(true),
            "no-sackok" => spec.sack_permitted = Some(false),
            "no-ts" => spec.ts = Some(None),
            "ts" => {
                let mut next = || words.next_if(|word| is_number(word)).map_or(Ok(Num::Any), num);
                spec.ts = Some(Some((next()?, next()?)));
            }
            "sack" => {
                let mut blocks = Vec::new();
                while let Some(word) = words.next_if(|word| word.contains(':') || *word == "*") {
                    match word.split_once(':') {
                        None => spec.sack = None,
                        Some((from, to)) => blocks.push((number(from)?, number(to)?)),
                    }
                }
                spec.sack = spec.sack.map(|_| blocks);
            }
            "opt" => spec.raw_options = hex(value()?)?,
            "not-ect" => spec.ecn = Some(0),
            "ect1" => spec.ecn = Some(1),
            "ect0" => spec.ecn = Some(2),
            "ce" => spec.ecn = Some(3),
            "peer-port" => spec.peer_port = Some(parse_int(value()?)?),
            "port" => spec.our_port = Some(parse_int(value()?)?),
            word => match word.strip_prefix('x').map(str::parse) {
                Some(Ok(copies)) => spec.repeat = copies,
                _ => return Err(format!("`{word}` says nothing of a segment")),
            },
        }
    }
    if spec.flags & packet::ACK != 0 && spec.ack.is_none() {
        return Err("a segment with `.` needs `ack N`".to_owned());
    }
    if let (Num::Is(seq), Some(end)) = (spec.seq, spec.end)
        && (end - seq < 0 || (end - seq) % i64::from(spec.repeat.max(1)) != 0)
    {
        return Err("the bytes do not divide so".to_owned());
    }
    Ok(spec)
}

fn hex(word: &str) -> Result<Vec<u8>, String> {
    let digits: Option<Vec<u8>> =
        word.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    let digits = digits.filter(|digits| digits.len() % 8 == 0);
    let digits = digits.ok_or_else(|| format!("`{word}` is no hex of whole words"))?;
    Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::{Action, Num, duration, parse};

    fn one(line: &str) -> Result<Action, String> {
        let script = parse(&format!("# clause: X\n# Shows it.\n{line}"))?;
        Ok(script.lines[0].action.clone())
    }

    #[test]
    fn durations() {
        assert_eq!(duration("1.5ms"), Ok(1_500_000));
        assert_eq!(duration("200us"), Ok(200_000));
        assert_eq!(duration("0"), Ok(0));
        assert!(duration("5").is_err() && duration("ms").is_err());
    }

    #[test]
    fn segments() {
        let Ok(Action::Out(spec)) = one("+1ms > P. 1:2001 ack 5 win 0x10 sack 7:9 ts 3 x2") else {
            panic!()
        };
        assert_eq!((spec.seq, spec.end, spec.repeat), (Num::Is(1), Some(2001), 2));
        assert_eq!((spec.ack, spec.win), (Some(Num::Is(5)), Some(16)));
        assert_eq!(spec.sack, Some(vec![(7, 9)]));
        assert_eq!(spec.ts, Some(Some((Num::Is(3), Num::Any))));
    }

    #[test]
    fn errors_name_the_line() {
        for (line, what) in [
            ("> . 1", "needs `ack N`"),
            ("> Q 1", "no flags"),
            ("> S 0 speed 3", "says nothing"),
            ("+5 ! connect", "no duration"),
            ("+1ms..2ms ! connect", "range of time"),
            ("< . 1:1000 ack 1 x2", "do not divide"),
        ] {
            let error = one(line).unwrap_err();
            assert!(error.starts_with("3: ") && error.contains(what), "{error}");
        }
        assert!(parse("! connect").is_err(), "no header");
    }
}
