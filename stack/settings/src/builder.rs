//! Settings from several places, of which later ones override earlier ones.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ferrowarp_proto::net::routing::RoutingTable;

use crate::address::MTU_MIN_V6;
use crate::error::{Origin, SettingsError, shown};
use crate::file::{self, line_at};
use crate::nearest::nearest_setting;
use crate::setting::{CONFIG_VARIABLE, Kind, SETTINGS, Setting};
use crate::settings::{Poller, Settings};

/// Values of a list, at most.
const VALUES_MAX: usize = 512;

/// Reader of settings from several places: a file, the environment, options of a command line. A
/// later one overrides an earlier one; a list is replaced as a whole.
#[derive(Debug, Default)]
pub struct SettingsBuilder {
    settings: Settings,
    /// Place of each setting that was given, by its name.
    origins: BTreeMap<&'static str, Origin>,
}

impl SettingsBuilder {
    /// Starts with the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the path that `FERROWARP_CONFIG` has, unless it is empty.
    #[must_use]
    pub fn config_variable() -> Option<PathBuf> {
        let path = env::var_os(CONFIG_VARIABLE).map(PathBuf::from);
        path.filter(|path| !path.as_os_str().is_empty())
    }

    /// Reads a file, of at most 1 MiB.
    ///
    /// # Errors
    /// If it cannot be read, is not TOML, or has an unknown key or a value that is not accepted.
    pub fn read_file(&mut self, path: &Path) -> Result<(), SettingsError> {
        self.file(path, &file::read(path)?)
    }

    /// Parses the text of a file; `path` is for errors.
    ///
    /// # Errors
    /// As [`SettingsBuilder::read_file`].
    pub fn file(&mut self, path: &Path, text: &str) -> Result<(), SettingsError> {
        for entry in file::parse(path, text)? {
            let Some(setting) = SETTINGS.iter().find(|setting| setting.name == entry.key) else {
                return Err(SettingsError::UnknownKey {
                    path: path.to_owned(),
                    line: line_at(text, entry.at),
                    nearest: nearest_setting(&entry.key),
                    key: shown(&entry.key),
                });
            };
            let origin = |at: usize| Origin::File {
                path: path.to_owned(),
                line: line_at(text, at),
                key: setting.name.to_owned(),
            };
            if entry.is_array && !setting.is_list() {
                return Err(wrong(setting, origin(entry.at), "[...]", "give one value".to_owned()));
            }
            let values = entry.values.iter().map(|(value, at)| (value.as_str(), *at));
            self.store(setting, values, origin)?;
            self.origins.insert(setting.name, origin(entry.at));
        }
        Ok(())
    }

    /// Reads the variables of all settings from the environment. An empty one counts as not set.
    ///
    /// # Errors
    /// If a value is not accepted.
    pub fn read_variables(&mut self) -> Result<(), SettingsError> {
        for setting in SETTINGS {
            let name = setting.variable();
            let Some(value) = env::var_os(&name) else { continue };
            let value = value.into_string().map_err(|value: OsString| {
                let value = value.to_string_lossy();
                wrong(setting, Origin::Variable(name.clone()), &value, "give UTF-8".to_owned())
            })?;
            self.variable(&name, &value)?;
        }
        Ok(())
    }

    /// Stores the value of a variable. A variable of no setting is ignored, as is an empty value.
    /// The elements of a list have commas between them.
    ///
    /// # Errors
    /// If the value is not accepted.
    pub fn variable(&mut self, name: &str, value: &str) -> Result<(), SettingsError> {
        let setting = SETTINGS.iter().find(|setting| setting.variable() == name);
        let Some(setting) = setting.filter(|_| !value.trim().is_empty()) else { return Ok(()) };
        let origin = Origin::Variable(name.to_owned());
        if setting.is_list() {
            self.set(setting, &origin, elements(value))
        } else {
            self.set(setting, &origin, [value.trim()])
        }
    }

    /// Stores the values of a setting: one, unless it is a list.
    ///
    /// # Errors
    /// If a value is not accepted.
    pub fn set<'a>(
        &mut self,
        setting: &'static Setting,
        origin: &Origin,
        values: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), SettingsError> {
        let values = values.into_iter().map(|value| (value, 0));
        self.store(setting, values, |_| origin.clone())?;
        self.origins.insert(setting.name, origin.clone());
        Ok(())
    }

    /// Stores values, each with a number from which `origin` makes its place.
    fn store<'a>(
        &mut self,
        setting: &'static Setting,
        values: impl Iterator<Item = (&'a str, usize)>,
        origin: impl Fn(usize) -> Origin,
    ) -> Result<(), SettingsError> {
        let store = match setting.kind {
            Kind::One(store) => store,
            Kind::List { clear, add } => {
                clear(&mut self.settings);
                add
            }
        };
        for (index, (value, at)) in values.enumerate() {
            let stored = if index < VALUES_MAX {
                store(&mut self.settings, value)
            } else {
                Err(format!("give at most {VALUES_MAX} values"))
            };
            stored.map_err(|expected| wrong(setting, origin(at), value, expected))?;
        }
        Ok(())
    }

    /// Checks the values together, and returns them.
    ///
    /// # Errors
    /// If there is no device or address, or values cannot work together.
    pub fn build(self) -> Result<Settings, SettingsError> {
        let Settings { device, addresses, .. } = &self.settings;
        if device.is_empty() {
            return Err(SettingsError::NoDevice);
        }
        if addresses.is_empty() {
            return Err(SettingsError::NoAddress { device: device.clone() });
        }
        self.check_mtu()?;
        self.check_links()?;
        self.check_poller()?;
        Ok(self.settings)
    }

    /// Checks that there is a thread to be pinned.
    fn check_poller(&self) -> Result<(), SettingsError> {
        match self.settings.poller_cpu {
            Some(core) if self.settings.poller == Poller::Off => {
                let expected = "there is no such thread with `poller` off: omit it".to_owned();
                self.conflict("poller-cpu", &core.to_string(), expected)
            }
            _ => Ok(()),
        }
    }

    fn check_mtu(&self) -> Result<(), SettingsError> {
        let mtu = self.settings.mtu;
        let is_v6 = self.settings.addresses.iter().any(|own| own.ip.is_ipv6());
        if is_v6 && mtu < MTU_MIN_V6 {
            let expected = format!("give {MTU_MIN_V6} or more, with an IPv6 address");
            return self.conflict("mtu", &mtu.to_string(), expected);
        }
        Ok(())
    }

    /// Checks that routers and neighbors are on a link of one of the addresses.
    fn check_links(&self) -> Result<(), SettingsError> {
        let Settings { addresses, routes, neighbors, .. } = &self.settings;
        let links = RoutingTable::new(addresses, &[]);
        let expected = || "give a host on a link of one of the addresses".to_owned();
        if let Some(route) = routes.iter().find(|route| !links.is_neighbor(route.via)) {
            return self.conflict("route", &route.via.to_string(), expected());
        }
        if let Some(other) = neighbors.iter().find(|other| !links.is_neighbor(other.ip)) {
            return self.conflict("neighbor", &other.ip.to_string(), expected());
        }
        Ok(())
    }

    /// Returns the error of a value that does not go with others; a default goes with any.
    fn conflict(&self, name: &str, value: &str, expected: String) -> Result<(), SettingsError> {
        let setting = SETTINGS.iter().find(|setting| setting.name == name);
        match (setting, self.origins.get(name)) {
            (Some(setting), Some(origin)) => Err(wrong(setting, origin.clone(), value, expected)),
            _ => Ok(()),
        }
    }
}

/// Splits the elements of a list; the MTU of a route belongs to its element.
fn elements(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let is_end = |&(at, _): &(usize, &str)| !text[at + 1..].trim_start().starts_with("mtu=");
        let end = text.match_indices(',').find(is_end).map(|(at, _)| at);
        rest = end.map(|at| &text[at + 1..]);
        Some(text[..end.unwrap_or(text.len())].trim())
    })
}

fn wrong(
    setting: &'static Setting,
    origin: Origin,
    value: &str,
    expected: String,
) -> SettingsError {
    SettingsError::Value { setting: setting.name, origin, value: shown(value), expected }
}

#[cfg(test)]
mod tests;
