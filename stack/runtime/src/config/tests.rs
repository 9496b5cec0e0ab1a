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
    routed.routes = vec![Route::new([224, 0, 0, 0].into(), 4, via)];
    assert!(matches!(routed.validate(), Err(OpenError::Address { .. })));
}

#[test]
fn peers_are_hosts_with_a_route_and_this_one() {
    let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, 1].into(), 24);
    let reaches = |config: &Config, peer: &str| config.source_to(peer.parse().unwrap()).is_some();
    assert!(reaches(&config, "198.18.0.2") && reaches(&config, "198.18.0.1"));
    for wrong in ["198.18.0.255", "198.18.0.0", "198.18.1.1", "2001:2::1"] {
        assert!(!reaches(&config, wrong), "{wrong}");
    }
    config.routes = vec![Route::default_via([198, 18, 0, 254].into())];
    assert!(reaches(&config, "198.18.1.1"));
    for wrong in ["2001:2::1", "127.0.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1"] {
        assert!(!reaches(&config, wrong), "{wrong}");
    }
}

#[test]
fn static_neighbors_are_other_hosts_on_the_link() {
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
    let error = |ip: &str, mac| {
        let config = Config::new(DeviceSpec::Ring, [198, 18, 0, 1].into(), 24)
            .address(InterfaceAddress { ip: "fe80::1".parse().unwrap(), prefix_len: 64 })
            .neighbor(ip.parse().unwrap(), mac);
        config.validate().err().map(|error| error.to_string())
    };
    assert_eq!((error("198.18.0.2", MAC), error("fe80::2", MAC)), (None, None));
    for ip in ["198.18.0.1", "198.18.1.2", "198.18.0.255", "fe80::1", "2001:2::2", "224.0.0.1"] {
        let expected = format!("the neighbor {ip} is not another host on the link of any address");
        assert!(error(ip, MAC).unwrap().starts_with(&expected), "{ip}");
    }
    for mac in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
        assert!(error("198.18.0.2", mac).unwrap().ends_with("give a unicast one for 198.18.0.2"));
    }
    assert!(error("198.18.0.2", [0xff; 6]).unwrap().starts_with("ff:ff:ff:ff:ff:ff is not the"));
    let mut many = Config::new(DeviceSpec::Ring, [198, 18, 0, 1].into(), 16);
    many.neighbors = vec![StaticNeighbor { ip: [198, 18, 0, 2].into(), mac: MAC }; 513];
    let text = many.validate().unwrap_err().to_string();
    assert_eq!(text, "neighbors of 513 is not possible: give 0 to 512");
}

#[test]
fn mtus_below_the_minimum_are_refused() {
    let config = |ip: &str, via: &str, mtu| {
        let route = Route::default_via(via.parse().unwrap()).mtu(mtu);
        Config::new(DeviceSpec::Ring, ip.parse().unwrap(), 24).route(route)
    };
    let error = |config: Config| config.validate().err().map(|error| error.to_string());
    let v4 = |mtu| error(config("198.18.0.1", "198.18.0.2", mtu));
    let v6 = |mtu| error(config("2001:2::1", "2001:2::2", mtu));
    assert_eq!((v4(256), v4(u16::MAX), v6(1280)), (None, None, None));
    let text = "an MTU of 255 for the route to 0.0.0.0/0 is not possible: give 256 or more";
    assert_eq!(v4(255).as_deref(), Some(text));
    let text = "an MTU of 1279 for the route to ::/0 is not possible: give 1280 or more";
    assert_eq!(v6(1279).as_deref(), Some(text));
    let small = config("2001:2::1", "2001:2::2", 1280).hairpin_mtu(1279);
    let text = "an MTU of 1279 is too small for the IPv6 address 2001:2::1: IPv6 requires 1280";
    assert_eq!(error(small).as_deref(), Some(text));
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

#[test]
fn only_named_cores_pin_helpers() {
    let cores = |drive, cores: &[usize]| {
        let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, 1].into(), 24);
        (config.drive, config.cores) = (drive, cores.to_vec());
        config.shard_cores()
    };
    assert_eq!(cores(DriveMode::Helper, &[]), []);
    assert_eq!(cores(DriveMode::Hot, &[1]), [1]);
    assert_eq!(cores(DriveMode::Dedicated, &[]), cores::available());
    assert_eq!(cores(DriveMode::Dedicated, &[1]), [1]);
}
