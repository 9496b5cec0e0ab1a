use super::*;

#[test]
fn device_settings_reach_open_config() {
    let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, 1].into(), 24);
    let defaults = format!("{:?}", OpenConfig::default());
    assert_eq!(format!("{:?}", config.open_config()), defaults);
    config.mtu = 9000;
    config.checksum = Some(ChecksumMode::Offload);
    config.hugepages = Hugepages::Never;
    config.ring_slots = 64;
    config.pools.windows = 7;
    config.shards = 3;
    let opening = config.open_config();
    assert_eq!((opening.mtu, opening.checksum), (9000, Some(ChecksumMode::Offload)));
    assert_eq!((opening.hugepages, opening.ring_slots), (Hugepages::Never, 64));
    assert_eq!((opening.pools.windows, opening.queues), (7, 3));
}

#[test]
fn memory_for_incomplete_fpdus_has_a_minimum_for_each_shard() {
    let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, 1].into(), 24);
    for shards in [1, 2, 64] {
        config.shards = shards;
        config.limits.partial_bytes_max = shards * 18 * 1024;
        assert!(config.validate().is_ok(), "{shards} shards");
        config.limits.partial_bytes_max -= 1;
        let error = config.validate().expect_err("too little").to_string();
        let given = config.limits.partial_bytes_max;
        let expected = format!(
            "`limits.partial_bytes_max` of {given} bytes is too small for {shards} shards: \
             give {} or more",
            given + 1
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn addresses_that_no_host_has_are_refused() {
    let config = |text: &str| {
        let (ip, len) = text.split_once('/').unwrap();
        Config::new(DeviceSpec::Ring, ip.parse().unwrap(), len.parse().unwrap())
    };
    let error = |text| config(text).validate().err().map(|error| error.to_string());
    for right in ["198.18.0.1/24", "198.18.0.0/31", "198.18.0.255/32", "2001:2::1/64"] {
        assert_eq!(error(right), None, "{right}");
    }
    let link = ["198.18.0.255/24", "198.18.0.0/24", "198.18.255.255/16", "2001:2::/64"];
    for wrong in link {
        assert!(error(wrong).unwrap().starts_with(&format!("{wrong} is the address of")));
    }
    let no_host = ["0.0.0.0/24", "127.0.0.1/8", "224.0.0.1/4", "255.255.255.255/32"];
    let no_host_v6 = ["::/0", "::1/128", "ff02::1/64", "::ffff:198.18.0.1/96"];
    for wrong in no_host.into_iter().chain(no_host_v6) {
        assert!(error(wrong).unwrap().starts_with("no host has the address"), "{wrong}");
    }
    let mut routed = config("198.18.0.1/24");
    for via in ["198.18.1.1", "198.18.0.255", "198.18.0.1", "2001:2::1", "127.0.0.1"] {
        routed.routes = vec![Route::default_via(via.parse().unwrap())];
        assert!(matches!(routed.validate(), Err(OpenError::Router { .. })), "{via}");
    }
    let via = [198, 18, 0, 254].into();
    routed.routes = vec![Route { destination: [224, 0, 0, 0].into(), prefix_len: 4, via }];
    assert!(matches!(routed.validate(), Err(OpenError::Address { .. })));
}

#[test]
fn peers_are_other_hosts_with_a_route() {
    let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, 1].into(), 24);
    let reaches = |config: &Config, peer: &str| config.reaches(peer.parse().unwrap());
    assert!(reaches(&config, "198.18.0.2"));
    for wrong in ["198.18.0.1", "198.18.0.255", "198.18.0.0", "198.18.1.1", "2001:2::1"] {
        assert!(!reaches(&config, wrong), "{wrong}");
    }
    config.routes = vec![Route::default_via([198, 18, 0, 254].into())];
    assert!(reaches(&config, "198.18.1.1"));
    for wrong in ["2001:2::1", "127.0.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1"] {
        assert!(!reaches(&config, wrong), "{wrong}");
    }
}

#[test]
fn numbers_out_of_range_are_refused_with_it() {
    type Set = fn(&mut Config);
    let error = |set: Set| {
        let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, 1].into(), 24);
        set(&mut config);
        config.validate().err().map(|error| error.to_string())
    };
    let refused: [(Set, &str); 5] = [
        (|c| c.qps_max = 0, "qps_max of 0 is not possible: give 1 to 1048576"),
        (
            |c| c.regions_max = (1 << 20) + 1,
            "regions_max of 1048577 is not possible: give 0 to 1048576",
        ),
        (
            |c| c.source_ports = 0..=9,
            "source_ports 0 to 9 are not possible: give a range in 1 to 65535",
        ),
        (
            |c| c.source_ports = RangeInclusive::new(9, 8),
            "source_ports 9 to 8 are not possible: give a range in 1 to 65535",
        ),
        (|c| c.virtual_time = Some(Duration::ZERO), "virtual_time is a step of 1 ns to 1 s"),
    ];
    for (set, message) in refused {
        assert_eq!(error(set).as_deref(), Some(message));
    }
    let works: [Set; 4] = [
        |c| c.qps_max = 1 << 20,
        |c| c.regions_max = 0,
        |c| c.source_ports = 1..=u16::MAX,
        |c| c.source_ports = 7..=7,
    ];
    assert!(works.into_iter().all(|set| error(set).is_none()));
}

#[test]
fn shards_and_cores_have_to_match() {
    let error = |shards, drive, cores: &[usize]| {
        let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, 1].into(), 24);
        (config.shards, config.drive, config.cores) = (shards, drive, cores.to_vec());
        config.validate().err().map(|error| error.to_string())
    };
    let count = "0 shards are not possible: give 1 to 64";
    assert_eq!(error(0, DriveMode::Inline, &[]).as_deref(), Some(count));
    assert!(error(65, DriveMode::Inline, &[]).is_some());
    assert_eq!(error(64, DriveMode::Inline, &[]), None);
    let cores = "1 cores for the threads of 2 shards: give as many cores as shards, or fewer \
                 shards";
    assert_eq!(error(2, DriveMode::Dedicated, &[3]).as_deref(), Some(cores));
    assert_eq!(error(2, DriveMode::Dedicated, &[3, 0]), None);
    assert_eq!(error(1, DriveMode::Dedicated, &[]), None);
    assert!(error(64, DriveMode::Dedicated, &[]).is_some() || cores::available().len() >= 64);
}
