//! What EC2 refuses (fake-cloud.md section 14), by calls as they come after their signature was checked.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;

use super::*;
use crate::engine::{Config, Profile};
use crate::scale::Scale;

const START: Time = Time::from_millis(1_800_000_000_000);

/// An account with two security groups.
fn aws() -> Aws {
    let config = Config {
        profile: Profile::nlb(),
        seed: 1,
        scale: Scale::new(START, 1),
        ranges: Vec::new(),
    };
    let groups = ["sg-1", "sg-2"].map(|id| (id.to_owned(), BTreeMap::new()));
    let setup = Setup {
        region: "test-1".to_owned(),
        keys: BTreeMap::new(),
        vpc: "vpc-1".to_owned(),
        ranges: Vec::new(),
        subnets: Vec::new(),
        machines: Vec::new(),
        security_groups: groups.into(),
        addresses: Ipv4Net::new_assert(Ipv4Addr::new(198, 51, 100, 0), 24),
    };
    Aws::new(Cloud::new(config, Clock::fixed(START)), setup)
}

/// Asks for TCP 80 from a source, given as the rest of its parameter's name with its value.
fn authorize(aws: &Aws, source: &str) -> Result<(), String> {
    let rule = "IpPermissions.1";
    let body = format!(
        "Action=AuthorizeSecurityGroupIngress&GroupId=sg-1&{rule}.IpProtocol=tcp&{rule}.FromPort=80\
         &{rule}.ToPort=80&{rule}.{source}"
    );
    let form = Form::read(body.as_bytes()).map_err(|refusal| refusal.xml("ec2", "1"))?;
    let answer = aws.answer("ec2", &form);
    answer.map(drop).map_err(|refusal| refusal.xml("ec2", "1"))
}

fn rules(aws: &Aws) -> Vec<String> {
    let account = aws.account();
    account.security_groups["sg-1"]
        .rules
        .values()
        .cloned()
        .collect()
}

#[tokio::test(start_paused = true)]
async fn fct28_fc99a_the_same_rule_with_another_description_is_a_duplicate_and_changes_nothing() {
    let aws = aws();
    let range = "IpRanges.1.CidrIp=10.0.0.0/8&IpPermissions.1.IpRanges.1.Description";
    assert_eq!(authorize(&aws, &format!("{range}=one")), Ok(()));
    let refused = authorize(&aws, &format!("{range}=two")).unwrap_err();
    // FC-T28, FC-99a
    assert!(
        refused.contains("<Code>InvalidPermission.Duplicate</Code>"),
        "{refused}"
    );
    assert_eq!(rules(&aws), ["one"]);
    assert_eq!(authorize(&aws, "Groups.1.GroupId=sg-2"), Ok(()));
    assert_eq!(authorize(&aws, "IpRanges.1.CidrIp=10.1.0.0/16"), Ok(()));
    assert_eq!(
        rules(&aws).len(),
        3,
        "FC-99a: another source is another rule"
    );
}

#[tokio::test(start_paused = true)]
async fn fc99b_a_missing_action_is_named_and_changes_nothing() {
    let aws = aws();
    let only = ["elasticloadbalancing:DescribeLoadBalancers".to_owned()];
    aws.set_rights(Rights::Only(only.into()));
    let refused = authorize(&aws, "Groups.1.GroupId=sg-2").unwrap_err();
    let named = "ec2:AuthorizeSecurityGroupIngress";
    assert!(
        refused.contains("<Code>UnauthorizedOperation</Code>"),
        "FC-99b: {refused}"
    );
    assert!(refused.contains(named), "FC-99b: {refused}");
    assert_eq!(rules(&aws), Vec::<String>::new(), "FC-99b");
}
