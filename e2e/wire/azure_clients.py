"""Drives the fake Resource Manager as azure-mgmt-network drives Azure: over TLS, with a token, its pollers and pagers.

`azure_clients.py CASE` runs one case against the fake that AZURE_ENDPOINT and AZURE_CA name and says "CASE: ok" in the
end; what is not as it should be ends it before. The Rust tests in e2e/tests/wire start the fake and choose its faults.
"""

import json
import os
import sys
import time

import requests
from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.network import NetworkManagementClient, models

GROUP, LOCATION = "rg", "westeurope"
ENDPOINT, CA = os.environ["AZURE_ENDPOINT"].rstrip("/"), os.environ["AZURE_CA"]
NETWORK = f"/subscriptions/sub/resourceGroups/{GROUP}/providers/Microsoft.Network"


class Credential:
    """A client with its secret at the fake's token endpoint; counts its tokens, those with claims apart."""

    def __init__(self):
        self.plain = self.with_claims = 0

    def get_token(self, *scopes, claims=None, **_):
        form = {"grant_type": "client_credentials", "client_id": "client", "client_secret": "secret"}
        form["scope"] = " ".join(scopes)
        if claims:
            form["claims"] = claims
            self.with_claims += 1
        else:
            self.plain += 1
        answer = requests.post(f"{ENDPOINT}/tenant/oauth2/v2.0/token", data=form, verify=CA, timeout=30)
        answer.raise_for_status()
        return AccessToken(answer.json()["access_token"], int(time.time()) + 3600)


CREDENTIAL = Credential()
CLIENT = NetworkManagementClient(CREDENTIAL, "sub", base_url=ENDPOINT, connection_verify=CA)


def same(found, expected, what):
    if found != expected:
        raise AssertionError(f"{what}: {found!r} and not {expected!r}")


def refused(code, call):
    try:
        call()
    except HttpResponseError as error:
        same(error.error.code, code, "the code of the refusal")
        return error
    raise AssertionError(f"nothing was refused with {code}")


def public_ip(name, **more):
    wish = models.PublicIPAddress(
        location=LOCATION, sku=models.PublicIPAddressSku(name="Standard"), public_ip_allocation_method="Static", **more)
    return CLIENT.public_ip_addresses.begin_create_or_update(GROUP, name, wish).result()


def balancer(name, pip):
    child = lambda kind, of: models.SubResource(id=f"{NETWORK}/loadBalancers/{name}/{kind}/{of}")
    return models.LoadBalancer(
        location=LOCATION,
        sku=models.LoadBalancerSku(name="Standard"),
        frontend_ip_configurations=[
            models.FrontendIPConfiguration(name="front", public_ip_address=models.PublicIPAddress(id=pip))],
        backend_address_pools=[models.BackendAddressPool(
            name="pool",
            virtual_network=models.SubResource(id=f"{NETWORK}/virtualNetworks/vnet"),
            load_balancer_backend_addresses=[models.LoadBalancerBackendAddress(name="a", ip_address="10.0.1.1")])],
        probes=[models.Probe(name="probe", protocol="Tcp", port=80, interval_in_seconds=5, probe_threshold=2)],
        load_balancing_rules=[models.LoadBalancingRule(
            name="rule", protocol="Tcp", frontend_port=80, backend_port=8080,
            frontend_ip_configuration=child("frontendIPConfigurations", "front"),
            backend_address_pool=child("backendAddressPools", "pool"), probe=child("probes", "probe"))],
    )


def life():
    """Every kind of resource is created, read, changed and removed."""
    pip = public_ip("ip", tags={"team": "net"})
    same(pip.provisioning_state, "Succeeded", "the public IP after its operation")
    pip.tags["team"] = "edge"
    CLIENT.public_ip_addresses.begin_create_or_update(GROUP, "ip", pip).result()
    again = CLIENT.public_ip_addresses.get(GROUP, "ip")
    same((again.tags, again.ip_address), ({"team": "edge"}, pip.ip_address), "the public IP when changed")

    balancers, pools = CLIENT.load_balancers, CLIENT.load_balancer_backend_address_pools
    made = balancers.begin_create_or_update(GROUP, "mine", balancer("mine", pip.id)).result()
    used = made.frontend_ip_configurations[0].load_balancing_rules[0].id
    same(used, f"{made.id}/loadBalancingRules/rule", "the back-reference of the frontend")
    held = CLIENT.public_ip_addresses.get(GROUP, "ip").ip_configuration.id
    same(held, f"{made.id}/frontendIPConfigurations/front", "who holds the public IP")
    made.load_balancing_rules[0].idle_timeout_in_minutes = 9
    balancers.begin_create_or_update(GROUP, "mine", made).result()
    changed = balancers.get(GROUP, "mine")
    same(changed.load_balancing_rules[0].idle_timeout_in_minutes, 9, "the rule when changed")
    if changed.etag == made.etag:
        raise AssertionError("AZ-367: a change has another ETag")
    pool = pools.get(GROUP, "mine", "pool")
    pool.load_balancer_backend_addresses.append(
        models.LoadBalancerBackendAddress(name="b", ip_address="10.0.1.2", admin_state="Down"))
    pools.begin_create_or_update(GROUP, "mine", "pool", pool).result()
    members = pools.get(GROUP, "mine", "pool").load_balancer_backend_addresses
    same([(m.name, m.admin_state) for m in members], [("a", None), ("b", "Down")], "members")
    refused("InvalidResourceReference", lambda: pools.begin_delete(GROUP, "mine", "pool").result())

    groups, rules = CLIENT.network_security_groups, CLIENT.security_rules
    groups.begin_create_or_update(GROUP, "group", models.NetworkSecurityGroup(location=LOCATION)).result()
    rule = models.SecurityRule(
        protocol="Tcp", access="Allow", direction="Inbound", priority=300, source_port_range="*",
        source_address_prefix="Internet", destination_address_prefix="*", destination_port_ranges=["80", "443"])
    rules.begin_create_or_update(GROUP, "group", "web", rule).result()
    same([r.name for r in groups.get(GROUP, "group").security_rules], ["web"], "rules")
    rule.priority = 99
    refused("SecurityRuleInvalidPriority", lambda: rules.begin_create_or_update(GROUP, "group", "low", rule).result())
    rules.begin_delete(GROUP, "group", "web").result()
    same(groups.get(GROUP, "group").security_rules, [], "rules after the removal")
    groups.begin_delete(GROUP, "group").result()

    remove = lambda: CLIENT.public_ip_addresses.begin_delete(GROUP, "ip").result()
    refused("PublicIPAddressCannotBeDeleted", remove)
    balancers.begin_delete(GROUP, "mine").result()
    remove()
    # AZ-364: what is not there is removed at once.
    remove()
    for gone in (lambda: balancers.get(GROUP, "mine"), lambda: groups.get(GROUP, "group")):
        try:
            gone()
        except ResourceNotFoundError as error:
            same(error.error.code, "ResourceNotFound", "AZ-369")
        else:
            raise AssertionError("what was removed is still there")


def pages():
    """AZ-373: lists come in pages and nothing is lost."""
    names = {f"ip-{n:03}" for n in range(60)}
    wish = models.PublicIPAddress(
        location=LOCATION, sku=models.PublicIPAddressSku(name="Standard"), public_ip_allocation_method="Static")
    pollers = [CLIENT.public_ip_addresses.begin_create_or_update(GROUP, name, wish) for name in sorted(names)]
    for poller in pollers:
        poller.wait()
    found = list(CLIENT.public_ip_addresses.list(GROUP).by_page())
    found = [[pip.name for pip in page] for page in found]
    if len(found) < 2:
        raise AssertionError("one page is no proof")
    same(sorted(sum(found, [])), sorted(names), "names of all pages")


def unknown():
    """AZ-400: what this client does not know comes back as it was when it changes something else."""
    pip = public_ip("ip")
    pip["unknown"] = {"a": [], "b": [{"c": 1}]}
    pip["properties"]["mystery"] = {"deep": [{}]}
    CLIENT.public_ip_addresses.begin_create_or_update(GROUP, "ip", pip).result()
    pip = CLIENT.public_ip_addresses.get(GROUP, "ip")
    pip.tags = {"a": "b"}
    CLIENT.public_ip_addresses.begin_create_or_update(GROUP, "ip", pip).result()
    pip = CLIENT.public_ip_addresses.get(GROUP, "ip")
    same(pip["unknown"], {"a": [], "b": [{"c": 1}]}, "at the top")
    same(pip["properties"]["mystery"], {"deep": [{}]}, "among the properties")


def challenged():
    """AZ-376: a claims challenge is answered with a new token."""
    public_ip("ip")
    same((CREDENTIAL.plain, CREDENTIAL.with_claims), (1, 1), "tokens without and with claims")


def throttled():
    """AZ-371: after 429 it comes again, when it is told."""
    begin = time.monotonic()
    public_ip("ip")
    if time.monotonic() - begin < 1:
        raise AssertionError("it did not wait for Retry-After")


def failed():
    """AZ-365: an operation that fails later has code and message."""
    error = refused("PublicIPCountLimitReached", lambda: public_ip("ip"))
    if "as the test asks" not in error.message:
        raise AssertionError(f"the message is lost: {error.message}")


def deviations():
    """AZ-508: what this client is known to do otherwise than the controller. None of it is a fault of the fake, and the
    controller is not bent to it; a version that does it no more fails here."""
    pip = public_ip("ip")
    pip.tags = {"a": "b"}
    # Without If-Match, though it has the ETag: whoever was faster is overwritten.
    CLIENT.public_ip_addresses.begin_create_or_update(GROUP, "ip", pip).result()
    # Neither types nor words nor keys are looked at before they are sent.
    wrong = balancer("wrong", pip.id)
    wrong.load_balancing_rules[0].frontend_port = "eighty"
    wrong.load_balancing_rules[0].protocol = "Bogus"
    wrong.load_balancing_rules[0]["misspelt"] = 1
    try:
        CLIENT.load_balancers.begin_create_or_update(GROUP, "wrong", wrong).result()
    except HttpResponseError as error:
        same(error.status_code, 400, "who refuses is the server")
    else:
        raise AssertionError("a port of letters was taken")


def by_location():
    """AZ-508, AZ-363: an answer 202 to a PUT, which the controller follows, this client refuses."""
    try:
        public_ip("ip")
    except HttpResponseError as error:
        same(error.status_code, 202, "the answer that it does not know")
    else:
        raise AssertionError("it follows 202 by now: say so in AZ-508's list")


def reads():
    """What there is, as this client reads it, as JSON in the last line but one."""
    balancers = {
        it.name: {
            "frontends": [f.name for f in it.frontend_ip_configurations],
            "pools": {
                p.name: [m.ip_address for m in p.load_balancer_backend_addresses or []]
                for p in it.backend_address_pools},
            "probes": {p.name: [p.protocol, p.port, p.request_path] for p in it.probes or []},
            "rules": {
                r.name: [r.protocol, r.frontend_port, r.backend_port, r.enable_floating_ip or False]
                for r in it.load_balancing_rules},
        }
        for it in CLIENT.load_balancers.list(GROUP)}
    public_ips = {it.name: it.ip_address for it in CLIENT.public_ip_addresses.list(GROUP)}
    rules = {
        rule.name: [rule.access, rule.protocol, rule.destination_port_ranges or [rule.destination_port_range]]
        for group in CLIENT.network_security_groups.list(GROUP) for rule in group.security_rules}
    print(json.dumps({"balancers": balancers, "public_ips": public_ips, "rules": rules}))


CASES = (life, pages, unknown, challenged, throttled, failed, deviations, by_location, reads)

if __name__ == "__main__":
    case = sys.argv[1]
    {f.__name__: f for f in CASES}[case]()
    print(f"{case}: ok")
