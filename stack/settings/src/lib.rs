//! Settings of ferrowarp's `libibverbs` and `librdmacm`, which unmodified verbs programs load.
//!
//! A verbs program has no option for a device or an address of this stack. The settings come from a
//! TOML file that `FERROWARP_CONFIG` names, and from variables of the environment, which override
//! the file:
//!
//! ```toml
//! device = "memif:/run/iwarp.sock,server"
//! address = ["198.18.0.1/24", "2001:2::1/64"]
//! mtu = 9000
//! ```
//!
//! ```sh
//! FERROWARP_CONFIG=iwarp.toml FERROWARP_MTU=1500 rping -s
//! ```
//!
//! [`SETTINGS`] is the list of all settings, from which the options of `iwarp-run` and
//! `docs/settings.md` are made. [`Settings::from_environment`] reads them:
//!
//! ```
//! use ferrowarp_settings::Settings;
//!
//! let variables = [("FERROWARP_DEVICE", "tap:iw0"), ("FERROWARP_ADDRESS", "198.18.0.1/24")];
//! let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
//! let settings = Settings::from_parts(None, variables)?;
//! assert_eq!((settings.device.as_str(), settings.mtu), ("tap:iw0", 1500));
//!
//! let wrong = [("FERROWARP_MTU".to_owned(), "9K".to_owned())];
//! let error = Settings::from_parts(None, wrong).unwrap_err();
//! assert_eq!(error.to_string(), "FERROWARP_MTU: \"9K\": give 576 to 65280");
//! # Ok::<(), ferrowarp_settings::SettingsError>(())
//! ```
//!
//! [`address`] and [`value`] parse values of options; the other programs of ferrowarp share them.

#![forbid(unsafe_code)]

pub mod address;
mod builder;
#[cfg(test)]
mod document;
mod error;
mod file;
mod nearest;
mod setting;
mod settings;
pub mod value;

pub use builder::SettingsBuilder;
pub use error::{Origin, SettingsError};
pub use nearest::{Misspelled, misspelled};
pub use setting::{CONFIG_VARIABLE, DEVICE_KINDS, SETTINGS, Setting, Topic};
pub use settings::{Hugepages, LogLevel, Poller, Settings};
