"""boto3 and the AWS CLI drive the fake cloud as they drive AWS; every answer is walked along the models."""

import json
import os
import subprocess
import sys
import unittest

from fake import MACHINE, NODES, SUBNETS, VPC, Fake
from walk import Judge

QUICK = {"WaiterConfig": {"Delay": 1, "MaxAttempts": 60}}
CHECK = {"HealthCheckProtocol": "TCP", "HealthCheckIntervalSeconds": 5, "HealthyThresholdCount": 2}


class Clients(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.fake = Fake()
        self.addCleanup(self.fake.end)
        self.elb, self.ec2 = self.fake.client("elbv2"), self.fake.client("ec2")
        self.judges = [Judge(self.elb), Judge(self.ec2)]

    def judged(self):
        for judge in self.judges:
            self.assertEqual(judge.wrong, [], "AWS-910, AWS-911")

    def balancer(self, name="web", **more):
        made = self.elb.create_load_balancer(Name=name, Type="network", Scheme="internal", Subnets=SUBNETS, **more)
        return made["LoadBalancers"][0]

    def group(self, name="web", **more):
        asked = {"Protocol": "TCP", "Port": 8080, "VpcId": VPC, "TargetType": "ip", **CHECK, **more}
        return self.elb.create_target_group(Name=name, **asked)["TargetGroups"][0]

    def listener(self, balancer, group, port=80):
        forward = [{"Type": "forward", "TargetGroupArn": group}]
        made = self.elb.create_listener(LoadBalancerArn=balancer, Protocol="TCP", Port=port, DefaultActions=forward)
        return made["Listeners"][0]

    # AWS-914: waiters.
    def test_aws914_the_whole_life_of_a_load_balancer_with_the_services_own_waiters(self):
        elb = self.elb
        tags = [{"Key": "team", "Value": "edge"}]
        balancer = self.balancer(Tags=tags, SecurityGroups=[NODES])
        arn = balancer["LoadBalancerArn"]
        elb.get_waiter("load_balancer_exists").wait(LoadBalancerArns=[arn], **QUICK)
        elb.get_waiter("load_balancer_available").wait(LoadBalancerArns=[arn], **QUICK)
        # AWS-775: the same again is the same one; other settings are refused.
        self.assertEqual(self.balancer(SecurityGroups=[NODES])["LoadBalancerArn"], arn)
        with self.assertRaises(elb.exceptions.DuplicateLoadBalancerNameException):
            self.balancer()
        group = self.group()["TargetGroupArn"]
        target = [{"Id": "10.0.1.5", "Port": 8080}]
        elb.register_targets(TargetGroupArn=group, Targets=target)
        unused = elb.describe_target_health(TargetGroupArn=group)["TargetHealthDescriptions"]
        self.assertEqual(unused[0]["TargetHealth"]["Reason"], "Target.NotInUse", "AWS-621")
        listener = self.listener(arn, group)["ListenerArn"]
        elb.get_waiter("target_in_service").wait(TargetGroupArn=group, Targets=target, **QUICK)
        with self.assertRaises(elb.exceptions.ResourceInUseException):
            elb.delete_target_group(TargetGroupArn=group)
        delay = [{"Key": "deregistration_delay.timeout_seconds", "Value": "0"}]
        elb.modify_target_group_attributes(TargetGroupArn=group, Attributes=delay)
        elb.deregister_targets(TargetGroupArn=group, Targets=target)
        elb.get_waiter("target_deregistered").wait(TargetGroupArn=group, Targets=target, **QUICK)
        self.assertEqual(elb.describe_tags(ResourceArns=[arn])["TagDescriptions"][0]["Tags"], tags)
        elb.remove_tags(ResourceArns=[arn], TagKeys=["team"])
        elb.add_tags(ResourceArns=[listener], Tags=tags)
        elb.delete_listener(ListenerArn=listener)
        elb.delete_load_balancer(LoadBalancerArn=arn)
        elb.get_waiter("load_balancers_deleted").wait(LoadBalancerArns=[arn], **QUICK)
        elb.delete_target_group(TargetGroupArn=group)
        self.judged()

    # AWS-914: paginators.
    def test_aws914_pages_end_and_lose_nothing(self):
        balancers = {self.balancer(f"web-{n}")["LoadBalancerArn"] for n in range(5)}
        groups = {self.group(f"web-{n}")["TargetGroupArn"] for n in range(7)}
        first = min(balancers)
        ports = {80 + n for n, group in enumerate(sorted(groups)) if self.listener(first, group, 80 + n)}

        def paged(call, key, field, size, **asked):
            pages = list(self.elb.get_paginator(call).paginate(PaginationConfig={"PageSize": size}, **asked))
            entries = [entry[field] for page in pages for entry in page[key]]
            self.assertGreater(len(pages), 1, call)
            self.assertEqual(len(entries), len(set(entries)), call)
            return set(entries)

        self.assertEqual(paged("describe_load_balancers", "LoadBalancers", "LoadBalancerArn", 2), balancers)
        self.assertEqual(paged("describe_target_groups", "TargetGroups", "TargetGroupArn", 3), groups)
        self.assertEqual(paged("describe_listeners", "Listeners", "Port", 2, LoadBalancerArn=first), ports)
        self.judged()

    def test_aws905_security_groups_and_their_rules(self):
        ec2 = self.ec2
        specification = [{"ResourceType": "security-group", "Tags": [{"Key": "team", "Value": "edge"}]}]
        made = ec2.create_security_group(
            GroupName="web", Description="of web", VpcId=VPC, TagSpecifications=specification)["GroupId"]
        rule = {"IpProtocol": "tcp", "FromPort": 80, "ToPort": 80, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        asked = {"GroupId": made, "IpPermissions": [rule]}
        ec2.authorize_security_group_ingress(**asked)
        with self.assertRaisesRegex(ec2.exceptions.ClientError, "InvalidPermission.Duplicate"):
            ec2.authorize_security_group_ingress(**asked)
        filters = [{"Name": "tag:team", "Values": ["edge"]}]
        found = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
        self.assertEqual([group["GroupId"] for group in found], [made])
        self.assertEqual(found[0]["IpPermissions"][0]["IpRanges"][0]["CidrIp"], "0.0.0.0/0")
        self.balancer(SecurityGroups=[made])
        with self.assertRaisesRegex(ec2.exceptions.ClientError, "DependencyViolation"):
            ec2.delete_security_group(GroupId=made)
        ec2.revoke_security_group_ingress(**asked)
        with self.assertRaisesRegex(ec2.exceptions.ClientError, "DryRunOperation"):
            ec2.delete_security_group(GroupId=made, DryRun=True)
        self.assertEqual({s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]}, set(SUBNETS))
        self.assertEqual(ec2.describe_vpcs()["Vpcs"][0]["VpcId"], VPC)
        self.judged()

    def test_aws430_a_target_that_is_none_is_named_and_nothing_is_registered(self):
        group = self.group(TargetType="instance")["TargetGroupArn"]
        with self.assertRaisesRegex(self.elb.exceptions.InvalidTargetException, "'i-0bad'"):
            self.elb.register_targets(TargetGroupArn=group, Targets=[{"Id": MACHINE}, {"Id": "i-0bad"}])
        self.assertEqual(self.elb.describe_target_health(TargetGroupArn=group)["TargetHealthDescriptions"], [])
        self.judged()

    def cli(self, *words):
        command = [os.path.join(os.path.dirname(sys.executable), "aws"), "--output", "json", *words]
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **self.fake.environment}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def test_aws910_the_command_line_client_makes_lists_waits_and_removes(self):
        made = self.cli("elbv2", "create-load-balancer", "--name", "web", "--type", "network", "--subnets", *SUBNETS)
        arn = made["LoadBalancers"][0]["LoadBalancerArn"]
        self.cli("elbv2", "wait", "load-balancer-available", "--load-balancer-arns", arn)
        listed = self.cli("elbv2", "describe-load-balancers", "--page-size", "1")
        self.assertEqual([lb["LoadBalancerName"] for lb in listed["LoadBalancers"]], ["web"])
        self.cli("elbv2", "delete-load-balancer", "--load-balancer-arn", arn)
        self.assertEqual(self.cli("elbv2", "describe-load-balancers")["LoadBalancers"], [])
