//! What aws-load-balancer-controller leaves in the account and in the cluster for a Service of its class, by the rules of
//! the specification (AWS-100 to AWS-106, AWS-110, AWS-111, AWS-122, AWS-123): written here on its own, not with our code.

use std::collections::BTreeMap;

use e2e_cloud::aws::Aws;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::cluster::read;
use crate::world::{CLUSTER, PEER_CLASS, World, machine};

const ELB: &str = "elasticloadbalancing";
/// Its finalizer on Services.
pub(crate) const FINALIZER: &str = "service.k8s.aws/resources";
/// Its finalizer on bindings.
const BINDING_FINALIZER: &str = "elbv2.k8s.aws/resources";
/// Description of its rules on targets.
const RULE: &str = "elbv2.k8s.aws/targetGroupBinding=shared";
/// The machines' security group.
const NODES: &str = "sg-0000nodes";

/// What it has for one Service.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) balancer: String,
    pub(crate) group: String,
    pub(crate) listener: String,
    pub(crate) frontend: String,
    pub(crate) backend: String,
    /// How its targets are registered, and on which port.
    pub(crate) bound: (&'static str, u16),
}

/// How its targets are registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Targets {
    Instances,
    Pods,
}

/// The kind of its bindings.
pub(crate) fn bindings_kind() -> CustomResourceDefinition {
    read(json!({
        "metadata": { "name": "targetgroupbindings.elbv2.k8s.aws" },
        "spec": {
            "group": "elbv2.k8s.aws", "scope": "Namespaced",
            "names": { "kind": "TargetGroupBinding", "plural": "targetgroupbindings", "singular": "targetgroupbinding" },
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    }))
}

/// The text of the first element of this name.
fn text(xml: &str, name: &str) -> String {
    let (_, rest) = xml
        .split_once(&format!("<{name}>"))
        .unwrap_or_else(|| panic!("no {name} in {xml}"));
    rest.split_once('<').unwrap().0.to_owned()
}

/// A call of its own.
pub(crate) fn call(aws: &Aws, service: &str, action: &str, own: &[(&str, &str)]) -> String {
    let answer = aws.call(service, action, own);
    answer.unwrap_or_else(|refused| panic!("{action}: {refused}"))
}

/// A call with tags, whose parameters have this stem.
fn tagged(
    aws: &Aws,
    (service, action): (&str, &str),
    own: &[(&str, &str)],
    (stem, tags): (&str, &[(&str, &str)]),
) -> String {
    let mut all: Vec<(String, String)> = own
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    for (n, (key, value)) in (1..).zip(tags) {
        all.push((format!("{stem}.{n}.Key"), (*key).to_owned()));
        all.push((format!("{stem}.{n}.Value"), (*value).to_owned()));
    }
    let all: Vec<_> = all.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    call(aws, service, action, &all)
}

/// AWS-100: the first ten digits of the hash over all inputs, without separators.
fn ten(inputs: &[&str]) -> String {
    let digest = Sha256::digest(inputs.concat());
    let digits: Vec<_> = digest
        .iter()
        .take(5)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    digits.concat()
}

/// One Service's objects while they are made.
#[derive(Clone, Copy)]
struct Stack<'a> {
    aws: &'a Aws,
    name: &'a str,
    uid: &'a str,
}

impl Stack<'_> {
    fn named(self, inputs: &[&str]) -> String {
        let short: String = self
            .name
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(8)
            .collect();
        format!("k8s-default-{short}-{}", ten(inputs))
    }

    /// A call with its tags for a part of the Service.
    fn make(self, call: (&str, &str), own: &[(&str, &str)], stem: &str, resource: &str) -> String {
        let stack = format!("default/{}", self.name);
        let tags = [
            ("elbv2.k8s.aws/cluster", CLUSTER),
            ("service.k8s.aws/stack", &stack),
            ("service.k8s.aws/resource", resource),
        ];
        tagged(self.aws, call, own, (stem, &tags))
    }

    fn of_elb(self, action: &str, own: &[(&str, &str)], resource: &str, id: &str) -> String {
        text(&self.make((ELB, action), own, "Tags.member", resource), id)
    }

    fn frontend(self) -> String {
        let name = self.named(&[CLUSTER, self.name, "default", self.uid]);
        let own = [
            ("GroupName", name.as_str()),
            (
                "GroupDescription",
                "[k8s] Managed SecurityGroup for LoadBalancer",
            ),
            ("VpcId", "vpc-1"),
        ];
        let create = ("ec2", "CreateSecurityGroup");
        let made = self.make(
            create,
            &own,
            "TagSpecification.1.Tag",
            "ManagedLBSecurityGroup",
        );
        let id = text(&made, "groupId");
        let open = [
            ("GroupId", id.as_str()),
            ("IpPermissions.1.IpProtocol", "tcp"),
            ("IpPermissions.1.FromPort", "80"),
            ("IpPermissions.1.ToPort", "80"),
            ("IpPermissions.1.IpRanges.1.CidrIp", "0.0.0.0/0"),
        ];
        call(self.aws, "ec2", "AuthorizeSecurityGroupIngress", &open);
        id
    }

    fn reach(self, backend: &str, port: &str) {
        let rule = [
            ("GroupId", NODES),
            ("IpPermissions.1.IpProtocol", "tcp"),
            ("IpPermissions.1.FromPort", port),
            ("IpPermissions.1.ToPort", port),
            ("IpPermissions.1.Groups.1.GroupId", backend),
            ("IpPermissions.1.Groups.1.Description", RULE),
        ];
        call(self.aws, "ec2", "AuthorizeSecurityGroupIngress", &rule);
    }

    fn group(self, word: &str, port: &str) -> String {
        let name = self.named(&[CLUSTER, self.uid, port, "80", word, "TCP", "TCP", "10"]);
        let own = [
            ("Name", name.as_str()),
            ("Protocol", "TCP"),
            ("Port", port),
            ("VpcId", "vpc-1"),
            ("TargetType", word),
            ("IpAddressType", "ipv4"),
            ("HealthCheckProtocol", "TCP"),
            ("HealthCheckPort", "traffic-port"),
            ("HealthCheckIntervalSeconds", "10"),
            ("HealthCheckTimeoutSeconds", "10"),
            ("HealthyThresholdCount", "3"),
            ("UnhealthyThresholdCount", "3"),
        ];
        let resource = format!("default/{}:80", self.name);
        let arn = self.of_elb("CreateTargetGroup", &own, &resource, "TargetGroupArn");
        let proxy = [
            ("TargetGroupArn", arn.as_str()),
            ("Attributes.member.1.Key", "proxy_protocol_v2.enabled"),
            ("Attributes.member.1.Value", "false"),
        ];
        call(self.aws, ELB, "ModifyTargetGroupAttributes", &proxy);
        arn
    }

    fn balancer(self, frontend: &str, backend: &str) -> String {
        let name = self.named(&[CLUSTER, self.uid, "internal"]);
        let own = [
            ("Name", name.as_str()),
            ("Type", "network"),
            ("Scheme", "internal"),
            ("Subnets.member.1", "subnet-1"),
            ("SecurityGroups.member.1", frontend),
            ("SecurityGroups.member.2", backend),
        ];
        self.of_elb(
            "CreateLoadBalancer",
            &own,
            "LoadBalancer",
            "LoadBalancerArn",
        )
    }

    fn listener(self, balancer: &str, group: &str) -> String {
        let own = [
            ("LoadBalancerArn", balancer),
            ("Protocol", "TCP"),
            ("Port", "80"),
            ("DefaultActions.member.1.Type", "forward"),
            ("DefaultActions.member.1.TargetGroupArn", group),
        ];
        self.of_elb("CreateListener", &own, "80", "ListenerArn")
    }
}

impl Peer {
    /// Changes how often its targets are checked, in seconds.
    pub(crate) fn checks_every(&self, aws: &Aws, seconds: u32) {
        let seconds = seconds.to_string();
        let change = [
            ("TargetGroupArn", self.group.as_str()),
            ("HealthCheckIntervalSeconds", &seconds),
        ];
        call(aws, ELB, "ModifyTargetGroup", &change);
    }

    /// Makes a Service of its class and everything of it, in its order, as it stands when it has settled.
    pub(crate) async fn serves(world: &World, name: &str, targets: Targets) -> Self {
        let word = match targets {
            Targets::Instances => "instance",
            Targets::Pods => "ip",
        };
        let annotations = json!({
            "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": word,
            "service.beta.kubernetes.io/aws-load-balancer-scheme": "internal",
        });
        let service = world.service(name, PEER_CLASS, annotations).await;
        let node_port = service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0]
            .node_port
            .unwrap();
        let (port, ids) = match targets {
            Targets::Instances => (
                u16::try_from(node_port).unwrap(),
                (1..=3).map(machine).collect::<Vec<_>>(),
            ),
            Targets::Pods => {
                world.endpoints(name, &[1, 2, 3]).await;
                (8080, (1..=3).map(|n| format!("10.244.1.{n}")).collect())
            }
        };
        let peer = Self::account(
            &world.aws,
            name,
            service.metadata.uid.as_deref().unwrap(),
            (word, port, &ids),
        );
        peer.cluster(world, &service, (word, port)).await;
        peer
    }

    /// Its objects in the account.
    fn account(
        aws: &Aws,
        name: &str,
        uid: &str,
        (word, number, ids): (&'static str, u16, &[String]),
    ) -> Self {
        let port = number.to_string();
        let backend = Self::shared(aws);
        let stack = Stack { aws, name, uid };
        let frontend = stack.frontend();
        stack.reach(&backend, &port);
        let group = stack.group(word, &port);
        let balancer = stack.balancer(&frontend, &backend);
        let listener = stack.listener(&balancer, &group);
        for id in ids {
            let one = [
                ("TargetGroupArn", group.as_str()),
                ("Targets.member.1.Id", id.as_str()),
                ("Targets.member.1.Port", port.as_str()),
            ];
            call(aws, ELB, "RegisterTargets", &one);
        }
        Self {
            name: name.to_owned(),
            balancer,
            group,
            listener,
            frontend,
            backend,
            bound: (word, number),
        }
    }

    /// Its shared security group, made with the first Service (AWS-104, AWS-111).
    fn shared(aws: &Aws) -> String {
        let name = format!("k8s-traffic-{CLUSTER}-{}", ten(&[CLUSTER]));
        let by_tag = [
            ("Filter.1.Name", "tag:elbv2.k8s.aws/resource"),
            ("Filter.1.Value.1", "backend-sg"),
        ];
        let there = call(aws, "ec2", "DescribeSecurityGroups", &by_tag);
        if there.contains("<groupId>") {
            return text(&there, "groupId");
        }
        let own = [
            ("GroupName", name.as_str()),
            (
                "GroupDescription",
                "[k8s] Shared Backend SecurityGroup for LoadBalancer",
            ),
            ("VpcId", "vpc-1"),
        ];
        let tags = [
            ("elbv2.k8s.aws/cluster", CLUSTER),
            ("elbv2.k8s.aws/resource", "backend-sg"),
        ];
        let made = tagged(
            aws,
            ("ec2", "CreateSecurityGroup"),
            &own,
            ("TagSpecification.1.Tag", &tags),
        );
        text(&made, "groupId")
    }

    /// Its marks in the cluster: finalizer, published name, binding.
    async fn cluster(&self, world: &World, service: &Service, (word, port): (&str, u16)) {
        let services = world.api::<Service>();
        let params = PatchParams::default();
        let finalizer = Patch::Merge(json!({ "metadata": { "finalizers": [FINALIZER] } }));
        services
            .patch(&self.name, &params, &finalizer)
            .await
            .unwrap();
        let host = self.host(&world.aws);
        let ports = json!([{ "port": 80, "protocol": "TCP" }]);
        let status = json!({ "status": { "loadBalancer": { "ingress": [{ "hostname": host, "ports": ports }] } } });
        services
            .patch_status(&self.name, &params, &Patch::Merge(status))
            .await
            .unwrap();
        self.bind(world, service, (word, port)).await;
    }

    /// Its binding, as it makes it again after a hand-back.
    pub(crate) async fn bind(&self, world: &World, service: &Service, (word, port): (&str, u16)) {
        let uid = service.metadata.uid.as_deref().unwrap();
        let short: String = self
            .name
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(8)
            .collect();
        let hash = ten(&[
            CLUSTER,
            uid,
            &port.to_string(),
            "80",
            word,
            "TCP",
            "TCP",
            "10",
        ]);
        let binding: DynamicObject = read(json!({
            "apiVersion": "elbv2.k8s.aws/v1beta1", "kind": "TargetGroupBinding",
            "metadata": {
                "name": format!("k8s-default-{short}-{hash}"), "finalizers": [BINDING_FINALIZER],
                "labels": { "service.k8s.aws/stack-namespace": "default", "service.k8s.aws/stack-name": self.name },
                "annotations": { "elbv2.k8s.aws/checkpoint": "c", "elbv2.k8s.aws/checkpoint-timestamp": "1" },
            },
            "spec": {
                "targetGroupARN": self.group, "targetType": word,
                "serviceRef": { "name": self.name, "port": 80 },
            },
        }));
        bindings(world)
            .create(&PostParams::default(), &binding)
            .await
            .unwrap();
    }

    /// The published name.
    fn host(&self, aws: &Aws) -> String {
        let one = [("LoadBalancerArns.member.1", self.balancer.as_str())];
        text(&call(aws, ELB, "DescribeLoadBalancers", &one), "DNSName").to_ascii_lowercase()
    }

    /// Security groups of the load balancer.
    pub(crate) fn security_groups(&self, aws: &Aws) -> Vec<String> {
        let one = [("LoadBalancerArns.member.1", self.balancer.as_str())];
        let xml = call(aws, ELB, "DescribeLoadBalancers", &one);
        let list = xml
            .split_once("<SecurityGroups>")
            .map_or("", |(_, rest)| rest);
        let list = list
            .split_once("</SecurityGroups>")
            .map_or("", |(list, _)| list);
        let ids = list.split("<member>").skip(1);
        ids.map(|part| part.split_once('<').unwrap().0.to_owned())
            .collect()
    }

    /// Its registered targets by id, whatever their state.
    pub(crate) fn registered(&self, aws: &Aws) -> Vec<String> {
        let xml = call(
            aws,
            ELB,
            "DescribeTargetHealth",
            &[("TargetGroupArn", &self.group)],
        );
        let mut ids: Vec<_> = xml
            .split("<Id>")
            .skip(1)
            .map(|p| p.split_once('<').unwrap().0.to_owned())
            .collect();
        ids.sort();
        ids
    }

    /// Everything of it as the APIs show it; states of targets change by themselves and are left out.
    pub(crate) fn picture(&self, aws: &Aws) -> Vec<String> {
        let (lb, group) = (self.balancer.as_str(), self.group.as_str());
        let of_lb = [("LoadBalancerArn", lb)];
        let of_group = [("TargetGroupArn", group)];
        let all_tags = [
            ("ResourceArns.member.1", lb),
            ("ResourceArns.member.2", group),
            ("ResourceArns.member.3", self.listener.as_str()),
        ];
        let mut all = vec![
            call(
                aws,
                ELB,
                "DescribeLoadBalancers",
                &[("LoadBalancerArns.member.1", lb)],
            ),
            call(aws, ELB, "DescribeLoadBalancerAttributes", &of_lb),
            call(aws, ELB, "DescribeListeners", &of_lb),
            call(
                aws,
                ELB,
                "DescribeTargetGroups",
                &[("TargetGroupArns.member.1", group)],
            ),
            call(aws, ELB, "DescribeTargetGroupAttributes", &of_group),
            call(aws, ELB, "DescribeTags", &all_tags),
            call(aws, "ec2", "DescribeSecurityGroups", &[]),
        ];
        all.extend(self.registered(aws));
        // Each answer has a request id of its own.
        let without_id = |text: &String| {
            let (head, tail) = text.split_once("equestId>").unwrap_or((text.as_str(), ""));
            let rest = tail.split_once('<').map_or("", |(_, rest)| rest);
            format!("{head}{rest}")
        };
        all.iter().map(without_id).collect()
    }
}

/// Tags of an object of `ELBv2`.
pub(crate) fn tags(aws: &Aws, arn: &str) -> BTreeMap<String, String> {
    let xml = call(aws, ELB, "DescribeTags", &[("ResourceArns.member.1", arn)]);
    let mut keys = xml.split("<Key>").skip(1);
    let mut all = BTreeMap::new();
    for part in keys.by_ref() {
        let key = part.split_once('<').unwrap().0.to_owned();
        all.insert(key, text(part, "Value"));
    }
    all
}

/// Its bindings in the namespace.
pub(crate) fn bindings(world: &World) -> Api<DynamicObject> {
    let kind = ApiResource {
        group: "elbv2.k8s.aws".to_owned(),
        version: "v1beta1".to_owned(),
        api_version: "elbv2.k8s.aws/v1beta1".to_owned(),
        kind: "TargetGroupBinding".to_owned(),
        plural: "targetgroupbindings".to_owned(),
    };
    Api::namespaced_with(world.client(), "default", &kind)
}
