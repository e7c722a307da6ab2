//! The check of rights at start (AWS-844): one small call of each read that is in use, and a dry run of each call of EC2.
//! Writes of `ELBv2` have no dry run: a right of theirs that is missing is named at its first use (AWS-843).

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};

use super::Client;
use super::ec2::Form;
use super::error::is_denied;
use super::throttle::{Family, Turn};
use crate::cloud::CloudError;
use crate::plan::MissingRight;

/// A security group that is not there.
const NO_GROUP: &str = "sg-00000000000000000";

type Asked<'a> = BoxFuture<'a, Result<(), CloudError>>;

impl Client {
    /// The rights that are missing, each with what was answered. What is wrong otherwise is none of this check's business.
    pub async fn missing_rights(&self) -> Vec<MissingRight> {
        let mut asked = self.reads();
        asked.extend(self.dry_runs());
        let answers = join_all(asked).await;
        let denied = answers
            .into_iter()
            .filter_map(Result::err)
            .filter(is_denied);
        // One call may need several rights: the refusal names the one that is missing.
        let missing = denied.map(|error| MissingRight {
            action: named_action(&error.answer).unwrap_or(error.tried),
            answer: error.answer,
        });
        missing.collect()
    }

    /// Reads of `ELBv2`, of objects that are not there: rights are looked at first.
    fn reads(&self) -> Vec<Asked<'_>> {
        let (elb, throttle) = (&self.elb, &self.throttle);
        let balancer = || self.no_such("loadbalancer/net/onehop-check/0000000000000000");
        let group = || self.no_such("targetgroup/onehop-check/0000000000000000");
        let listener = self.no_such("listener/net/onehop-check/0000000000000000/0000000000000000");
        let of = [balancer(), balancer(), balancer(), balancer()];
        let [itself, listeners, attributes, tags] = of;
        let [one, of_group, targets] = [group(), group(), group()];
        vec![
            async move { elb.balancer(throttle, &itself).await.map(drop) }.boxed(),
            async move { elb.listeners(throttle, &listeners).await.map(drop) }.boxed(),
            async move { elb.more_certificates(throttle, &listener).await.map(drop) }.boxed(),
            async move {
                elb.balancer_attributes(throttle, &attributes)
                    .await
                    .map(drop)
            }
            .boxed(),
            async move { elb.tags(throttle, &[tags]).await.map(drop) }.boxed(),
            async move { elb.one_group(throttle, &one).await }.boxed(),
            async move { elb.group_attributes(throttle, &of_group).await.map(drop) }.boxed(),
            async move {
                throttle.pass(Family::Describe, Turn::Other).await;
                elb.targets(throttle, &targets).await.map(drop)
            }
            .boxed(),
        ]
    }

    /// Calls of EC2 with `DryRun`, which answers what rights allow and does nothing.
    fn dry_runs(&self) -> Vec<Asked<'_>> {
        let of = |pairs: &[(&str, &str)]| -> Form {
            let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            pairs
                .iter()
                .chain(&[("DryRun", "true")])
                .map(pair)
                .collect()
        };
        let rule = of(&[
            ("GroupId", NO_GROUP),
            ("IpPermissions.1.IpProtocol", "tcp"),
            ("IpPermissions.1.FromPort", "1"),
            ("IpPermissions.1.ToPort", "1"),
            ("IpPermissions.1.IpRanges.1.CidrIp", "192.0.2.0/32"),
        ]);
        let create = of(&[
            ("GroupName", "onehop-check"),
            ("GroupDescription", "onehop: check of rights"),
            ("VpcId", &self.vpc),
            ("TagSpecification.1.ResourceType", "security-group"),
            (
                "TagSpecification.1.Tag.1.Key",
                crate::cloud::aws::names::INSTALL,
            ),
            ("TagSpecification.1.Tag.1.Value", self.install.as_str()),
        ]);
        let calls = [
            ("DescribeVpcs", of(&[])),
            ("DescribeSubnets", of(&[])),
            ("DescribeSecurityGroups", of(&[])),
            ("DescribeNetworkInterfaces", of(&[])),
            ("CreateSecurityGroup", create),
            ("DeleteSecurityGroup", of(&[("GroupId", NO_GROUP)])),
            ("AuthorizeSecurityGroupIngress", rule.clone()),
            ("RevokeSecurityGroupIngress", rule),
        ];
        let dry = |(action, form): (&'static str, Form)| {
            async move { self.ec2.ask(&self.throttle, action, &form).await.map(drop) }.boxed()
        };
        calls.into_iter().map(dry).collect()
    }

    /// ARN of something that is not there, in the region's partition (AWS-845).
    fn no_such(&self, what: &str) -> String {
        let region = &self.region;
        let partition = if region.starts_with("cn-") {
            "aws-cn"
        } else if region.starts_with("us-gov-") {
            "aws-us-gov"
        } else {
            "aws"
        };
        format!("arn:{partition}:elasticloadbalancing:{region}:000000000000:{what}")
    }
}

/// The action that a refusal says is missing: `… is not authorized to perform: ec2:CreateTags on resource: …`.
fn named_action(answer: &str) -> Option<String> {
    let (_, rest) = answer.split_once("to perform: ")?;
    let of_action = |c: char| c.is_ascii_alphanumeric() || c == ':' || c == '-';
    let action: String = rest.chars().take_while(|c| of_action(*c)).collect();
    action.contains(':').then_some(action)
}
