//! Rules that are switched to another pool (AZ-253).

use super::*;
use crate::cloud::azure::document::RULES;
use crate::cloud::azure::model::{Met, Roster, Standing};

fn asking(intent: &Intent) -> Roster {
    let met = Met {
        uids: [intent.uid.clone()].into(),
        spec: Some(Arc::new(intent.spec.clone())),
    };
    Roster {
        services: [(key(), met)].into(),
    }
}

/// The steps of one plan, with the rules of the security group as they are.
fn steps(cloud: &mut Cloud, intent: &Intent) -> Vec<String> {
    let mut seen = cloud.seen(NOW);
    seen.asks = true;
    seen.standing = Arc::new(Standing::new(asking(intent)));
    let plan = plan(&settings(), &key(), Some(intent), &seen, NOW);
    let steps: Vec<AzureStep> = plan.steps().cloned().collect();
    for step in &steps {
        if matches!(step, AzureStep::PutRules { .. }) {
            let demands = crate::cloud::azure::demands::demands(
                &settings(),
                &asking(intent),
                &cloud.documents,
            );
            let group = cloud.documents.security.take().unwrap();
            let written = crate::cloud::azure::security::desired(&settings(), &group, &demands);
            cloud.documents.security = Some(written.unwrap());
        } else {
            cloud.carry_out(step);
        }
    }
    steps.iter().map(ToString::to_string).collect()
}

/// Where the rules let the Internet in: destinations and ports.
fn let_in(cloud: &Cloud) -> Vec<String> {
    let group = cloud.documents.security.as_ref().unwrap();
    let of = |rule: &Value| {
        let p = &rule["properties"];
        format!(
            "{} {}",
            p["destinationAddressPrefixes"], p["destinationPortRanges"]
        )
    };
    let mut all: Vec<String> = children(group, "securityRules").iter().map(of).collect();
    all.sort();
    all
}

#[test]
fn az253_az109_az212_a_switch_of_mode_lets_in_before_and_shuts_out_after() {
    let vip = intent(&own(&[80]), &[(1, READY)], &[(1, READY)]);
    let by_pods = annotated(own(&[80]), &[("onehop.dev/target", "pod")]);
    let pods = intent(&by_pods, &[(1, READY)], &[(1, READY)]);
    let mut cloud = Cloud::default();
    cloud.documents.security = Some(json!({"properties": {"securityRules": []}}));
    for _ in 0..4 {
        steps(&mut cloud, &vip);
    }
    let before = r#"["20.0.0.1"] ["80"]"#.to_owned();
    let after = r#"["10.1.0.0/16"] ["8080"]"#.to_owned();
    assert_eq!(let_in(&cloud), std::slice::from_ref(&before));
    let used = |cloud: &Cloud| {
        let rule = &children(&cloud.documents.balancers[&Kind::External], RULES)[0];
        referred(rule, "backendAddressPool").unwrap().to_owned()
    };
    let first = steps(&mut cloud, &pods);
    assert!(
        !first.iter().any(|step| step.starts_with("write part")),
        "{first:?}"
    );
    assert_eq!(used(&cloud), "demo-azure", "AZ-109: not before");
    assert_eq!(
        cloud.members("atest1-pods-1"),
        ["10.1.0.1"],
        "AZ-253: filled"
    );
    assert_eq!(
        let_in(&cloud),
        [after.clone(), before],
        "let in before the switch, and still where it is"
    );
    let second = steps(&mut cloud, &pods);
    assert_eq!(
        second,
        [
            "write part atest1 of External with 0 members",
            "write security rules with atest1"
        ],
        "AZ-212: the rest goes after the switch"
    );
    assert_eq!(used(&cloud), "atest1-pods-1");
    assert_eq!(let_in(&cloud), [after]);
    assert_eq!(steps(&mut cloud, &pods), [""; 0], "AZ-104");
}
