"""Starts the fake cloud with AWS's APIs, and makes clients of it."""

import os
import re
import subprocess

import boto3
from botocore.config import Config

SUBNETS = ["subnet-00000000000000001", "subnet-00000000000000002"]
MACHINE, VPC, NODES = "i-00000000000000001", "vpc-00000000000000001", "sg-00000000000000001"


class Fake:
    """A fake cloud as a process, a hundred times faster than the wall."""

    def __init__(self):
        command = [os.environ["ONEHOP_CLOUD"], "--api", "aws", "--listen", "127.0.0.1:0", "--speed", "100"]
        self._process = subprocess.Popen([*command, "--zones", "zone-a,zone-b"], stdout=subprocess.PIPE, text=True)
        lines = [self._process.stdout.readline() for _ in range(2)]
        said = dict(re.findall(r"(AWS_[A-Z_]+)=(\S+)", lines[1]))
        if "AWS_ENDPOINT_URL" not in said:
            raise RuntimeError(f"the fake cloud did not start: {lines}")
        self.environment = said

    def client(self, service, **config):
        """A boto3 client of it that does not try again."""
        return boto3.client(
            service,
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            region_name=self.environment["AWS_DEFAULT_REGION"],
            aws_access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
            config=Config(retries={"total_max_attempts": 1}, **config),
        )

    def end(self):
        """Ends the process."""
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()
