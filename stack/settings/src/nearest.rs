//! Names that resemble others.

use crate::setting::{CONFIG_VARIABLE, SETTINGS};

/// Bytes of a name that are compared, at most; no setting has a longer one.
const COMPARED_BYTES_MAX: usize = 40;

/// Prefix of all variables.
const PREFIX: &str = "FERROWARP_";

/// Returns how many bytes must be inserted, deleted or replaced to change one name into the other
/// (Levenshtein distance), of the first bytes of each.
fn distance(one: &str, other: &str) -> usize {
    let start = |name: &str| name.bytes().take(COMPARED_BYTES_MAX).collect::<Vec<_>>();
    let (one, other) = (start(one), start(other));
    // Distances of the bytes of `one` so far from each start of `other`.
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, byte) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (at, candidate) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(byte != candidate);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

/// Returns the name of the setting that resembles `key` most.
pub(crate) fn nearest_setting(key: &str) -> &'static str {
    let key = key.to_ascii_lowercase();
    // A plural, or the name of the option, is as good as the name.
    let of = |name: &str| distance(&key, name);
    let settings = SETTINGS.iter();
    let nearest = settings.min_by_key(|setting| of(setting.name).min(of(setting.option)));
    nearest.map_or("device", |setting| setting.name)
}

/// A variable of the environment that looks like a misspelled setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misspelled {
    /// Its name.
    pub variable: String,
    /// The variable of a setting that it resembles.
    pub meant: String,
}

/// Finds variables that are of no setting but look like one. Other variables of this prefix exist:
/// those of tests resemble none.
pub fn misspelled(names: impl IntoIterator<Item = String>) -> Vec<Misspelled> {
    let variables: Vec<String> = SETTINGS.iter().map(|setting| setting.variable()).collect();
    let known = || variables.iter().map(String::as_str).chain([CONFIG_VARIABLE]);
    let find = |variable: String| {
        let own = variable.strip_prefix(PREFIX)?;
        if known().any(|name| name == variable) {
            return None;
        }
        let own = own.to_ascii_uppercase();
        let nearest = known().min_by_key(|name| distance(&own, &name[PREFIX.len()..]))?;
        let name = &nearest[PREFIX.len()..];
        // One error in three letters, and at most two.
        let is_near = distance(&own, name) <= (name.len() / 3).min(2);
        is_near.then(|| Misspelled { meant: nearest.to_owned(), variable })
    };
    names.into_iter().filter_map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_changed_bytes() {
        for (one, other, expected) in [
            ("mtu", "mtu", 0),
            ("mtus", "mtu", 1),
            ("mut", "mtu", 2),
            ("", "mtu", 3),
            ("poller_cpu", "poller-cpu", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
            assert_eq!(distance(other, one), expected, "{other} {one}");
        }
        assert_eq!(distance(&"x".repeat(1 << 20), "mtu"), COMPARED_BYTES_MAX);
    }

    #[test]
    fn nearest_name_is_found() {
        for (key, expected) in [
            ("adress", "address"),
            ("addresses", "address"),
            ("ip", "address"),
            ("dev", "device"),
            ("Device", "device"),
            ("hot_time", "hot-time"),
            ("neighbour", "neighbor"),
        ] {
            assert_eq!(nearest_setting(key), expected, "{key}");
        }
    }

    #[test]
    fn variables_of_tests_look_like_no_setting() {
        let found = |name: &str| misspelled([name.to_owned()]).pop().map(|found| found.meant);
        for (name, meant) in [
            ("FERROWARP_MTUS", "FERROWARP_MTU"),
            ("FERROWARP_ADRESS", "FERROWARP_ADDRESS"),
            ("FERROWARP_POLLERCPU", "FERROWARP_POLLER_CPU"),
            ("FERROWARP_CONFIGS", "FERROWARP_CONFIG"),
            ("FERROWARP_mtu", "FERROWARP_MTU"),
        ] {
            assert_eq!(found(name).as_deref(), Some(meant), "{name}");
        }
        for name in [
            "FERROWARP_MTU",
            "FERROWARP_CONFIG",
            "FERROWARP_UPDATE",
            "FERROWARP_REQUIRE_DEVICE",
            "FERROWARP_FUZZ_SECONDS",
            "FERROWARP_TEST_NETNS",
            "FERROWARP_",
            "PATH",
        ] {
            assert_eq!(found(name), None, "{name}");
        }
    }
}
