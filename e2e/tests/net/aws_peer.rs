//! Beside a running aws-load-balancer-controller: what it has made, and its Service, stay byte for byte as they are while
//! ours live and go.

use crate::aws::{remove, serve, web, world};
use anyhow::{Context, Result};
use e2e_cloud::aws::Aws;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use onehop_e2e::world::{ServiceManifest, World};
use serde_json::json;

const ELB: &str = "elasticloadbalancing";
/// Description of the peer's rules on targets (AWS-122).
const RULE: &str = "elbv2.k8s.aws/targetGroupBinding=shared";
/// The machines' security group, where ours go as well.
const NODES: &str = "sg-0000nodes";
const FINALIZER: &str = "service.k8s.aws/resources";

/// The text of the first element of this name.
fn text(xml: &str, name: &str) -> Result<String> {
    let (_, rest) = xml
        .split_once(&format!("<{name}>"))
        .with_context(|| format!("no {name} in {xml}"))?;
    let (text, _) = rest.split_once('<').context("an element ends")?;
    Ok(text.to_owned())
}

/// Calls of another program of the account.
#[derive(Clone, Copy)]
struct Caller<'a>(&'a Aws);

impl Caller<'_> {
    fn call(self, service: &str, action: &str, parameters: &[(&str, &str)]) -> Result<String> {
        let answer = self.0.call(service, action, parameters);
        answer.map_err(|refused| anyhow::anyhow!("{action}: {refused}"))
    }

    /// Makes something with tags, whose parameters have this stem; gives its id.
    fn make(
        self,
        (service, action): (&str, &str),
        own: &[(&str, &str)],
        (stem, tags): (&str, &[(&str, &str)]),
        id: &str,
    ) -> Result<String> {
        let mut all: Vec<(String, String)> = Vec::new();
        let mut put = |key: &str, value: &str| all.push((key.to_owned(), value.to_owned()));
        for (key, value) in own {
            put(key, value);
        }
        for (n, (key, value)) in (1..).zip(tags) {
            put(&format!("{stem}.{n}.Key"), key);
            put(&format!("{stem}.{n}.Value"), value);
        }
        let all: Vec<_> = all.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        text(&self.call(service, action, &all)?, id)
    }

    fn security_group(self, name: &str, vpc: &str, tags: &[(&str, &str)]) -> Result<String> {
        let own = [
            ("GroupName", name),
            ("GroupDescription", "[k8s] of the peer"),
            ("VpcId", vpc),
        ];
        let tags = ("TagSpecification.1.Tag", tags);
        self.make(("ec2", "CreateSecurityGroup"), &own, tags, "groupId")
    }

    /// Something of `ELBv2` with the peer's tags for its part of the Service.
    fn of_stack(
        self,
        action: &str,
        own: &[(&str, &str)],
        resource: &str,
        id: &str,
    ) -> Result<String> {
        let tags = stack_tags(resource);
        self.make((ELB, action), own, ("Tags.member", &tags), id)
    }
}

/// The peer's tags of a part of the Service's load balancer (AWS-110).
fn stack_tags(resource: &str) -> [(&str, &str); 3] {
    [
        ("elbv2.k8s.aws/cluster", "e2e"),
        ("service.k8s.aws/stack", "default/theirs"),
        ("service.k8s.aws/resource", resource),
    ]
}

/// What aws-load-balancer-controller has for a Service `default/theirs` of its class in instance mode.
struct Peer<'a> {
    aws: Caller<'a>,
    balancer: String,
    group: String,
    listener: String,
    subnet: String,
}

impl<'a> Peer<'a> {
    /// Makes everything in the peer's order, with its names, tags and descriptions.
    fn make(aws: &'a Aws, machine: &str) -> Result<Self> {
        let aws = Caller(aws);
        let vpc = text(&aws.call("ec2", "DescribeVpcs", &[])?, "vpcId")?;
        let subnet = text(&aws.call("ec2", "DescribeSubnets", &[])?, "subnetId")?;
        let managed = stack_tags("ManagedLBSecurityGroup");
        let frontend = aws.security_group("k8s-default-theirs-0123456789", &vpc, &managed)?;
        let shared = [
            ("elbv2.k8s.aws/cluster", "e2e"),
            ("elbv2.k8s.aws/resource", "backend-sg"),
        ];
        let backend = aws.security_group("k8s-traffic-e2e-0123456789", &vpc, &shared)?;
        let rule = [
            ("GroupId", NODES),
            ("IpPermissions.1.IpProtocol", "tcp"),
            ("IpPermissions.1.FromPort", "30000"),
            ("IpPermissions.1.ToPort", "30085"),
            ("IpPermissions.1.Groups.1.GroupId", backend.as_str()),
            ("IpPermissions.1.Groups.1.Description", RULE),
        ];
        aws.call("ec2", "AuthorizeSecurityGroupIngress", &rule)?;
        let own = [
            ("Name", "k8s-default-theirs-aaaaaaaaaa"),
            ("Protocol", "TCP"),
            ("Port", "30080"),
            ("VpcId", vpc.as_str()),
            ("TargetType", "instance"),
        ];
        let resource = "default/theirs:80";
        let group = aws.of_stack("CreateTargetGroup", &own, resource, "TargetGroupArn")?;
        let own = [
            ("Name", "k8s-default-theirs-bbbbbbbbbb"),
            ("Type", "network"),
            ("Scheme", "internal"),
            ("Subnets.member.1", subnet.as_str()),
            ("SecurityGroups.member.1", frontend.as_str()),
            ("SecurityGroups.member.2", backend.as_str()),
        ];
        let resource = "LoadBalancer";
        let balancer = aws.of_stack("CreateLoadBalancer", &own, resource, "LoadBalancerArn")?;
        let own = [
            ("LoadBalancerArn", balancer.as_str()),
            ("Protocol", "TCP"),
            ("Port", "80"),
            ("DefaultActions.member.1.Type", "forward"),
            ("DefaultActions.member.1.TargetGroupArn", group.as_str()),
        ];
        let listener = aws.of_stack("CreateListener", &own, "80", "ListenerArn")?;
        let targets = [
            ("TargetGroupArn", group.as_str()),
            ("Targets.member.1.Id", machine),
            ("Targets.member.1.Port", "30080"),
        ];
        aws.call(ELB, "RegisterTargets", &targets)?;
        Ok(Self {
            aws,
            balancer,
            group,
            listener,
            subnet,
        })
    }

    /// Everything of the peer's as the APIs show it; states of targets change by themselves and are left out.
    fn picture(&self) -> Result<Vec<String>> {
        let aws = self.aws;
        let (lb, group) = (self.balancer.as_str(), self.group.as_str());
        let one_lb = [("LoadBalancerArns.member.1", lb)];
        let one_group = [("TargetGroupArns.member.1", group)];
        let all_tags = [
            ("ResourceArns.member.1", lb),
            ("ResourceArns.member.2", group),
            ("ResourceArns.member.3", self.listener.as_str()),
        ];
        let (of_lb, of_group) = ([("LoadBalancerArn", lb)], [("TargetGroupArn", group)]);
        let cluster = [
            ("Filter.1.Name", "tag:elbv2.k8s.aws/cluster"),
            ("Filter.1.Value.1", "e2e"),
        ];
        let mut all = vec![
            aws.call(ELB, "DescribeLoadBalancers", &one_lb)?,
            aws.call(ELB, "DescribeLoadBalancerAttributes", &of_lb)?,
            aws.call(ELB, "DescribeListeners", &of_lb)?,
            aws.call(ELB, "DescribeTargetGroups", &one_group)?,
            aws.call(ELB, "DescribeTargetGroupAttributes", &of_group)?,
            aws.call(ELB, "DescribeTags", &all_tags)?,
            aws.call("ec2", "DescribeSecurityGroups", &cluster)?,
        ];
        let health = aws.call(ELB, "DescribeTargetHealth", &of_group)?;
        all.push(format!(
            "target {}:{}",
            text(&health, "Id")?,
            text(&health, "Port")?
        ));
        let nodes = aws.call("ec2", "DescribeSecurityGroups", &[("GroupId.1", NODES)])?;
        let kept = nodes.contains(RULE) && nodes.contains("<fromPort>30000</fromPort>");
        all.push(format!("the rule on the machines: {kept}"));
        // Each answer has a request id of its own.
        let without_id = |text: &String| {
            let (head, tail) = text.split_once("equestId>").unwrap_or((text.as_str(), ""));
            let rest = tail.split_once('<').map_or("", |(_, rest)| rest);
            format!("{head}{rest}")
        };
        Ok(all.iter().map(without_id).collect())
    }
}

/// The peer's own Service, as it has left it.
async fn their_service(world: &World) -> Result<Api<Service>> {
    let manifest = ServiceManifest::load_balancer("theirs", "web")
        .with("loadBalancerClass", json!("service.k8s.aws/nlb"))
        .annotated(
            "service.beta.kubernetes.io/aws-load-balancer-scheme",
            "internal",
        );
    world.objects.apply(manifest.json()).await?;
    let services: Api<Service> = Api::namespaced(world.kube(), "default");
    let finalizer = json!({ "metadata": { "finalizers": [FINALIZER] } });
    let patch = Patch::Merge(finalizer);
    services
        .patch("theirs", &PatchParams::default(), &patch)
        .await?;
    Ok(services)
}

#[tokio::test(flavor = "multi_thread")]
async fn aws014_aws333_aws961_k05_what_a_running_peer_has_stays_as_it_is_while_ours_live_and_go()
-> Result<()> {
    let world = world().await?;
    let services = their_service(&world).await?;
    let peer = Peer::make(world.aws()?, &world.machine("a")?)?;
    let (before, service) = (peer.picture()?, services.get("theirs").await?);
    assert!(before.iter().any(|text| text.contains(&peer.subnet)));
    // Node mode: our rules go beside theirs on the machines' security group.
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]);
    serve(&world, web().with("ports", ports)).await?;
    assert_eq!(peer.picture()?, before, "AWS-014, K-05: beside ours");
    remove(&world, (1, 1, 3)).await?;
    assert_eq!(peer.picture()?, before, "AWS-014, K-05: after ours");
    let now = services.get("theirs").await?;
    assert_eq!(
        now.metadata.resource_version, service.metadata.resource_version,
        "AWS-014: its Service was written"
    );
    // Nobody is there to take the peer's finalizer away.
    let none = json!({ "metadata": { "finalizers": null } });
    let params = PatchParams::default();
    services
        .patch("theirs", &params, &Patch::Merge(none))
        .await?;
    services.delete("theirs", &DeleteParams::default()).await?;
    world.end().await
}
