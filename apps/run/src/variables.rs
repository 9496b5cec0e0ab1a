//! Variables of the program's environment.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ferrowarp_settings::CONFIG_VARIABLE;

use crate::failure::Failure;
use crate::library::LIBIBVERBS;
use crate::options::Options;

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Name.
    pub name: String,
    /// Value.
    pub value: OsString,
}

/// Returns the variables to set: the settings that were given as options, the file of settings by
/// its absolute path, and the place of the libraries.
///
/// # Errors
/// If the path of the file cannot be made absolute.
pub fn of(options: &Options, folder: &Path) -> Result<Vec<Variable>, Failure> {
    let mut variables = Vec::new();
    if let Some(path) = options.config() {
        let absolute = std::path::absolute(&path)
            .map_err(|error| Failure::own(format!("{}: {error}", path.display())))?;
        variables.push(Variable { name: CONFIG_VARIABLE.to_owned(), value: absolute.into() });
    }
    for (setting, values) in &options.given {
        variables.push(Variable { name: setting.variable(), value: values.join(",").into() });
    }
    let (name, added) = if options.preload {
        ("LD_PRELOAD", folder.join(LIBIBVERBS))
    } else {
        ("LD_LIBRARY_PATH", folder.to_owned())
    };
    let value = before(added.as_os_str(), env::var_os(name).as_deref());
    variables.push(Variable { name: name.to_owned(), value });
    Ok(variables)
}

/// Puts a path before those that a variable has. They stay as they are: an empty one is the current
/// folder. The loader ignores a variable that is empty.
fn before(path: &OsStr, rest: Option<&OsStr>) -> OsString {
    let mut value = path.to_owned();
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}

/// Returns the commands of a shell that set the variables.
#[must_use]
pub fn shell_text(variables: &[Variable]) -> Vec<u8> {
    let mut text = Vec::new();
    for Variable { name, value } in variables {
        text.extend_from_slice(b"export ");
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b"='");
        for &byte in value.as_bytes() {
            match byte {
                b'\'' => text.extend_from_slice(b"'\\''"),
                _ => text.push(byte),
            }
        }
        text.extend_from_slice(b"'\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use ferrowarp_settings::Settings;

    use super::*;
    use crate::options::Parsed;

    /// The program reads from its environment what `iwarp-run` was given.
    #[test]
    fn options_reach_the_program() {
        let line = "iwarp-run --dev memif:/tmp/x.sock,server --ip 198.18.0.1/24 --ip 2001:2::1/64 \
                    --route 203.0.113.0/24 via 198.18.0.254,mtu=1400 \
                    --route default via 2001:2::fe \
                    --neighbor 198.18.0.2=02:00:00:00:00:02 --vlan 7 --crc false --print";
        let words = line.split_whitespace().map(OsString::from);
        let Ok(Parsed::Options(options)) = Options::parse(words) else { panic!("{line}") };
        let variables = of(&options, Path::new("/lib")).unwrap();
        let text = |variable: Variable| (variable.name, variable.value.into_string().unwrap());
        let read = Settings::from_parts(None, variables.into_iter().map(text)).unwrap();
        assert_eq!(read, options.settings().unwrap());
        assert_eq!((read.routes.len(), read.vlan, read.crc), (2, Some(7), false));
    }

    #[test]
    fn path_is_put_before_the_others() {
        let join = |rest: Option<&str>| before(OsStr::new("/lib"), rest.map(OsStr::new));
        for (rest, expected) in [
            (None, "/lib"),
            (Some(""), "/lib"),
            (Some("/usr/lib"), "/lib:/usr/lib"),
            (Some("relative::/usr/lib:"), "/lib:relative::/usr/lib:"),
        ] {
            assert_eq!(join(rest), expected);
        }
    }

    #[test]
    fn shell_text_is_quoted() {
        let variable = Variable { name: "A".to_owned(), value: "it's $HOME".into() };
        assert_eq!(shell_text(&[variable]), b"export A='it'\\''s $HOME'\n");
    }
}
