//! The whole of both tables as `nft` shows it (S-202, S-204).

use onehop_node_agent::commit::Features;
use onehop_node_agent::table::class;
use onehop_node_agent::table::element::{Dataplane, ElementChange, Elements};
use onehop_node_agent::table::layout::VERSION;

use crate::world::{
    guarded, in_namespace, judged_by, judges, nft, options, representative, service,
};
use crate::{load, open_with};

fn list(beside: bool) -> String {
    let options = onehop_node_agent::table::layout::Options {
        beside_kube_proxy: beside,
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        ..options()
    };
    let mut kernel = open_with(&options, Features::detect());
    let mut all = representative();
    all.extend(guarded());
    load(&mut kernel, &all);
    nft(&["-j", "list", "ruleset"]);
    assert_eq!(
        nft(&["list", "tables"]),
        "table ip onehop\ntable ip6 onehop\n"
    );
    // The owner's program name differs from run to run, and so does what is left of a life time.
    let steady = |line: &str| {
        let line = line.split(" # progname").next().unwrap_or(line);
        let mut words = line.split(' ').peekable();
        let mut kept = Vec::new();
        while let Some(word) = words.next() {
            if word == "expires" {
                let end = words.next().unwrap_or_default();
                kept.extend(end.ends_with(',').then_some(","));
            } else {
                kept.push(word);
            }
        }
        kept.join(" ") + "\n"
    };
    let text: String = nft(&["list", "ruleset"]).lines().map(steady).collect();
    without_store(&text)
}

/// Leaves out the class chains that are in store for more than two endpoints: all are alike.
fn without_store(text: &str) -> String {
    let (mut kept, mut skipping) = (String::new(), false);
    for line in text.lines() {
        let chain = line.trim().strip_prefix("chain ");
        let class = chain.and_then(|rest| class::parse(rest.trim_end_matches(" {")));
        skipping |= class.is_some_and(|(_, count)| count > 2);
        let second_gap = line.is_empty() && kept.ends_with("\n\n");
        if !skipping && !second_gap {
            kept.push_str(line);
            kept.push('\n');
        }
        skipping &= line != "\t}";
    }
    kept
}

/// DI-42: an old `nft` lists it, in both of its forms.
#[test]
fn s202_a_populated_ruleset_is_listable() {
    in_namespace(|| insta::assert_snapshot!("beside", list(true)));
}

/// S-204: every version that is there, the oldest included, shows all of it as text and as JSON, and lists what else there
/// is; while the agent owns the tables, and after it has ended.
#[test]
fn s204_every_nft_lists_a_full_ruleset() {
    in_namespace(|| {
        nft(&["add", "table", "ip", "foreign"]);
        let mut kernel = open_with(&options(), Features::detect());
        let mut all = representative();
        all.extend(guarded());
        load(&mut kernel, &all);
        let mut kernel = Some(kernel);
        for state in ["owned", "orphan"] {
            for judge in judges() {
                let text = judged_by(&judge, &["list", "ruleset"]);
                for (id, set, _) in SETS {
                    let shown = text.matches(&format!("\t{set} {{")).count();
                    assert_eq!(shown, 2, "{id} by {judge}, {state}");
                }
                let element = "10.96.0.1 . tcp . 80 : goto n2";
                assert!(text.contains(element), "by {judge}, {state}: {text}");
                let json = judged_by(&judge, &["-j", "list", "ruleset"]);
                // 1.0.6 says before it that it has no JSON for the update of known clients.
                let json = json.lines().find(|line| line.starts_with('{'));
                let json: serde_json::Value = serde_json::from_str(json.unwrap()).unwrap();
                let objects = json["nftables"].as_array().unwrap().len();
                assert!(objects > 100, "by {judge}, {state}: {objects} objects");
                let tables = judged_by(&judge, &["list", "tables"]);
                for table in ["ip foreign", "ip onehop", "ip6 onehop"] {
                    assert!(tables.contains(table), "by {judge}, {state}: {tables}");
                }
            }
            drop(kernel.take());
        }
    });
}

#[test]
fn s128_s26_alone_the_checks_stand_at_0_and_the_service_range_is_closed() {
    in_namespace(|| {
        let (beside, alone) = (list(true), list(false));
        let new = |line: &&str| !beside.contains(*line);
        let added: Vec<&str> = alone.lines().filter(new).map(str::trim).collect();
        assert_eq!(
            added,
            [
                "ip daddr @other-cluster-ips return",
                "ip daddr 10.96.0.0/16 drop",
                "type filter hook input priority filter; policy accept;",
                "type filter hook forward priority filter; policy accept;",
                "type filter hook output priority filter; policy accept;",
                "type filter hook input priority filter; policy accept;",
                "type filter hook forward priority filter; policy accept;",
                "type filter hook output priority filter; policy accept;",
            ]
        );
        assert!(
            beside.contains("hook forward priority -115;")
                && beside.contains("hook output priority -95;")
        );
    });
}

/// Rows of section 12.3: name, and the type as `nft` shows it in the table for IPv4.
const SETS: [(&str, &str, &str); 25] = [
    ("S-212", "set cluster-ips", "ipv4_addr"),
    ("S-289", "set other-cluster-ips", "ipv4_addr"),
    ("S-213", "set nodeport-ips", "ipv4_addr"),
    ("S-214", "set masq-frontends", "K"),
    ("S-214", "set masq-nodeports", "P"),
    ("S-215", "set etp-local", "K"),
    ("S-215", "set etp-local-nodeports", "P"),
    ("S-216", "map service-ips", "K : verdict"),
    ("S-217", "map service-ips-local", "K : verdict"),
    ("S-218", "map service-nodeports", "P : verdict"),
    ("S-218", "map service-nodeports-local", "P : verdict"),
    (
        "S-219",
        "map endpoints",
        "K . mark : ipv4_addr . inet_service",
    ),
    (
        "S-220",
        "map nodeport-endpoints",
        "P . mark : ipv4_addr . inet_service",
    ),
    ("S-221", "map no-endpoint-services", "K : verdict"),
    ("S-221", "map no-endpoint-nodeports", "P : verdict"),
    ("S-222", "set hairpin", "ipv4_addr . ipv4_addr"),
    ("S-223", "set source-guarded", "K"),
    (
        "S-224",
        "set source-allow",
        "K . ipv4_addr\n\t\tflags interval",
    ),
    ("S-225", "map affinity", "K : verdict"),
    ("S-225", "map affinity-local", "K : verdict"),
    ("S-225", "map affinity-nodeports", "P : verdict"),
    ("S-225", "map affinity-nodeports-local", "P : verdict"),
    ("S-211", "map affinity-record", "K : verdict"),
    // The window's elements end by themselves, also without an agent.
    ("S-423", "map window", "K : verdict\n\t\tflags timeout"),
    (
        "S-423",
        "map window-nodeports",
        "P : verdict\n\t\tflags timeout",
    ),
];

#[test]
fn s211_every_set_has_the_key_and_data_of_its_row_and_holds_elements() {
    in_namespace(|| {
        let text = list(true);
        for (id, set, fields) in SETS {
            let fields = fields
                .replace('K', "ipv4_addr . inet_proto . inet_service")
                .replace('P', "inet_proto . inet_service");
            for fields in [fields.clone(), fields.replace("ipv4", "ipv6")] {
                let wanted = format!("\t{set} {{\n\t\ttype {fields}\n\t\telements = {{ ");
                assert!(text.contains(&wanted), "{id}: {wanted}\n{text}");
            }
        }
    });
}

#[test]
fn s67_s68_s263_hooks_stand_where_others_expect_them_and_the_mark_is_cleared_where_it_is_used() {
    in_namespace(|| {
        let text = list(true);
        for (id, wanted) in [
            ("S-68", "type nat hook prerouting priority dstnat;"),
            ("S-68", "type nat hook output priority -100;"),
            ("S-68", "type nat hook postrouting priority srcnat;"),
            ("S-70", "type filter hook prerouting priority dstnat - 10;"),
            // DI-51
            (
                "S-67",
                "meta mark & 0x00004000 == 0x00004000 meta mark set meta mark & 0xffffbfff goto masquerade",
            ),
            // Both sides of the node ports, either by its share.
            (
                "S-34",
                "numgen random mod 2 0 masquerade to :1024-29999 fully-random\n\t\tmasquerade to :32768-65535 fully-random\n",
            ),
            // S-423: what is in the window goes to its own chain for the number of endpoints.
            ("S-423", ". tcp . 8082 timeout 13m : goto w1 }"),
            ("S-423", "tcp . 30084 timeout 13m : goto npw1 }"),
            ("S-263", "flags owner"),
            ("S-263", &format!("comment \"{VERSION}\"")),
        ] {
            assert_eq!(text.matches(wanted).count(), 2, "{id}: {wanted}\n{text}");
        }
        // S-97, DI-13, DI-14: no rule of ours drops what connection tracking calls invalid.
        assert!(!text.contains("invalid"), "S-97");
        // S-27: node ports on loopback would need it, and it is never set.
        assert!(!text.contains("route_localnet"));
    });
}

/// Names of everything in both tables but the elements.
fn objects() -> Vec<String> {
    let text = nft(&["list", "ruleset"]);
    let is_object = |line: &&str| {
        let line = line.trim();
        line.ends_with('{') || (!line.contains(" . ") && line.starts_with("jump"))
    };
    text.lines().filter(is_object).map(str::to_owned).collect()
}

#[test]
fn s200_services_and_endpoints_are_elements_and_nothing_else() {
    in_namespace(|| {
        let mut kernel = open_with(&options(), Features::detect());
        load(&mut kernel, &service("10.96.0.1", &["10.244.1.1"]));
        let before = objects();
        let mut wanted = Elements::new();
        for n in 1..=100 {
            let pods: Vec<String> = (0..=n % 16).map(|m| format!("10.244.{n}.{m}")).collect();
            let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
            wanted.extend(service(&format!("10.96.1.{n}"), &pods));
            wanted.extend(service(&format!("fd00:96::1:{n:x}"), &["fd00:244::1"]));
        }
        let held = kernel.read_back().unwrap().unwrap();
        kernel
            .commit(&ElementChange::between(&held, &wanted))
            .unwrap();
        // DI-43, DI-44: cost follows from elements, never from chains or rules. S-230: classes up to 16 are there from the start.
        // S-283: nor do more of them put anything into the way of a packet.
        assert_eq!(objects(), before, "S-200, S-283");
        assert_eq!(kernel.read_back().unwrap(), Some(wanted));
    });
}
