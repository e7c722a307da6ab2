use onehop_core::service::SourceRanges;

use super::*;

fn service(annotations: &[(&str, &str)]) -> ServiceSpec {
    let annotations = annotations
        .iter()
        .map(|(key, value)| (reader::full(key), (*value).to_owned()));
    ServiceSpec {
        annotations: annotations.collect(),
        ..ServiceSpec::default()
    }
}

fn good(annotations: &[(&str, &str)]) -> Wishes {
    let (wishes, problems) = parse(&service(annotations));
    assert_eq!(problems, [], "{annotations:?}");
    wishes
}

/// Keys (without prefix) of all problems.
fn bad(annotations: &[(&str, &str)]) -> Vec<String> {
    let (_, problems) = parse(&service(annotations));
    problems
        .iter()
        .map(|p| p.key.trim_start_matches(keys::PREFIX).to_owned())
        .collect()
}

#[test]
fn az030_az040_a_boolean_is_true_in_any_case_and_nothing_else() {
    for (value, expected) in [
        ("true", true),
        ("True", true),
        ("TRUE", true),
        ("yes", false),
        ("1", false),
        ("", false),
    ] {
        for key in [keys::INTERNAL, keys::NO_FLOATING, keys::NO_RESET] {
            let wishes = good(&[(key, value)]);
            let read = wishes.internal || wishes.no_floating || wishes.no_reset;
            assert_eq!(read, expected, "{key}={value}");
        }
    }
}

#[test]
fn az031_az057_numbers_out_of_range_or_none_are_refused_all_at_once() {
    assert_eq!(good(&[(keys::IDLE, " 30 ")]).idle_minutes, Some(30));
    for value in ["3", "101", "4.5", "a", "-4"] {
        assert_eq!(bad(&[(keys::IDLE, value)]), [keys::IDLE], "{value}");
    }
    let all = bad(&[
        (keys::IDLE, "x"),
        (keys::PROBE_INTERVAL, "1"),
        (keys::TARGET, "pods"),
        (keys::ADDITIONAL_IPS, "x"),
    ]);
    assert_eq!(all.len(), 4, "{all:?}");
}

#[test]
fn az032_az048_an_empty_value_is_not_set_but_for_the_dns_label() {
    let empty = good(&[
        (keys::IDLE, ""),
        (keys::PIP_NAME, " "),
        (keys::PROBE_PROTOCOL, ""),
    ]);
    assert_eq!(
        (empty.idle_minutes, empty.pip, empty.probe),
        (None, ByFamily::default(), ProbeWish::default())
    );
    assert_eq!(
        good(&[(keys::DNS_LABEL, "")]).dns_label.as_deref(),
        Some("")
    );
    assert_eq!(good(&[]).dns_label, None);
}

#[test]
fn az041_a_subnet_counts_only_for_an_internal_one() {
    assert_eq!(good(&[(keys::SUBNET, "s")]).subnet, None);
    assert_eq!(
        good(&[(keys::SUBNET, "s"), (keys::INTERNAL, "True")])
            .subnet
            .as_deref(),
        Some("s")
    );
}

#[test]
fn az042_pinned_addresses() {
    let four = |wishes: Wishes| wishes.pinned.get(&IpFamily::V4).map(ToString::to_string);
    let mut spec = service(&[]);
    spec.requested_address = Some("20.0.0.1".to_owned());
    assert_eq!(four(parse(&spec).0).as_deref(), Some("20.0.0.1"));
    spec.annotations
        .insert(reader::full(keys::IPV4), "20.0.0.2".to_owned());
    assert_eq!(
        four(parse(&spec).0).as_deref(),
        Some("20.0.0.2"),
        "the annotation wins"
    );
    spec.annotations = [(reader::full(keys::IPV6), "2603::1".to_owned())].into();
    assert_eq!(
        four(parse(&spec).0),
        None,
        "the field is ignored with either key"
    );
    for address in [
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "127.0.0.1",
        "100.64.0.1",
        "168.63.129.16",
        "x",
    ] {
        assert_eq!(bad(&[(keys::IPV4, address)]), [keys::IPV4], "{address}");
    }
    assert_eq!(bad(&[(keys::IPV6, "20.0.0.1")]), [keys::IPV6]);
    let internal = good(&[(keys::INTERNAL, "true"), (keys::IPV4, "10.0.0.1")]);
    assert_eq!(four(internal).as_deref(), Some("10.0.0.1"));
}

#[test]
fn az043_az044_a_key_for_each_family() {
    use IpFamily::{V4, V6};
    let both = good(&[(keys::PIP_NAME, "four"), (keys::PIP_NAME_V6, "six")]).pip;
    assert_eq!(both.of(V4, &[V4, V6]), Some("four"));
    assert_eq!(both.of(V6, &[V4, V6]), Some("six"));
    assert_eq!(both.of(V6, &[V6]), Some("six"));
    let one = good(&[(keys::PIP_PREFIX, "/prefix")]).prefix;
    assert_eq!(
        one.of(V6, &[V6]),
        Some("/prefix"),
        "single-stack falls back"
    );
    assert_eq!(one.of(V6, &[V4, V6]), None);
}

#[test]
fn az045_az046_pairs_that_do_not_split_in_two_are_skipped() {
    let wishes = good(&[
        (keys::PIP_TAGS, "a=b, c = d,e,f=g=h,=i,a=z"),
        (keys::PIP_IP_TAGS, "FirstPartyUsage=/x"),
    ]);
    let pairs = |list: &[(&str, &str)]| {
        list.iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    assert_eq!(wishes.pip_tags, pairs(&[("a", "z"), ("c", "d")]));
    assert_eq!(wishes.ip_tags, Some(pairs(&[("FirstPartyUsage", "/x")])));
    assert_eq!(good(&[]).ip_tags, None, "absent leaves them alone");
}

#[test]
fn az033_az050_az051_lists_are_trimmed_and_empty_entries_dropped() {
    let wishes = good(&[
        (keys::ADDITIONAL_IPS, " 20.0.0.1 ,, 20.0.0.2,20.0.0.1"),
        (keys::SERVICE_TAGS, " , "),
    ]);
    assert_eq!(wishes.additional.len(), 2);
    assert!(wishes.access.tags.is_empty());
    assert!(wishes.access.is_open());
}

#[test]
fn az052_za33_bad_ranges_close_and_two_lists_conflict() {
    let (wishes, problems) = parse(&service(&[(
        keys::ALLOWED_RANGES,
        "10.0.0.0/8,10.0.0.1/8,20.0.0.1",
    )]));
    assert_eq!(problems, [], "fails closed, not at all");
    let bad = &wishes.access.bad[0];
    assert_eq!(
        (bad.reason, bad.entries.len()),
        ("InvalidAllowedIPRanges", 2)
    );
    assert_eq!(wishes.access.ranges.len(), 1);
    let mut both = service(&[(keys::SOURCE_RANGES, "10.0.0.0/8")]);
    both.source_ranges = SourceRanges {
        allowed: vec!["20.0.0.0/8".parse().unwrap()],
        has_bad: false,
    };
    let (_, problems) = parse(&both);
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].reason, CONFLICT, "ZA-33");
    both.annotations.clear();
    both.source_ranges = SourceRanges {
        allowed: vec![],
        has_bad: true,
    };
    let (wishes, _) = parse(&both);
    assert!(!wishes.access.is_open(), "AZ-207");
    assert_eq!(wishes.access.bad[0].reason, "InvalidSourceRanges");
}

#[test]
fn az055_with_a_mode_of_ours_says_both_keys() {
    let wishes = good(&[(keys::NO_FLOATING, "true"), (keys::TARGET, "pod")]);
    let [Hint::Overruled(..)] = &wishes.hints[..] else {
        panic!("{:?}", wishes.hints)
    };
    let said = wishes.hints[0].to_string();
    assert!(
        said.contains(keys::NO_FLOATING) && said.contains(keys::TARGET),
        "{said}"
    );
}

#[test]
fn za16_za17_az061_az062_az147_interval_times_count_stays_below_120() {
    let probe = |interval: &str, count: &str| {
        bad(&[(keys::PROBE_INTERVAL, interval), (keys::PROBE_COUNT, count)])
    };
    assert_eq!(probe("20", "5"), [""; 0], "ZA-16");
    for (interval, count) in [
        ("10", "20"),
        ("20", "5a"),
        ("1", "2"),
        ("5", "1"),
        ("60", "2"),
    ] {
        assert_eq!(
            probe(interval, count).len(),
            1,
            "ZA-17: {interval} x {count}"
        );
    }
    let port = bad(&[
        (keys::PROBE_COUNT, "10"),
        ("port_80_health-probe_interval", "12"),
    ]);
    assert_eq!(
        port,
        ["port_80_health-probe_interval"],
        "with what it falls back to"
    );
}

#[test]
fn az063_az064_az065_az066_keys_of_single_ports() {
    let wishes = good(&[
        ("port_80_no_lb_rule", "TRUE"),
        ("port_443_no_probe_rule", "true"),
        ("port_443_health-probe_protocol", "HtTpS"),
        ("port_443_health-probe_request-path", "/p"),
        ("port_443_health-probe_interval", "7"),
        ("port_443_health-probe_num-of-probe", "15"),
        ("port_443_health-probe_port", "metrics"),
        ("port_x_no_lb_rule", "true"),
    ]);
    assert!(wishes.ports[&80].no_rule);
    let port = &wishes.ports[&443];
    assert!(port.no_probe && !port.no_rule);
    let probe = ProbeWish {
        protocol: Some(ProbeProtocol::Https),
        path: Some("/p".to_owned()),
        interval: Some(7),
        count: Some(15),
    };
    assert_eq!(
        (&port.probe, port.probe_port.as_deref()),
        (&probe, Some("metrics"))
    );
    assert_eq!(wishes.ports.len(), 2);
}

#[test]
fn az144_an_unknown_probe_protocol_means_tcp() {
    for word in ["grpc", "mongodb", "TCP1"] {
        assert_eq!(
            good(&[(keys::PROBE_PROTOCOL, word)]).probe.protocol,
            Some(ProbeProtocol::Tcp)
        );
    }
}

#[test]
fn az036_az068_dead_keys_are_accepted_and_the_basic_mode_is_told() {
    for key in keys::DEAD {
        assert_eq!(good(&[(key, "true")]).hints, []);
    }
    assert_eq!(good(&[(keys::BASIC_MODE, "__auto__")]).hints.len(), 1);
}

#[test]
fn zi44_az067_az070_az321_what_is_not_carried_out_is_refused_with_a_reason() {
    let more = keys::PLS_MORE.map(|key| (key, "x"));
    let all: Vec<_> = [(keys::PLS_CREATE, "True")]
        .into_iter()
        .chain(more)
        .collect();
    let link = "PrivateLinkServiceUnsupported";
    let rows = [
        // ZI-44: our pools are of addresses.
        (&[(keys::PLS_CREATE, "true")][..], link, 0),
        // With it goes what PROXY headers would need of the probe.
        (
            &[
                (keys::PLS_CREATE, "true"),
                ("azure-pls-proxy-protocol", "true"),
            ][..],
            link,
            1,
        ),
        // All keys at once, each told.
        (&all[..], link, 9),
        // A choice among several load balancers.
        (
            &[(keys::CONFIGURATIONS, "lb-2,lb-3")][..],
            "NoLoadBalancerEligible",
            0,
        ),
    ];
    for (annotations, reason, hints) in rows {
        let (wishes, problems) = parse(&service(annotations));
        let [problem] = &problems[..] else {
            panic!("{annotations:?}: {problems:?}");
        };
        assert_eq!(problem.reason, reason, "{annotations:?}");
        assert!(problem.key.ends_with(annotations[0].0), "{problem}");
        assert_eq!(wishes.hints.len(), hints, "{annotations:?}");
    }
    assert_eq!(good(&[(keys::PLS_CREATE, "false")]).hints, []);
}

#[test]
fn i10_the_options_of_a_resolved_spec_say_the_same() {
    let mut all = service(&[
        (keys::TARGET, "vip"),
        (keys::INTERNAL, "true"),
        (keys::SUBNET, "s"),
        (keys::IPV4, "10.0.0.9"),
        (keys::PIP_TAGS, "a=b"),
        (keys::DNS_LABEL, ""),
        (keys::ALLOWED_RANGES, "10.0.0.0/8,bad"),
        (keys::IDLE, "10"),
        ("port_80_health-probe_port", "5080"),
    ]);
    all.affinity = Some(std::time::Duration::from_secs(1));
    let (wishes, problems) = parse(&all);
    assert_eq!(problems, []);
    let option =
        |(name, value, from): &(String, String, String)| onehop_core::crd::ProviderOption {
            name: name.clone(),
            value: value.clone(),
            from: from.clone(),
        };
    let spec = LoadBalancerSpec {
        options: wishes.origins.iter().map(option).collect(),
        ..LoadBalancerSpec::default()
    };
    let again = of_options(&spec);
    assert_eq!(
        Wishes {
            origins: vec![],
            ..wishes
        },
        again
    );
}
