"""The judge itself: planted errors are found (AWS-911)."""

import unittest

import botocore.session

from walk import problems, wrong_error

MODELS = botocore.session.get_session()
GOOD = """<DescribeTargetHealthResponse><DescribeTargetHealthResult><TargetHealthDescriptions><member>
<Target><Id>10.0.0.1</Id><Port>80</Port></Target><TargetHealth><State>healthy</State></TargetHealth>
</member></TargetHealthDescriptions></DescribeTargetHealthResult><ResponseMetadata/></DescribeTargetHealthResponse>"""
SUBNETS = """<DescribeSubnetsResponse><requestId>1</requestId><subnetSet><item><subnetId>s</subnetId>
<availableIpAddressCount>9</availableIpAddressCount></item></subnetSet></DescribeSubnetsResponse>"""


def operation(service, name):
    return MODELS.get_service_model(service).operation_model(name)


class Walk(unittest.TestCase):
    def test_aws911_planted_errors_are_found(self):
        health = operation("elbv2", "DescribeTargetHealth")
        self.assertEqual(problems(health, GOOD), [])
        planted = {
            "unknown element": GOOD.replace("Target>", "Aim>", 2).replace("</Target>", "</Aim>", 1),
            "enum": GOOD.replace("healthy", "well"),
            "integer": GOOD.replace(">80<", ">http<"),
            "list tag": GOOD.replace("member>", "item>"),
            "required member": GOOD.replace("<Id>10.0.0.1</Id>", ""),
            "twice": GOOD.replace("<Port>80</Port>", "<Port>80</Port><Port>81</Port>"),
            "wrapper": GOOD.replace("DescribeTargetHealthResult", "Result"),
            "root": GOOD.replace("DescribeTargetHealthResponse", "Response"),
            "no XML": GOOD[:-5],
        }
        for what, text in planted.items():
            with self.subTest(what):
                self.assertNotEqual(problems(health, text), [])

    def test_aws911_lists_of_ec2_have_its_own_tag(self):
        subnets = operation("ec2", "DescribeSubnets")
        self.assertEqual(problems(subnets, SUBNETS), [])
        self.assertNotEqual(problems(subnets, SUBNETS.replace("item>", "member>")), [])
        self.assertNotEqual(problems(subnets, SUBNETS.replace("subnetId", "SubnetId")), [])

    def test_aws915_codes_that_an_operation_does_not_raise_are_found(self):
        delete = operation("elbv2", "DeleteLoadBalancer")
        error = "<ErrorResponse><Error><Code>{}</Code><Message/></Error></ErrorResponse>"
        for code in ["LoadBalancerNotFound", "ResourceInUse", "ValidationError"]:
            self.assertIsNone(wrong_error(delete, 400, error.format(code)), code)
        self.assertIsNotNone(wrong_error(delete, 400, error.format("TargetGroupNotFound")))
        self.assertIsNotNone(wrong_error(delete, 500, error.format("ValidationError")))
        self.assertIsNotNone(wrong_error(delete, 400, "oops"))
