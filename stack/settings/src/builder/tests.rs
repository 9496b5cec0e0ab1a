//! Settings from files, variables and options.

use std::time::Duration;

use ferrowarp_proto::net::routing::Route;
use proptest::prelude::*;

use super::*;
use crate::settings::{Hugepages, LogLevel, Poller};

const LEAST: [(&str, &str); 2] =
    [("FERROWARP_DEVICE", "tap:iw0"), ("FERROWARP_ADDRESS", "198.18.0.1/24")];

fn read(file: Option<&str>, variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    let file = file.map(|text| (Path::new("iwarp.toml"), text));
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Settings::from_parts(file, variables.iter().map(owned))
}

fn error(file: &str, variables: &[(&str, &str)]) -> String {
    let text = read(Some(file), variables).unwrap_err().to_string();
    assert!(!text.contains('\n'), "one line: {text}");
    text
}

#[test]
fn each_setting_is_read_from_the_file() {
    let text = r#"
        device = "memif:/run/iwarp.sock,server"
        address = ["198.18.0.1/24", "2001:2::1/64"]
        route = ["203.0.113.0/24 via 198.18.0.254,mtu=1400", "default via 2001:2::fe"]
        neighbor = "198.18.0.2=02:00:00:00:00:02"
        vlan = 7
        mtu = 9_000
        poller = "hot"
        poller-cpu = 3
        hot-time = 20
        vendor-id = 0x1425
        vendor-part-id = "24576"
        keepalive-idle = 0.5
        keepalive-interval = 1
        keepalive-probes = 9
        linger = 100
        hugepages = "never"
        source-ports = "1024-2047"
        qps = 16
        regions = 32
        peer-to-peer = false
        crc = false
        log = "debug"
    "#;
    let settings = read(Some(text), &[]).unwrap();
    assert_eq!(settings.device, "memif:/run/iwarp.sock,server");
    assert_eq!(settings.addresses.len(), 2);
    let ip = |text: &str| text.parse().unwrap();
    let routed = Route::new(ip("203.0.113.0"), 24, ip("198.18.0.254")).mtu(1400);
    assert_eq!(settings.routes, [routed, Route::default_via(ip("2001:2::fe"))]);
    assert_eq!(settings.neighbors[0].mac, [2, 0, 0, 0, 0, 2]);
    assert_eq!((settings.vlan, settings.mtu), (Some(7), 9000));
    assert_eq!((settings.poller, settings.poller_cpu), (Poller::Hot, Some(3)));
    assert_eq!(settings.hot_time, Duration::from_millis(20));
    assert_eq!((settings.vendor_id, settings.vendor_part_id), (0x1425, 24_576));
    let keepalive = settings.keepalive;
    assert_eq!(keepalive.idle, Duration::from_millis(500));
    assert_eq!((keepalive.interval, keepalive.probes), (Duration::from_secs(1), 9));
    assert_eq!(settings.linger, Duration::from_millis(100));
    assert_eq!(settings.hugepages, Hugepages::Never);
    assert_eq!(settings.source_ports, 1024..=2047);
    assert_eq!((settings.qps_max, settings.regions_max), (16, 32));
    assert!(!settings.peer_to_peer && !settings.crc);
    assert_eq!(settings.log, LogLevel::Debug);
    let missing = SETTINGS.iter().find(|setting| !text.contains(&format!("{} = ", setting.name)));
    assert!(missing.is_none(), "{missing:?}");
}

#[test]
fn documented_defaults_are_the_defaults() {
    for setting in SETTINGS.iter().filter(|setting| !setting.default.is_empty()) {
        let Kind::One(store) = setting.kind else { panic!("{setting:?}") };
        let mut settings = Settings::new();
        store(&mut settings, setting.default).unwrap();
        assert_eq!(settings, Settings::new(), "{}", setting.name);
    }
}

#[test]
fn variables_override_the_file_and_lists_as_a_whole() {
    let text = "device = \"tap:iw0\"\naddress = [\"198.18.0.1/24\", \"2001:2::1/64\"]\nmtu = 9000";
    let settings = read(
        Some(text),
        &[
            ("FERROWARP_ADDRESS", "198.18.0.7/24 , 198.18.1.7/24"),
            ("FERROWARP_MTU", " 1500 "),
            ("FERROWARP_VLAN", ""),
            ("FERROWARP_KEEPALIVE_IDLE", "off"),
            ("FERROWARP_UPDATE", "1"),
        ],
    );
    let settings = settings.unwrap();
    let addresses: Vec<_> = settings.addresses.iter().map(|own| own.ip.to_string()).collect();
    assert_eq!(addresses, ["198.18.0.7", "198.18.1.7"]);
    assert_eq!((settings.mtu, settings.vlan), (1500, None));
    assert_eq!(settings.keepalive.idle, Duration::MAX);
    assert_eq!(settings.device, "tap:iw0");
}

#[test]
fn elements_are_separated_by_commas() {
    let split = |text| elements(text).collect::<Vec<_>>();
    assert_eq!(split("a"), ["a"]);
    assert_eq!(split("a, b,c"), ["a", "b", "c"]);
    assert_eq!(
        split("x via a,mtu=1400,y via b, mtu=576"),
        ["x via a,mtu=1400", "y via b, mtu=576"]
    );
    assert_eq!(split("a,"), ["a", ""]);
    assert_eq!(split(",mtu="), [",mtu="]);
}

#[test]
fn errors_name_setting_place_value_and_what_is_accepted() {
    for (text, expected) in [
        ("\n\nmtu = 70000", "iwarp.toml: line 3: mtu: \"70000\": give 576 to 65280"),
        ("mtu = [1500]", "iwarp.toml: line 1: mtu: \"[...]\": give one value"),
        ("crc = {}", "iwarp.toml: line 1: crc: \"{...}\": give true or false"),
        ("vlan = -1", "iwarp.toml: line 1: vlan: \"-1\": give 1 to 4094"),
        (
            "poller = \"off\"\npoller-cpu = 1",
            "iwarp.toml: line 2: poller-cpu: \"1\": there is no such thread with `poller` off: \
             omit it",
        ),
        ("poller = \"fast\"", "iwarp.toml: line 1: poller: \"fast\": give auto, hot, park or off"),
        (
            "address = [\n\"198.18.0.1/24\",\n\"198.18.0.1/33\"]",
            "iwarp.toml: line 3: address: \"198.18.0.1/33\": the prefix is too long: give 0 to 32 \
             bits",
        ),
        (
            "address = [\"198.18.0.1/24\", \"198.18.0.1/16\"]",
            "iwarp.toml: line 1: address: \"198.18.0.1/16\": give each address once",
        ),
        (
            "address = \"fe80::1%tap0/64\"",
            "iwarp.toml: line 1: address: \"fe80::1%tap0/64\": write fe80::1 without %tap0: the \
             device is one link",
        ),
        (
            "device = \"ring\"",
            "iwarp.toml: line 1: device: \"ring\": ring joins two ends of one process: give \
             memif:SOCKET",
        ),
        ("\nadress = \"x\"", "iwarp.toml: line 2: \"adress\" is no setting: do you mean address?"),
        (
            "[device]\nname = 1",
            "iwarp.toml: line 1: device: \"{...}\": give a device of one of the \
             kinds memif:, vhost:, virtio-user:, tap:, af_packet:, af_xdp:, pci:, eal:",
        ),
    ] {
        assert_eq!(error(text, &LEAST), expected);
    }
    let twice = error("mtu = 1500\nmtu = 1500", &[]);
    assert!(twice.starts_with("iwarp.toml: line 2: "), "{twice}");
    let long = error(&format!("log = \"{}\"", "é".repeat(1000)), &[]);
    assert!(long.len() < 250 && long.contains("...\": give off, error"), "{long}");
    assert_eq!(error("", &[("FERROWARP_MTU", "9K")]), "FERROWARP_MTU: \"9K\": give 576 to 65280");
}

#[test]
fn missing_device_and_address_are_told_apart() {
    assert!(matches!(read(None, &[]), Err(SettingsError::NoDevice)));
    let no_address = read(None, &LEAST[..1]).unwrap_err();
    assert!(matches!(&no_address, SettingsError::NoAddress { device } if device == "tap:iw0"));
    for error in [SettingsError::NoDevice, no_address] {
        let text = error.to_string();
        assert!(text.contains("iwarp-run") && text.contains("FERROWARP_CONFIG"), "{text}");
        assert!(!text.contains('\n') && !text.contains("  "), "{text}");
    }
}

#[test]
fn values_that_cannot_work_together_are_refused() {
    let with = |name, value| error("", &[LEAST[0], LEAST[1], (name, value)]);
    let expected = "give a host on a link of one of the addresses";
    assert_eq!(
        with("FERROWARP_ROUTE", "default via 198.18.1.1"),
        format!("FERROWARP_ROUTE: \"198.18.1.1\": {expected}")
    );
    assert_eq!(
        with("FERROWARP_NEIGHBOR", "198.18.0.1=02:00:00:00:00:01"),
        format!("FERROWARP_NEIGHBOR: \"198.18.0.1\": {expected}")
    );
    let v6 = [LEAST[0], ("FERROWARP_ADDRESS", "2001:2::1/64"), ("FERROWARP_MTU", "576")];
    assert_eq!(error("", &v6), "FERROWARP_MTU: \"576\": give 1280 or more, with an IPv6 address");
}

#[test]
fn hostile_files_are_bounded() {
    let too_long = "#".repeat(file::FILE_BYTES_MAX + 1);
    assert!(matches!(read(Some(&too_long), &[]), Err(SettingsError::TooLong { .. })));
    let many: Vec<_> =
        (0..20_000).map(|n| format!("\"10.0.{}.{}/32\"", n / 256, n % 256)).collect();
    let many = format!("address = [{}]", many.join(",\n"));
    assert!(error(&many, &[]).ends_with("give at most 512 values"));
    let deep = format!("mtu = {}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(error(&deep, &[]).starts_with("iwarp.toml: line 1: "));
    let dotted = "a.".repeat(100_000) + "a = 1";
    assert!(error(&dotted, &[]).starts_with("iwarp.toml: line 1: "));
    let endless = SettingsBuilder::new().read_file(Path::new("/dev/zero")).unwrap_err();
    assert!(matches!(endless, SettingsError::TooLong { .. }));
    let absent = SettingsBuilder::new().read_file(Path::new("/absent.toml")).unwrap_err();
    assert!(absent.to_string().starts_with("/absent.toml: the settings cannot be read: "));
    let folder = SettingsBuilder::new().read_file(Path::new("/")).unwrap_err();
    assert!(matches!(folder, SettingsError::Unreadable { .. }));
}

/// Characters at random, and lines that resemble those of a file.
const TEXT: &str = "\\PC*|(\\w{1,8} ?= ?[\\[\"{]?[\\w./:,%-]*[\\]\"}]?\n?)*";

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in TEXT) {
        if let Err(error) = read(Some(&text), &LEAST) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn arbitrary_values_never_panic(index in 0..SETTINGS.len(), value in "\\PC*|[\\w./:,=% -]*") {
        let setting = &SETTINGS[index];
        let _ = read(None, &[LEAST[0], LEAST[1], (&setting.variable(), &value)]);
        let file = format!("{} = '''{}'''", setting.name, value.replace('\'', ""));
        let _ = read(Some(&file), &LEAST);
    }
}
