//! Whose objects are, what the policy allows, and what is built in.

use std::collections::BTreeSet;

use super::*;

/// Names after `stem` in a source text, as it writes them.
fn words_after(text: &str, stem: &str) -> BTreeSet<String> {
    let rest = text.split(stem).skip(1);
    let names = rest.map(|rest| {
        let name = rest.chars().take_while(char::is_ascii_alphanumeric);
        name.collect::<String>()
    });
    names
        .filter(|name| name.starts_with(char::is_uppercase))
        .collect()
}

#[test]
fn aws116_aws955_ai29_an_object_of_somebody_else_is_left_alone_and_its_owner_named() {
    let tags = |pairs: &[(&str, &str)]| -> names::Tags {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(pair).collect()
    };
    let ours = [
        (names::INSTALL, "i"),
        (names::SERVICE, "default/web"),
        (names::SERVICE_UID, "u"),
        (names::RESOURCE, "LoadBalancer"),
    ];
    let wanted = tags(&ours);
    let refused = |found: &names::Tags| check_owner("create", found, &wanted);
    let more = tags(&[&ours[..], &[("team", "edge")]].concat());
    assert_eq!(refused(&more), Ok(()), "AWS-116: ours, with more tags");
    let peers = tags(&[("service.k8s.aws/stack", "default/web")]);
    let error = refused(&peers).unwrap_err();
    assert_eq!(error.class, Class::Conflict, "AWS-116");
    assert!(
        error.answer.contains("service.k8s.aws/stack=default/web"),
        "AWS-955"
    );
    assert!(error.answer.contains("left alone"), "AI-29");
    let mut another = wanted.clone();
    another.insert(names::SERVICE_UID.to_owned(), "v".to_owned());
    assert!(refused(&another).is_err(), "AWS-116: of the Service before");
    let nobody = refused(&names::Tags::new()).unwrap_err();
    assert!(nobody.answer.contains("nobody"), "AWS-955");
}

#[test]
fn aws900_aws904_aws902_one_stack_of_http_and_tls_and_no_crate_of_ec2() {
    let manifest = include_str!("../../../../../../Cargo.toml");
    let reduced = r#"default-features = false, features = ["default-https-client", "rt-tokio"] }"#;
    for name in ["aws-config", "aws-sdk-elasticloadbalancingv2"] {
        let mut lines = manifest.lines();
        let line = lines
            .find(|l| l.starts_with(&format!("{name} = ")))
            .unwrap();
        assert!(line.ends_with(reduced), "AWS-900: {line}");
    }
    let lock = include_str!("../../../../../../Cargo.lock");
    let versions = |name: &str| -> Vec<&str> {
        let packages = lock.split("[[package]]\n");
        let stem = format!("name = \"{name}\"\nversion = \"");
        let of = packages.filter_map(|one| one.strip_prefix(stem.as_str()));
        of.filter_map(|rest| rest.split('"').next()).collect()
    };
    for (name, major) in [
        ("hyper", "1."),
        ("h2", "0.4."),
        ("rustls", "0.23."),
        ("http", "1."),
    ] {
        let all = versions(name);
        assert!(
            all.len() == 1 && all[0].starts_with(major),
            "AWS-900: {name} {all:?}"
        );
    }
    for none in ["aws-sdk-ec2", "aws-sdk-sso", "aws-sdk-ssooidc"] {
        assert!(versions(none).is_empty(), "AWS-904, AWS-900: {none}");
    }
    assert_eq!(
        versions("aws-sdk-elasticloadbalancingv2").len(),
        1,
        "AWS-902: pinned"
    );
    let toolchain = include_str!("../../../../../../rust-toolchain.toml");
    let channel = toolchain.split_once("channel = \"1.").unwrap().1;
    let minor: u32 = channel.split('.').next().unwrap().parse().unwrap();
    assert!(minor >= 95, "AWS-902: {minor}");
}

#[test]
fn aws909_core_and_what_decides_know_of_no_client() {
    let core = include_str!("../../../../../../core/Cargo.toml");
    for name in ["tokio", "reqwest", "hyper", "aws-", "axum"] {
        let mut lines = core.lines();
        assert!(!lines.any(|line| line.starts_with(name)), "AWS-909: {name}");
    }
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cloud/aws");
    let mut decide = vec![here.clone()];
    let mut read = 0;
    while let Some(path) = decide.pop() {
        if [here.join("client"), here.join("mod.rs")].contains(&path) || path.ends_with("tests") {
            continue;
        }
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap();
            decide.extend(entries.map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for word in [".await", "async fn", "aws::client", "aws_sdk"] {
            assert!(
                !text.contains(word),
                "AWS-909: {word} in {}",
                path.display()
            );
        }
        read += 1;
    }
    assert!(read > 20, "AWS-909: {read} files");
}

#[test]
fn aws842_the_iam_policy_has_every_action_that_is_called_and_no_other() {
    let policy = include_str!("../../../../../../charts/onehop/files/aws-iam-policy.json");
    let elb = [
        include_str!("../elb/balancers.rs"),
        include_str!("../elb/groups.rs"),
        include_str!("../elb/listeners.rs"),
        include_str!("../elb/reads.rs"),
        include_str!("../elb/tags.rs"),
    ];
    let called = words_after(&elb.concat(), "\"elasticloadbalancing:");
    let mut allowed = words_after(policy, "\"elasticloadbalancing:");
    // A word of a condition.
    allowed.remove("CreateAction");
    assert_eq!(called, allowed, "AWS-842");
    let ec2 = [include_str!("../ec2.rs"), include_str!("../make.rs")].concat();
    let mut allowed = words_after(policy, "\"ec2:");
    allowed.remove("CreateAction");
    // Tags of a create are an action of their own.
    assert!(allowed.remove("CreateTags"), "AWS-841");
    for action in allowed {
        assert!(
            ec2.contains(&format!("\"{action}\"")),
            "AWS-842: {action} is not called"
        );
    }
    for verb in [
        "Describe",
        "Create",
        "Delete",
        "Authorize",
        "Revoke",
        "Modify",
    ] {
        for called in words_after(&ec2, "\"")
            .iter()
            .filter(|name| name.starts_with(verb))
        {
            let known = policy.contains(&format!("\"ec2:{called}\""));
            assert!(known, "AWS-842: {called} is not in the policy");
        }
    }
}
