use super::super::annotations;
use super::super::testkit::*;
use super::*;
use onehop_core::service::ServiceSpec;

#[test]
fn az175_a_new_public_ip_is_in_all_zones_of_the_region_or_in_the_edge_zone() {
    let made = |settings: &Settings, zones: &[&str]| {
        let spec = resolved(&own(&[80]));
        let wishes = super::super::annotations::of_options(&spec);
        let zones: Vec<String> = zones.iter().map(|zone| (*zone).to_owned()).collect();
        let asker = Asker {
            service: &key(),
            spec: &spec,
            wishes: &wishes,
            zones: &zones,
        };
        let asked = asker.public_ip(settings, &[], IpFamily::V4);
        asked.unwrap().write.unwrap()
    };
    let document = made(&settings(), &["1", "2", "3"]);
    assert_eq!(document["zones"], json!(["1", "2", "3"]), "AZ-175");
    assert_eq!(
        (
            &document["sku"]["name"],
            &document["properties"]["publicIPAllocationMethod"]
        ),
        (&json!("Standard"), &json!("Static")),
        "AZ-175"
    );
    assert_eq!(made(&settings(), &[]).get("zones"), None);
    let mut edge = settings();
    edge.place.edge_zone = Some("microsoftlosangeles1".to_owned());
    let place = json!({"name": "microsoftlosangeles1", "type": "EdgeZone"});
    assert_eq!(made(&edge, &[])["extendedLocation"], place);
    assert_eq!(
        super::super::balancer::new(&edge)["extendedLocation"],
        place
    );
    // One that is there is left where it is.
    assert_eq!(
        ask(&own(&[80]), &[managed()]).unwrap().write,
        None,
        "AZ-104"
    );
}

fn ask(service: &ServiceSpec, all: &[Value]) -> Result<PublicIp, Refusal> {
    let spec = resolved(service);
    let wishes = annotations::of_options(&spec);
    Asker {
        service: &key(),
        spec: &spec,
        wishes: &wishes,
        zones: &[],
    }
    .public_ip(&settings(), all, IpFamily::V4)
}

fn stored(document: &Value, id: &str) -> Value {
    let mut document = document.clone();
    lay_over(
        &mut document,
        &json!({"id": id, "name": super::super::document::last_of_id(id), "properties": {"ipAddress": "20.0.0.1"}}),
    );
    document
}

fn managed() -> Value {
    let made = ask(&own(&[80]), &[]).unwrap();
    stored(&made.write.unwrap(), &made.id)
}

#[test]
fn az089_az099_az175_a_managed_one_is_static_standard_and_tagged() {
    let made = ask(&own(&[80]), &[]).unwrap();
    assert!(made.id.ends_with(
        "/resourceGroups/rg/providers/Microsoft.Network/publicIPAddresses/kubernetes-atest1"
    ));
    assert_eq!(
        made.write.unwrap(),
        json!({
            "location": "westus", "sku": {"name": "Standard", "tier": "Regional"},
            "properties": {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"},
            "tags": {"onehop-install": "demo-azure", "onehop-generation": "1", "onehop-service": "default/test1"},
        })
    );
    assert_eq!(
        ask(&own(&[80]), &[managed()]).unwrap().write,
        None,
        "AZ-104"
    );
}

#[test]
fn az044_az045_az049_prefix_tags_and_resource_group() {
    let annotations = [
        (
            "azure-pip-prefix-id",
            "/subscriptions/s/providers/x/publicIPPrefixes/pre",
        ),
        ("azure-pip-tags", "a=b"),
        ("azure-load-balancer-resource-group", "other"),
    ];
    let made = ask(&annotated(own(&[80]), &annotations), &[]).unwrap();
    assert!(made.id.ends_with("/resourceGroups/other/providers/Microsoft.Network/publicIPAddresses/kubernetes-atest1-pre"), "{}", made.id);
    let document = made.write.unwrap();
    assert_eq!(
        (
            &document["tags"]["a"],
            &document["properties"]["publicIPPrefix"]["id"]
        ),
        (&json!("b"), &json!(annotations[0].1))
    );
}

#[test]
fn za45_az048_a_dns_label_is_set_changed_cleared_and_left_alone() {
    let label = |label| annotated(own(&[80]), &[("azure-dns-label-name", label)]);
    let set = ask(&label("web"), &[managed()]).unwrap().write.unwrap();
    assert_eq!(
        set["properties"]["dnsSettings"]["domainNameLabel"],
        json!("web")
    );
    assert_eq!(set["tags"][names::TAG_DNS], json!("default/test1"));
    assert_eq!(
        ask(&label("web"), std::slice::from_ref(&set))
            .unwrap()
            .write,
        None
    );
    let changed = ask(&label("shop"), std::slice::from_ref(&set))
        .unwrap()
        .write
        .unwrap();
    assert_eq!(
        changed["properties"]["dnsSettings"]["domainNameLabel"],
        json!("shop"),
        "ZI-32"
    );
    let cleared = ask(&label(""), std::slice::from_ref(&set))
        .unwrap()
        .write
        .unwrap();
    assert!(
        cleared["properties"].get("dnsSettings").is_none()
            && cleared["tags"].get(names::TAG_DNS).is_none()
    );
    assert_eq!(
        ask(&own(&[80]), &[set]).unwrap().write,
        None,
        "absent: untouched"
    );
}

#[test]
fn az400_za104_a_public_ip_keeps_what_we_do_not_know_through_every_change() {
    let mut pip = managed();
    sprinkle(&mut pip, 0);
    pip["tags"]["team"] = json!("theirs");
    let foreign = |pip: &Value| {
        let ours = json!({names::TAG_DNS: null, names::TAG_SERVICE: null, "a": null});
        let mut pip = pip.clone();
        lay_over(&mut pip, &json!({"tags": ours}));
        let settings = pip["properties"]["dnsSettings"].take();
        lay_over(&mut pip, &json!({"properties": {"dnsSettings": null}}));
        (pip, settings)
    };
    let before = foreign(&pip).0;
    for annotation in [
        ("azure-dns-label-name", "web"),
        ("azure-pip-tags", "a=b"),
        ("azure-dns-label-name", "shop"),
    ] {
        let changed = ask(
            &annotated(own(&[80]), &[annotation]),
            std::slice::from_ref(&pip),
        );
        pip = changed.unwrap().write.unwrap();
        if annotation.1 == "web" {
            // What Azure adds, and what somebody else sets, beside the label.
            pip["properties"]["dnsSettings"]["fqdn"] = json!("web.westus.cloudapp.azure.com");
            pip["properties"]["dnsSettings"]["reverseFqdn"] = json!("web.example.org.");
        }
    }
    let (after, dns) = foreign(&pip);
    assert_eq!(after, before, "ZA-104");
    assert_eq!(dns["reverseFqdn"], json!("web.example.org."), "AZ-400");
    pip["tags"][names::TAG_SERVICE] = json!("a/b,default/test1");
    let Release::Keep(kept) = release(&settings(), &pip, &key()) else {
        panic!("others use it");
    };
    assert_eq!(foreign(&kept).0, before, "ZA-104");
}

#[test]
fn za61_za62_az042_az043_az180_one_of_a_user_is_bound_and_never_written() {
    let pip = json!({"id": "/x/mine", "name": "mine", "properties": {"ipAddress": "20.0.0.5"}});
    for annotation in [
        ("azure-load-balancer-ipv4", "20.0.0.5"),
        ("azure-pip-name", "Mine"),
    ] {
        let found = ask(
            &annotated(own(&[80]), &[annotation]),
            std::slice::from_ref(&pip),
        )
        .unwrap();
        assert_eq!(
            found,
            PublicIp {
                id: "/x/mine".to_owned(),
                write: None
            },
            "{annotation:?}"
        );
        let missing = ask(&annotated(own(&[80]), &[annotation]), &[]).unwrap_err();
        assert_eq!(missing.reason, "PublicIPNotFound");
    }
    assert_eq!(
        release(&settings(), &pip, &key()),
        Release::Nothing,
        "AZ-180"
    );
}

#[test]
fn az010_az043_one_of_the_peer_or_of_another_install_is_refused() {
    for tags in [
        json!({"k8s-azure-service": "a/b"}),
        json!({"service": "a/b"}),
        json!({"onehop-install": "other"}),
    ] {
        let pip = json!({"id": "/x/p", "name": "p", "tags": tags});
        let why = ask(&annotated(own(&[80]), &[("azure-pip-name", "p")]), &[pip]).unwrap_err();
        assert_eq!(why.reason, "PublicIPForeign");
    }
    let mut squatter = managed();
    squatter["tags"] = json!({});
    assert_eq!(
        ask(&own(&[80]), &[squatter]).unwrap_err().reason,
        "PublicIPForeign"
    );
}

#[test]
fn za43_az181_a_managed_one_goes_with_the_last_name_in_its_tag() {
    let mut pip = managed();
    assert_eq!(release(&settings(), &pip, &key()), Release::Delete);
    pip["tags"][names::TAG_SERVICE] = json!("a/b, default/test1");
    let Release::Keep(kept) = release(&settings(), &pip, &key()) else {
        panic!("ZI-26")
    };
    assert_eq!(kept["tags"][names::TAG_SERVICE], json!("a/b"));
    assert_eq!(
        release(&settings(), &pip, &ServiceKey::new("c", "d")),
        Release::Nothing
    );
}

#[test]
fn az315_zi23_a_service_that_gets_or_loses_a_family_keeps_the_address_of_the_other() {
    let of = |service: &ServiceSpec, family, all: &[Value]| {
        let spec = resolved(service);
        let wishes = annotations::of_options(&spec);
        let asker = Asker {
            service: &key(),
            spec: &spec,
            wishes: &wishes,
            zones: &[],
        };
        asker.public_ip(&settings(), all, family).unwrap()
    };
    let with = |families: &[IpFamily]| ServiceSpec {
        families: families.to_vec(),
        ..own(&[80])
    };
    for first in IpFamily::ALL {
        let second = if first == IpFamily::V4 {
            IpFamily::V6
        } else {
            IpFamily::V4
        };
        let single = of(&with(&[first]), first, &[]);
        let there = vec![stored(&single.write.unwrap(), &single.id)];
        let dual = with(&[first, second]);
        let kept = of(&dual, first, &there);
        assert_eq!(
            (&kept.id, kept.write),
            (&single.id, None),
            "AZ-315: {first}"
        );
        let new = of(&dual, second, &there);
        assert_ne!(new.id, single.id);
        let made = new.write.unwrap();
        assert_eq!(version_of(&made), second, "AZ-313");
        let both = [there, vec![stored(&made, &new.id)]].concat();
        assert_eq!(of(&dual, second, &both).write, None, "AZ-104");
        let back = of(&with(&[first]), first, &both);
        assert_eq!((back.id, back.write), (single.id, None), "AZ-315: {first}");
    }
    let six = json!({"id": "/x/p", "name": "p", "properties": {"publicIPAddressVersion": "IPv6"}});
    let why = ask(&annotated(own(&[80]), &[("azure-pip-name", "p")]), &[six]).unwrap_err();
    assert!(why.message.contains("IPv6"), "ZI-23: {}", why.message);
}

#[test]
fn az182_the_tag_of_a_shared_one_is_never_cut() {
    let mut pip = managed();
    let long: Vec<String> = (0..10)
        .map(|n| format!("namespace-{n}/service-name-{n}"))
        .collect();
    pip["tags"][names::TAG_SERVICE] = json!(long.join(","));
    pip["name"] = json!("shared");
    let service = annotated(own(&[80]), &[("azure-pip-name", "shared")]);
    assert_eq!(
        ask(&service, &[pip.clone()]).unwrap_err().reason,
        "PublicIPTagFull"
    );
    pip["tags"][names::TAG_SERVICE] = json!("a/b");
    let shared = ask(&service, &[pip]).unwrap().write.unwrap();
    assert_eq!(
        shared["tags"][names::TAG_SERVICE],
        json!("a/b,default/test1")
    );
}
