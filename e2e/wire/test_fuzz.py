"""Requests made at random from the input shapes: the fake never fails, and refuses with modelled codes only (AWS-913)."""

import os
import random
import unittest

import botocore.session
from botocore.exceptions import ClientError

from fake import MACHINE, NODES, SUBNETS, VPC, Fake
from walk import Judge

# Calls of each operation of ELBv2; of EC2 those that the fake serves are called.
ROUNDS = 60
EC2 = [
    "AuthorizeSecurityGroupIngress", "CreateSecurityGroup", "DeleteSecurityGroup",
    "DescribeNetworkInterfaces", "DescribeSecurityGroups", "DescribeSubnets", "DescribeVpcs", "RevokeSecurityGroupIngress",
]


class Shapes:
    """Values of shapes, drawn from one seeded source; what answers named is asked for again."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.known = [MACHINE, NODES, VPC, *SUBNETS, "10.0.1.5", "0.0.0.0/0", "tcp", "web"]

    def value(self, shape, depth=0):
        return getattr(self, f"_{shape.type_name}", self._string)(shape, depth)

    def _structure(self, shape, depth):
        likely = 0.5 if depth < 4 else 0.1
        wanted = [
            name for name in shape.members
            if (name in shape.required_members and self.random.random() < 0.95) or self.random.random() < likely
        ]
        # A dry run would hide what the call does.
        return {name: self.value(shape.members[name], depth + 1) for name in wanted if name != "DryRun"}

    def _list(self, shape, depth):
        return [self.value(shape.member, depth + 1) for _ in range(self.random.choice([0, 1, 1, 2, 3]))]

    def _map(self, shape, depth):
        return {self.value(shape.key, depth): self.value(shape.value, depth)}

    def _boolean(self, _shape, _depth):
        return self.random.random() < 0.5

    def _number(self, shape, _depth):
        low, high = shape.metadata.get("min", 0), shape.metadata.get("max", 70000)
        return self.random.choice([low, high, low - 1, high + 1, self.random.randint(low, high), 80])

    _integer = _long = _number

    def _float(self, _shape, _depth):
        return self.random.random() * 10

    _double = _float

    def _timestamp(self, _shape, _depth):
        return "2030-01-01T00:00:00Z"

    def _blob(self, _shape, _depth):
        return b"blob"

    def _string(self, shape, _depth):
        enum = getattr(shape, "enum", [])
        odd = ["", "x" * 300, "<&>\"' %", "\u00e4\u4e2d\U0001f600", "-1"]
        if enum and self.random.random() < 0.9:
            return self.random.choice(enum)
        return self.random.choice(self.known if self.random.random() < 0.8 else odd)

    def learn(self, answer):
        """Keeps the ids of an answer."""
        if isinstance(answer, dict):
            for key, value in answer.items():
                if isinstance(value, str) and (key.endswith("Arn") or key == "GroupId"):
                    self.known.append(value)
                self.learn(value)
        elif isinstance(answer, list):
            for entry in answer:
                self.learn(entry)


class Fuzz(unittest.TestCase):
    maxDiff = None

    def test_aws913_no_request_makes_it_fail_or_answer_what_the_models_do_not_have(self):
        seed = int(os.environ.get("ONEHOP_SEED", "1"))
        fake, shapes = Fake(), Shapes(seed)
        self.addCleanup(fake.end)
        models = botocore.session.get_session()
        judges = []
        for service in ["elbv2", "ec2"]:
            client = fake.client(service, parameter_validation=False)
            judge = Judge(client)
            judges.append(judge)
            model = models.get_service_model(service)
            names = list(model.operation_names) if service == "elbv2" else EC2
            called = 0
            for _ in range(ROUNDS):
                for name in shapes.random.sample(names, len(names)):
                    asked = shapes.value(model.operation_model(name).input_shape)
                    called += 1
                    try:
                        answer = client._make_api_call(name, asked)
                        shapes.learn(answer)
                    except ClientError:
                        pass  # The judge has seen it.
            self.assertEqual(judge.answers, called, "every call has an answer")
        for judge in judges:
            self.assertEqual(judge.wrong, [], f"AWS-913, seed {seed}")
