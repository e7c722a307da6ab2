//! The cloud as AWS shows it: `ELBv2` and EC2 by the Query protocol, over the one engine (profile `nlb`).
//!
//! One path, `POST /`, for both services, told apart by the scope of the signature. Requests are
//! authenticated by their `SigV4` signature and checked against the caller's rights (FC-99b). What the
//! engine has no word for (subnets, security groups, machines, attributes, certificates) lives in
//! [`Account`]. Only what the controller and its judges call is served; anything else is `InvalidAction`.

mod account;
mod balancers;
mod certificates;
mod ec2;
mod error;
mod form;
mod groups;
mod listeners;
mod rights;
mod rules;
mod sign;
mod tags;
mod xml;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use onehop_core::time::Time;

use crate::certificate::Certificate;
use crate::cloud::Cloud;
use account::Account;
use error::Refusal;
use form::Form;

pub use account::{Interface, Machine, Setup, SubnetSetup};
pub use rights::Rights;
pub use rules::{OnRules, Rules};

/// AWS over a cloud. Clones share it.
#[derive(Clone)]
pub struct Aws {
    cloud: Cloud,
    account: Arc<Mutex<Account>>,
    on_rules: Arc<Mutex<Option<(OnRules, Rules)>>>,
}

/// What one call works with.
struct Call<'a> {
    cloud: &'a Cloud,
    account: &'a mut Account,
    form: &'a Form,
}

type Answer = Result<String, Refusal>;

impl Aws {
    /// An account with a network, machines, and one caller.
    pub fn new(cloud: Cloud, setup: Setup) -> Self {
        Self {
            cloud,
            account: Arc::new(Mutex::new(Account::new(setup))),
            on_rules: Arc::default(),
        }
    }

    /// Puts the rules of security groups on packets from now on.
    pub fn on_rules(&self, hook: OnRules) {
        let rules = self.account().rules();
        hook(&rules);
        *self.hook() = Some((hook, rules));
    }

    /// Issues a certificate that listeners may name by this ARN.
    pub fn add_certificate(&self, arn: &str, certificate: Certificate) {
        let certificates = &mut self.account().certificates;
        certificates.insert(arn.to_owned(), Arc::new(certificate));
    }

    /// Serves both APIs on `listener` until the task is dropped.
    pub async fn serve(self, listener: tokio::net::TcpListener) -> std::io::Result<()> {
        axum::serve(listener, self.router()).await
    }

    /// Both APIs.
    pub fn router(self) -> Router {
        Router::new().fallback(handle).with_state(self)
    }

    /// Sets the network interfaces that there are beside the machines' primary ones.
    pub fn set_interfaces(&self, interfaces: Vec<Interface>) {
        self.account().interfaces = interfaces;
    }

    /// Adds a machine, as an autoscaling group would.
    pub fn add_machine(&self, machine: Machine) {
        self.account().add_machine(machine);
    }

    /// Adds a subnet: addresses in it are of its zone.
    pub fn add_subnet(&self, subnet: SubnetSetup) {
        let subnets = &mut self.account().subnets;
        subnets.insert(subnet.id.clone(), subnet);
    }

    /// Ends a machine.
    pub fn terminate(&self, machine: &str) {
        self.account().machines.remove(machine);
    }

    /// One call of another program of the account, with every right and uncounted: its answer, or the code and message
    /// of its refusal. Parameters as they are on the wire.
    pub fn call(
        &self,
        service: &str,
        action: &str,
        parameters: &[(&str, &str)],
    ) -> Result<String, String> {
        let form = Form::of(parameters);
        let mut account = self.account();
        let mut call = Call {
            cloud: &self.cloud,
            account: &mut account,
            form: &form,
        };
        let answer = match service {
            "ec2" => call.ec2(action),
            _ => call.elb(action),
        };
        self.tell_rules(&account);
        answer.map_err(|refusal| refusal.of(service).to_string())
    }

    /// What a DNS name resolves to: an address in each zone that has a healthy target, or in all when none
    /// has (FC-55).
    pub fn resolve(&self, name: &str) -> Vec<IpAddr> {
        let account = self.account();
        let found = account
            .balancers
            .values()
            .find(|lb| lb.dns.eq_ignore_ascii_case(name));
        found.map(account::Balancer::addresses).unwrap_or_default()
    }

    /// Calls so far, `elasticloadbalancing:CreateListener` and so on, refused ones too.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.account().calls.clone()
    }

    /// Calls so far that are no reads, in their order, refused ones too.
    pub fn writes(&self) -> Vec<String> {
        self.account().writes.clone()
    }

    /// Sets what the caller may do from now on.
    pub fn set_rights(&self, rights: Rights) {
        self.account().rights = rights;
    }

    /// How many load balancers, target groups and security groups of somebody's making there are.
    pub fn counts(&self) -> (usize, usize, usize) {
        let account = self.account();
        let made = account
            .security_groups
            .values()
            .filter(|group| group.made_by_call);
        (account.balancers.len(), account.groups.len(), made.count())
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, service: &str, form: &Form) -> Answer {
        let action = form.text("Action");
        let mut account = self.account();
        let dry = form.text("DryRun") == "true";
        let name = if dry { "DryRun" } else { action };
        *account
            .calls
            .entry(format!("{service}:{name}"))
            .or_default() += 1;
        if !dry && !action.starts_with("Describe") {
            account.writes.push(format!("{service}:{action}"));
        }
        account.rights.check(service, action, form)?;
        let mut call = Call {
            cloud: &self.cloud,
            account: &mut account,
            form,
        };
        let answer = match service {
            "ec2" => call.ec2(action),
            _ => call.elb(action),
        };
        self.tell_rules(&account);
        answer.map_err(|refusal| refusal.of(service))
    }

    fn tell_rules(&self, account: &Account) {
        if let Some((hook, last)) = &mut *self.hook() {
            let rules = account.rules();
            if rules != *last {
                hook(&rules);
                *last = rules;
            }
        }
    }

    fn hook(&self) -> MutexGuard<'_, Option<(OnRules, Rules)>> {
        self.on_rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call<'_> {
    fn elb(&mut self, action: &str) -> Answer {
        let inner = match action {
            "CreateLoadBalancer" => self.create_balancer(),
            "DescribeLoadBalancers" => self.describe_balancers(),
            "DeleteLoadBalancer" => self.delete_balancer(),
            "DescribeLoadBalancerAttributes" => self.balancer_attributes(),
            "ModifyLoadBalancerAttributes" => self.set_balancer_attributes(),
            "SetSecurityGroups" => self.set_security_groups(),
            "SetSubnets" => self.set_subnets(),
            "CreateTargetGroup" => self.create_group(),
            "DescribeTargetGroups" => self.describe_groups(),
            "ModifyTargetGroup" => self.modify_group(),
            "DeleteTargetGroup" => self.delete_group(),
            "DescribeTargetGroupAttributes" => self.group_attributes(),
            "ModifyTargetGroupAttributes" => self.set_group_attributes(),
            "RegisterTargets" => self.register(),
            "DeregisterTargets" => self.deregister(),
            "DescribeTargetHealth" => self.target_health(),
            "CreateListener" => self.create_listener(),
            "DescribeListeners" => self.describe_listeners(),
            "ModifyListener" => self.modify_listener(),
            "DeleteListener" => self.delete_listener(),
            "AddListenerCertificates" => self.add_certificates(),
            "RemoveListenerCertificates" => self.remove_certificates(),
            "DescribeListenerCertificates" => self.describe_certificates(),
            "DescribeListenerAttributes" => self.listener_attributes(),
            "ModifyListenerAttributes" => self.set_listener_attributes(),
            "AddTags" => self.add_tags(),
            "RemoveTags" => self.remove_tags(),
            "DescribeTags" => self.describe_tags(),
            _ => Err(Refusal::new(
                "InvalidAction",
                format!("no action {action} here"),
            )),
        }?;
        let space = "http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/";
        Ok(format!(
            "<{action}Response xmlns=\"{space}\"><{action}Result>{inner}</{action}Result>\
             <ResponseMetadata><RequestId>{}</RequestId></ResponseMetadata></{action}Response>",
            self.account.request_id()
        ))
    }
}

async fn handle(
    State(aws): State<Aws>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let keys = aws.account().keys.clone();
    let now = aws.cloud.clock().now();
    let signed = sign::verify(&keys, now, (&method, &uri, &headers), &body);
    let (service, answer) = match signed {
        Ok(scope) => {
            let form = Form::read(&body).map_err(|refusal| refusal.of(&scope.service));
            let answer = form.and_then(|form| aws.answer(&scope.service, &form));
            (scope.service, answer)
        }
        Err((service, refusal)) => (service, Err(refusal)),
    };
    let request = aws.account().request_id();
    let (status, text) = match answer {
        Ok(text) => (StatusCode::OK, text),
        Err(refusal) if refusal.is_lost() => {
            // The server drops the connection when a body fails before anything was sent.
            let fails = futures::stream::iter([Err::<Vec<u8>, _>(std::io::Error::other("lost"))]);
            return (StatusCode::OK, Body::from_stream(fails)).into_response();
        }
        Err(refusal) => (refusal.status(), refusal.xml(&service, &request)),
    };
    let headers = [("content-type", "text/xml".to_owned()), ("date", date(now))];
    (status, headers, text).into_response()
}

/// A time as HTTP writes it. Of the cloud's own clock, as its judgement of signatures is.
fn date(now: Time) -> String {
    let at = Timestamp::from_millisecond(now.as_millis()).unwrap_or_default();
    let printed = DateTimePrinter::new().timestamp_to_rfc9110_string(&at);
    printed.unwrap_or_default()
}

#[cfg(test)]
mod tests;
